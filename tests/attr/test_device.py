"""What a pass asks the device for, and how many maps are alive, counted."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from tests.models import images, tiny
from xattr.attr import GradSkip
from xattr.attr._gradskip_backward import backward
from xattr.attr._gradskip_walk import walk
from xattr.metrics import peak_bytes
from xattr.trace import Inputs


class Waits(TorchDispatchMode):
    """Names the operations that wait for a value computed from an activation, that is, from floating point."""

    def __init__(self):
        super().__init__()
        self.seen, self.derived = [], WeakTensorKeyDictionary()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        derived = any(t.is_floating_point() or t in self.derived for t in tensors)
        if derived and name in ("_local_scalar_dense", "is_nonzero", "nonzero", "equal", "masked_select", "item"):
            self.seen.append(name)
        out = func(*args, **(kwargs or {}))
        if derived:
            self.derived.update({t: True for t in tree_leaves(out) if isinstance(t, torch.Tensor)})
        return out


@pytest.mark.parametrize("settings", ["PAPER", "DEFAULT"])
@pytest.mark.parametrize("pool", ["token", "avg"])
def test_a_pass_waits_for_no_value(pool, settings):
    """But for one pair of flags, that `walk_start` fetches at once by `tolist`, which this mode does not see."""
    model, x, chosen = tiny(global_pool=pool), images(), getattr(GradSkip, settings)
    with Waits() as waits:
        found = backward(model, Inputs((x,)), 1, rules=chosen.gradients)
        assert waits.seen == []
        walk(found, chosen, True, "bilinear", 2**30)
    assert waits.seen == []
    with Waits() as waits:
        bool((x * 2 > 1).any())
    assert waits.seen == ["_local_scalar_dense"]  # the mode sees what it must


def most_alive(at_least, explain):
    return peak_bytes(explain, at_least)


def test_the_count_of_what_is_alive():
    def one_after_the_other():
        for _ in range(4):
            torch.ones(1000).exp()

    kept = []
    assert most_alive(4000, one_after_the_other) <= 2 * 4000
    assert most_alive(4000, lambda: kept.extend(torch.ones(1000) for _ in range(4))) == 4 * 4000


def test_maps_of_one_layer_are_alive_at_1370_tokens():
    depth, tokens = 12, 37 * 37 + 1
    model = tiny(img_size=148, patch_size=4, embed_dim=8, num_heads=1, depth=depth)
    one = 4 * (tokens - 1) ** 2
    forward = most_alive(one, lambda: backward(model, Inputs((images(1, 148),)), 1))
    assert forward <= one  # fused attention stays fused, in the pass and in its backward
    most = most_alive(one, lambda: GradSkip(model).attribute(images(1, 148), target=1))
    assert most <= 9 * one  # the steps of one layer; maps and their gradients of all layers would be 24


@pytest.mark.parametrize("heads", [1, 4])
def test_eight_images_stay_within_the_budget(heads):
    model, x = tiny(img_size=96, patch_size=4, embed_dim=8, num_heads=heads, depth=2), images(8, 96)
    one = 4 * (24 * 24) ** 2  # one head of one image; no other tensor is as large
    explain = lambda budget: GradSkip(model).attribute(x, target=1, map_budget=budget, upsample=None)
    assert most_alive(one, lambda: explain(2**30)) > 16 * heads * one
    for count in (1, 2, 4):
        budget = count * (6 * heads + 4) * 4 * 577**2
        assert 4 * count * heads * one < most_alive(one, lambda: explain(budget)) <= budget  # noqa: B023
