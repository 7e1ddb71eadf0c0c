"""Every method on digit scenes and on photographs: `python benchmarks/pictures.py OUT`."""

import contextlib
import sys
from pathlib import Path

import torch
from PIL import Image

from xattr import attr
from xattr.datasets import cifar_model, cifar_photographs, digit_scenes, embedded_model
from xattr.datasets.borrowed import quokka, region_score, saliency_vit
from xattr.datasets.cifar import CIFAR_CLASSES
from xattr.trace import XattrError, preprocessing
from xattr.visualization import comparison

GRADIENTS = {
    "GradSkip": (attr.GradSkip, {}),
    "AttentionRollout": (attr.AttentionRollout, {}),
    "GenericAttention": (attr.GenericAttention, {}),
    "TransformerAttribution": (attr.TransformerAttribution, {}),
    "LeGrad": (attr.LeGrad, {}),
    "TokenTM": (attr.TokenTM, {}),
    "AGCam": (attr.AGCam, {}),
    "AttentionGradCam": (attr.AttentionGradCam, {}),
    "GradCam": (attr.GradCam, {}),
    "FinerCam": (attr.FinerCam, {}),
    "FullGradPlus": (attr.FullGradPlus, {}),
    "FullGradPlus libra": (attr.FullGradPlus, {"gradients": "libra"}),
    "LRP gamma": (attr.LRP, {"rule": "gamma"}),
    "ResLRP": (attr.ResLRP, {}),
}
MASKS = {
    "RISE": (attr.RISE, {"n_masks": 1000}),
    "TIS": (attr.TIS, {"n_masks": 256}),
    "MUTEX": (attr.MUTEX, {}),
    "ViTCX": (attr.ViTCX, {"n_masks": 100}),
}
FEWER = {"RISE": {"n_masks": 300}, "TIS": {"n_masks": 64}, "ViTCX": {"n_masks": 30}}


def maps(model: torch.nn.Module, images: torch.Tensor, targets: list[int]) -> dict[str, torch.Tensor]:
    return {
        name: kind(model).attribute(images, target=targets, **options)
        for name, (kind, options) in {**GRADIENTS, **MASKS}.items()
    }


def digits(folder: Path) -> None:
    scenes = digit_scenes("report", n=2)
    found = maps(embedded_model("class-token"), scenes.images, scenes.labels.tolist())
    draw(scenes.images, found, folder / "methods-digits.png", masks=scenes.masks)


def small_photographs(folder: Path) -> None:
    """Three free photographs as the CIFAR-10 ViT sees them, 32 x 32."""
    model, pictures = cifar_model(), cifar_photographs()
    prepare = preprocessing(model)
    x = torch.cat([prepare(picture) for picture in pictures.values()])
    found = maps(model, x, [CIFAR_CLASSES.index(name) for name in pictures])
    draw(prepare.inverse(x), found, folder / "methods-photographs.png", labels=list(pictures))


def photographs(folder: Path) -> None:
    """The quokka as a ViT-S/14 sees it that marks salient objects; its one output is the region that it marks."""
    picture, _ = quokka()
    model = saliency_vit()
    prepare = preprocessing(model.backbone)
    x = prepare(picture)
    scored = region_score(model, x)
    found = {}
    for name, (kind, options) in {**GRADIENTS, **MASKS}.items():
        # One output has no other class to differ from, and its decoder is no head that can be read at each layer.
        with contextlib.suppress(XattrError):
            options = {**options, **FEWER.get(name, {})}
            found[name] = kind(scored).attribute(x, target=0, **options)
    print("left out:", sorted({**GRADIENTS, **MASKS}.keys() - found.keys()))
    draw(prepare.inverse(x), found, folder / "methods-quokka.png")


def from_lowest(heat: torch.Tensor) -> torch.Tensor:
    """As the papers of mask methods draw them: a pixel has the mean score of its masks, so only differences tell."""
    return heat - heat.amin((1, 2, 3), keepdim=True)


def draw(images: torch.Tensor, found: dict[str, torch.Tensor], path: Path, **options: object) -> None:
    """Two rows of methods for each picture would be too wide in one: halves below one another."""
    found = {name: from_lowest(heat) if name in MASKS else heat for name, heat in found.items()}
    names = list(found)
    parts = []
    for half in (names[: len(names) // 2], names[len(names) // 2 :]):
        part = path.with_stem(f"{path.stem}-part")
        comparison(images, {name: found[name] for name in half}, save=part, **options)
        parts.append(Image.open(part).convert("RGB"))
        part.unlink()
    whole = Image.new("RGB", (max(p.width for p in parts), sum(p.height for p in parts)), "white")
    top = 0
    for part in parts:
        whole.paste(part, (0, top))
        top += part.height
    whole.thumbnail((1600, 1600))
    whole.save(path.with_suffix(".jpg"), quality=85)


if __name__ == "__main__":
    torch.set_num_threads(1)
    digits(Path(sys.argv[1]))
    small_photographs(Path(sys.argv[1]))
    photographs(Path(sys.argv[1]))
