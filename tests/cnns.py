"""CNNs and transformers with biases and batch norm statistics that show."""

import timm
import torch

from tests.models import HF, images, sharpen, tiny

CNNS = {
    "resnet18": 64,
    "vgg11": 64,
    "mobilenetv3_small_050": 64,
    "tf_efficientnet_lite0": 64,
    "convnext_atto": 64,
    "densenet121": 64,
}


def cnn(name, dtype=torch.float32, **kwargs):
    """A timm network with random biases, scales and statistics; the same weights at every call."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **kwargs).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, tensor in (*model.named_parameters(), *model.named_buffers()):
            noise = torch.randn(tensor.shape, generator=generator)
            if key.endswith("running_var"):
                tensor.copy_(0.5 + noise.abs())
            elif key.endswith(("running_mean", "bias")):
                tensor.copy_(0.3 * noise)
            elif key.endswith(("weight", "gamma")) and tensor.ndim == 1:
                tensor.copy_(1 + 0.2 * noise)
    return model.to(dtype)


def hf_vit():
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    return sharpen(ViTForImageClassification(ViTConfig(**HF, num_labels=5)).eval())


def any_model(name, dtype=torch.float32):
    """One of `CNNS`, "timm ViT" or "transformers ViT", and an image for it."""
    if name in CNNS:
        return cnn(name, dtype), images(1, CNNS[name], dtype=dtype)
    model = tiny() if name == "timm ViT" else hf_vit()
    return model.to(dtype), images(1, dtype=dtype)
