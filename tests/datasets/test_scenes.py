"""The scenes are what they claim: reproducible, disjoint between splits, masks exact, neither bright nor central."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from xattr.datasets import Pairs, Scenes, digit_scenes, pair_scenes

torch.set_num_threads(1)

SPLITS = ("train", "tuning", "report")


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """The source digits from scikit-learn itself, not from the file under test: [1797, 8, 8] in [0, 1], [1797]."""
    found = pytest.importorskip("sklearn.datasets").load_digits()
    return torch.from_numpy(found.images / 16).float(), torch.from_numpy(found.target).long()


def cell_of(image: torch.Tensor, cell: int) -> torch.Tensor:
    """[1, 24, 24] -> [8, 8]."""
    row, column = divmod(cell, 3)
    return image[0, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8]


def same(first: Scenes | Pairs, second: Scenes | Pairs) -> bool:
    return all(torch.equal(a, b) for a, b in zip(vars(first).values(), vars(second).values(), strict=True))


@pytest.mark.parametrize("split", SPLITS)
def test_same_call_gives_same_scenes(split: str) -> None:
    first = digit_scenes(split, n=64)
    np.random.seed(5)
    torch.manual_seed(5)
    assert same(first, digit_scenes(split, n=64))
    assert same(first, digit_scenes(split, n=200)[:64]), "a longer call starts with the scenes of a shorter one"
    assert not torch.equal(first.images, digit_scenes(split, n=64, seed=1).images)
    assert same(pair_scenes(split, n=64), pair_scenes(split, n=80)[:64])
    assert not torch.equal(pair_scenes(split, n=64).images, pair_scenes(split, n=64, seed=1).images)


def test_scenes_are_pinned() -> None:
    """Published numbers stay comparable: the recipe's stream of random numbers must never move."""
    scenes = digit_scenes("report", n=3)
    assert scenes.labels.tolist() == [2, 2, 6]
    assert scenes.cells.tolist() == [2, 2, 2]
    assert scenes.sources[0].tolist() == [-1, -1, 1051, 1019, -1, -1, 685, 237, 768]
    assert (scenes.images * 16).sum().item() == 5674


def test_global_generators_are_left_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    digit_scenes("report", n=4)
    pair_scenes(n=4)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()


def test_splits_share_no_source_digit() -> None:
    used = {}
    for split in SPLITS:
        indices = [digit_scenes(split, n=2000, seed=seed).sources for seed in (None, 7)]
        indices.append(pair_scenes(split, n=500).sources)
        used[split] = set(torch.cat(indices).flatten().tolist()) - {-1}
    for first, second in itertools.combinations(SPLITS, 2):
        assert not used[first] & used[second]
    assert {split: len(found) for split, found in used.items()} == {"train": 1257, "tuning": 180, "report": 360}


@pytest.mark.parametrize("split", SPLITS)
def test_masks_are_exactly_the_ink(split: str, digits: tuple[torch.Tensor, torch.Tensor]) -> None:
    images, classes = digits
    scenes = digit_scenes(split, n=100)
    for i in range(len(scenes)):
        cell = int(scenes.cells[i])
        expected = images[scenes.sources[i, cell]]
        assert torch.equal(cell_of(scenes.images[i], cell), expected)
        assert torch.equal(cell_of(scenes.masks[i], cell), expected > 0)
        assert scenes.masks[i].sum() == (expected > 0).sum(), "ink of the digit outside its cell"
        assert scenes.labels[i] == classes[scenes.sources[i, cell]]
        x1, y1, x2, y2 = scenes.boxes[i].tolist()
        assert torch.equal(scenes.images[i, 0, y1:y2, x1:x2], expected)


