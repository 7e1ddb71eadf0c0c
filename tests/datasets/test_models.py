"""The embedded models do what their cards say, measured again here with code of its own."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer

import xattr.datasets.models as models
from xattr.datasets import (
    MODELS,
    SEEDS,
    Scenes,
    digit_scenes,
    embedded_model,
    model_card,
    pair_scenes,
    untrained_model,
)

torch.set_num_threads(1)

ALL = [(name, seed) for seed in SEEDS for name in MODELS]
UNSEEN = 20261  # neither the seed of the cards' scenes nor one that a training used


@cache
def scenes() -> Scenes:
    return digit_scenes("report", n=500, seed=UNSEEN)


@cache
def correct(name: str, seed: int) -> torch.Tensor:
    """Bool [500]: which of the unseen scenes the model gets right."""
    return right(embedded_model(name, seed), scenes().images, scenes().labels)


@torch.inference_mode()
def right(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return model(images).argmax(dim=1) == labels


@pytest.mark.parametrize(("name", "seed"), ALL)
def test_accuracy_on_unseen_scenes(name: str, seed: int) -> None:
    found = correct(name, seed).double().mean().item()
    assert found >= 0.90
    # Four standard errors of 500 scenes: a card that belongs to other weights does not get through.
    promised = model_card(name, seed)["accuracy"]["report"]
    assert abs(found - promised) < 4 * (promised * (1 - promised) / 500) ** 0.5 + 0.005


@pytest.mark.parametrize(("name", "seed"), ALL)
def test_cards_fulfil_the_criteria(name: str, seed: int) -> None:
    card = model_card(name, seed)
    assert (card["name"], card["seed"]) == (name, seed)
    assert card["licence"] == "CC BY 4.0"
    assert card["command"] == f"python benchmarks/train_embedded.py --model {name} --seed {seed}"
    assert {"torch", "timm"} <= set(card["versions"])
    assert card["parameters"] == sum(p.numel() for p in embedded_model(name, seed).parameters())
    assert min(card["accuracy"].values()) >= 0.90
    for control in ("brightness", "centre"):
        assert card[control]["stricter"] == max(card[control]["mask"], card[control]["cell"]) <= 0.35
    assert card["cover_item"] <= 0.15
    assert card["cover_other"] <= 0.03


@pytest.mark.parametrize(("name", "seed"), ALL)
def test_covering_the_digit_removes_the_class(name: str, seed: int) -> None:
    some, model = scenes()[:300], embedded_model(name, seed)
    item, other = some.images.clone(), some.images.clone()
    for i in range(len(some)):
        x1, y1, x2, y2 = some.boxes[i].tolist()
        item[i, :, y1:y2, x1:x2] = 0
        shuffled = [cell for cell in range(9) if some.sources[i, cell] >= 0 and cell != some.cells[i]]
        row, column = divmod(shuffled[i % len(shuffled)], 3)
        other[i, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 0
    assert right(model, item, some.labels).double().mean() <= 0.15
    kept = right(model, other, some.labels).double().mean()
    assert kept >= correct(name, seed)[:300].double().mean() - 0.03


def test_brightness_and_centre_do_not_point_at_the_digit() -> None:
    some = digit_scenes("report", n=2000, seed=UNSEEN)
    noise = torch.rand(some.images.shape, generator=torch.Generator().manual_seed(0)) * 1e-3
    top = (some.images + noise).flatten(1).argmax(dim=1, keepdim=True)
    assert some.masks.flatten(1).gather(1, top).double().mean() <= 0.35
    assert (some.cells == 4).double().mean() <= 0.35


@pytest.mark.parametrize("name", MODELS)
def test_two_digits_are_both_seen(name: str) -> None:
    """Without it, pairs would test no model's sensitivity to the class."""
    pairs = pair_scenes(n=200)
    with torch.inference_mode():
        top = embedded_model(name)(pairs.images).topk(2).indices
    both = (top.sort(dim=1).values == pairs.labels.sort(dim=1).values).all(dim=1).double().mean()
    assert both > 0.6  # chance is 1/45


@pytest.mark.parametrize("name", MODELS)
def test_untrained_models_know_nothing(name: str) -> None:
    model = untrained_model(name)
    assert right(model, scenes().images, scenes().labels).double().mean() < 0.25
    again, other = untrained_model(name).state_dict(), untrained_model(name, seed=1).state_dict()
    assert all(torch.equal(value, again[key]) for key, value in model.state_dict().items())
    assert not torch.equal(model.head.weight, other["head.weight"])


@pytest.mark.parametrize("name", MODELS)
def test_architecture(name: str) -> None:
    state = torch.get_rng_state()
    model = embedded_model(name)
    assert torch.equal(state, torch.get_rng_state()), "loading a model moved the global generator"
    assert isinstance(model, VisionTransformer)
    assert not any(module.training for module in model.modules())
    assert all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())
    assert abs(sum(p.numel() for p in model.parameters()) - 229_500) < 3_000
    assert model.num_prefix_tokens == {"class-token": 1, "mean-pool": 0, "distilled": 2}[name]
    assert len(model.blocks) == 8
    for block in model.blocks:
        assert block.attn.num_heads == 6
        assert block.attn.fused_attn
        assert block.attn.qkv.bias is not None
    assert model(torch.zeros(2, 1, 24, 24)).shape == (2, 10)


def test_distilled_reads_both_tokens() -> None:
    model, some = embedded_model("distilled"), scenes()
    with torch.inference_mode():
        tokens = model.forward_features(some.images)
        for head, token in ((model.head, tokens[:, 0]), (model.head_dist, tokens[:, 1])):
            assert (head(token).argmax(dim=1) == some.labels).double().mean() >= 0.85


@pytest.mark.parametrize(("name", "seed"), ALL)
def test_weights_are_stored_in_half_precision_and_load(name: str, seed: int) -> None:
    path = models._find(name, seed, ".safetensors")
    stored, loaded = load_file(path), embedded_model(name, seed).state_dict()
    assert stored.keys() == loaded.keys()
    assert all(
        value.dtype == torch.float16 and torch.equal(value.float(), loaded[key]) for key, value in stored.items()
    )


def test_seeds_are_different_models() -> None:
    for name in MODELS:
        first, *others = [embedded_model(name, seed).head.weight for seed in SEEDS]
        assert not any(torch.allclose(first, other, atol=1e-2) for other in others)


def test_shipped_files_stay_small() -> None:
    folder = Path(models.__file__).parent
    shipped = [path for path in folder.rglob("*") if path.suffix in {".npz", ".safetensors", ".json"}]
    assert len(shipped) == 1 + 2 * (len(MODELS) + 1), "one digits file, and weights and card of seed 0 of each model"
    assert sum(path.stat().st_size for path in shipped) <= 3_000_000
    assert (folder / "weights" / "cifar-0.safetensors").stat().st_size <= 1_000_000


def test_wrong_names_and_seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for function in (embedded_model, model_card, untrained_model):
        with pytest.raises(ValueError, match="unknown embedded model 'resnet'; choose one of class-token"):
            function("resnet")
    with pytest.raises(ValueError, match="no embedded model with seed 3"):
        embedded_model("mean-pool", seed=3)
    # An installed copy has no benchmarks folder beside the package.
    monkeypatch.setattr(models, "_CHECKOUT", tmp_path)
    with pytest.raises(FileNotFoundError, match="repository"):
        embedded_model("mean-pool", seed=1)
    assert json.dumps(model_card("mean-pool", seed=0))