def test_other_cells_are_empty_or_shuffled(digits: tuple[torch.Tensor, torch.Tensor]) -> None:
    images, _ = digits
    scenes = digit_scenes("report", n=100)
    counts = set()
    for i in range(len(scenes)):
        others = [cell for cell in range(9) if cell != scenes.cells[i]]
        counts.add(sum(int(scenes.sources[i, cell]) >= 0 for cell in others))
        for cell in others:
            found, source = cell_of(scenes.images[i], cell), int(scenes.sources[i, cell])
            if source < 0:
                assert not found.any()
            else:
                assert torch.equal(found.flatten().sort().values, images[source].flatten().sort().values)
                assert not torch.equal(found, images[source]), "a digit that is not shuffled"
    assert counts == {3, 4, 5, 6}


def test_place_and_brightness_do_not_give_the_answer() -> None:
    scenes = digit_scenes("report", n=4000)
    share = torch.bincount(scenes.cells, minlength=9) / len(scenes)
    assert (share - 1 / 9).abs().max() < 0.02
    assert (torch.bincount(scenes.labels, minlength=10) / len(scenes) - 0.1).abs().max() < 0.05
    sums = torch.nn.functional.avg_pool2d(scenes.images, 8).flatten(1)  # [n, 9], brightness of each cell
    assert (sums.argmax(dim=1) == scenes.cells).float().mean() < 0.35
    filled = scenes.sources >= 0
    filled[torch.arange(len(scenes)), scenes.cells] = False
    item = sums.gather(1, scenes.cells[:, None]).mean()
    assert (item - sums[filled].mean()).abs() < 0.02 * item, "shuffled digits are as bright as true ones"


def test_pairs_have_two_classes_and_disjoint_masks(digits: tuple[torch.Tensor, torch.Tensor]) -> None:
    images, classes = digits
    pairs = pair_scenes()
    assert len(pairs) == 200
    assert (pairs.labels[:, 0] != pairs.labels[:, 1]).all()
    assert (pairs.cells[:, 0] != pairs.cells[:, 1]).all()
    assert not (pairs.masks[:, 0] & pairs.masks[:, 1]).any()
    for i, item in itertools.product(range(len(pairs)), range(2)):
        cell = int(pairs.cells[i, item])
        expected = images[pairs.sources[i, cell]]
        assert torch.equal(cell_of(pairs.images[i], cell), expected)
        assert torch.equal(cell_of(pairs.masks[i, item], cell), expected > 0)
        assert pairs.masks[i, item].sum() == (expected > 0).sum()
        assert pairs.labels[i, item] == classes[pairs.sources[i, cell]]
    assert set(((pairs.sources >= 0).sum(dim=1) - 2).tolist()) == {2, 3, 4, 5}
    # Both classes must be spread: a second class that followed from the first would be no test of sensitivity.
    assert len(set(map(tuple, pairs.labels.tolist()))) > 60


def test_shapes_and_types() -> None:
    scenes, pairs = digit_scenes("tuning", n=5), pair_scenes("tuning", n=5)
    assert scenes.images.shape == scenes.masks.shape == pairs.images.shape == (5, 1, 24, 24)
    assert pairs.masks.shape == (5, 2, 1, 24, 24)
    assert scenes.boxes.shape == (5, 4)
    assert scenes.images.dtype == pairs.images.dtype == torch.float32
    assert scenes.masks.dtype == pairs.masks.dtype == torch.bool
    for integers in (scenes.labels, scenes.boxes, scenes.cells, scenes.sources, pairs.labels, pairs.cells):
        assert integers.dtype == torch.int64
    assert scenes.images.min() == 0
    assert scenes.images.max() == 1


def test_indexing() -> None:
    scenes = digit_scenes("tuning", n=6)
    assert same(scenes[4], scenes[4:5])
    assert same(scenes[-1], scenes[5:])
    assert same(scenes[scenes.labels >= 0], scenes)
    assert same(scenes[[3, 1]], scenes[torch.tensor([3, 1])])
    assert [scene.images.shape[0] for scene in scenes] == [1] * 6
    with pytest.raises(IndexError, match="scene 6 of 6"):
        scenes[6]
    assert pair_scenes(n=4)[1].masks.shape == (1, 2, 1, 24, 24)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match=r"unknown split 'test'.*train, tuning, report"):
        digit_scenes("test")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n must be at least 1, found 0"):
        digit_scenes("train", n=0)
