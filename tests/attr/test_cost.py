"""What an explanation of ViT-B/16 costs, counted; and that what is left out of the backward is 0."""

import pytest
import timm
import torch

from tests.attr.test_families import COMPLETE
from tests.models import images, relative_error, tiny
from xattr import attr
from xattr.attr import AttentionRollout, GenericAttention, GradientXToken, GradSkip, _masks
from xattr.metrics import count_flops
from xattr.trace import Inputs, observe
from xattr.trace.liveness import Liveness

# GFLOP with class token and with mean pooling, forward included.
LIMITS = {("token", "PAPER"): 63.0, ("avg", "PAPER"): 65.1, ("token", "DEFAULT"): 63.3, ("avg", "DEFAULT"): 65.5}
FORWARD = 35.128


@pytest.fixture(scope="module")
def base():
    torch.manual_seed(0)
    return {pool: timm.create_model("vit_base_patch16_224", global_pool=pool).eval() for pool in ("token", "avg")}


@pytest.mark.parametrize(("pool", "settings"), LIMITS)
def test_gradskip_on_vit_b(base, pool, settings):
    x, kept = images(1, 224), []
    explain = lambda: kept.append(GradSkip(base[pool]).explain(x, target=1, settings=getattr(GradSkip, settings)))
    assert FORWARD < count_flops(explain) / 1e9 <= LIMITS[pool, settings]
    (evidence,) = kept
    # With the prefix outside the walk the last block of a class-token model moves nothing.
    walked = 11 if (pool, settings) == ("token", "PAPER") else 12
    assert evidence.omega.shape == (walked, 1, 12)
    assert torch.isfinite(evidence.omega).all()


def test_forward_and_rollout_on_vit_b(base):
    x = images(1, 224)
    with torch.no_grad():
        forward = count_flops(lambda: base["token"](x)) / 1e9
    assert forward == pytest.approx(FORWARD, rel=0.005)
    assert count_flops(lambda: AttentionRollout(base["token"]).attribute(x, target=1)) / 1e9 <= 1.05 * forward


@pytest.mark.parametrize("name", COMPLETE)
def test_what_is_left_out_is_0(name, monkeypatch):
    x = images(3, dtype=torch.float64)
    columns = name not in ("class attention", "attention and MLP side by side")
    kinds = [GradSkip, GradientXToken, GenericAttention] if columns else []
    explain = lambda kind: kind(COMPLETE[name]().double()).attribute(
        x, target=[0, 1, 2], upsample=None, **({"signed": True} if kind is GradSkip else {})
    )
    found = [explain(kind) for kind in kinds]
    monkeypatch.setattr(Liveness, "finish", lambda self, scores: None)
    for kind, one in zip(kinds, found, strict=True):
        assert relative_error(one, explain(kind)) < 1e-12


def test_a_plan_leaves_out_queries_keys_and_unread_rows(monkeypatch):
    plans, finish = [], Liveness.finish

    def watched(self, scores):
        finish(self, scores)
        plans.extend((plan, columns.size, rows) for plan, columns, _, rows in self._plans)

    monkeypatch.setattr(Liveness, "finish", watched)
    for name, rows in (("timm DeiT distilled", [0, 1]), ("timm ViT, mean pool", list(range(1, 17)))):
        plans.clear()
        observe(COMPLETE[name](), Inputs.of(images()), rules="libra")
        fused = [plan for plan, width, _ in plans if width == 96]
        assert [plan.columns.tolist() for plan in fused] == [list(range(64, 96))] * 3
        last = [plan for plan, _, known in plans if known is not None][-3:]
        assert [plan.rows[1].tolist() for plan in last] == [rows] * 3
        assert all(plan.rows is None for plan, _, _ in plans[:-6])


# --- the methods that people compare with -----------------------------------------------------------------------------

# GFLOP of one map on ViT-B/16 as published, or as counted by others; at most 2 % more.
PUBLISHED = {
    "GenericAttention": (70.6, {}),
    "AttentionGradCam": (38.0, {}),
    "AGCam": (71.0, {}),
    "LeGrad": (61.0, {}),
    "TokenTM": (72.0, {}),
    "TransformerAttribution": (210.0, {}),
    "FullGradPlus": (71.5, {}),
    "FullGradPlus, libra": (64.0, {"gradients": "libra"}),
    "ResLRP": (71.7, {}),
    "FinerCam": (38.0, {}),
}
# Below the published number by more than 2 %, and why.
BELOW = {
    "AttentionGradCam": "of the one block that the backward passes only the rows that are read",
    "LeGrad": "behind the last attention only the rows that are read",
    "FullGradPlus": "behind the last attention only the rows that are read; nothing in front of the tokens",
    "FullGradPlus, libra": "no gradient of queries and keys, and as above",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_rivals_on_vit_b(base, name):
    published, options = PUBLISHED[name]
    method = getattr(attr, name.partition(",")[0])(base["token"])
    spent = count_flops(lambda: method.attribute(images(1, 224), target=1, **options)) / 1e9
    assert FORWARD < spent <= 1.02 * published
    assert (spent >= 0.98 * published) == (name not in BELOW)


def test_generic_attention_of_many_targets_on_vit_b(base):
    x = images(1, 224)
    spent = count_flops(lambda: attr.GenericAttention(base["token"]).attribute_targets(x, [1, 2])) / 1e9
    assert spent <= (1 + 1.05 * 2) * FORWARD


def vit_flops(width, depth, patches, pixels, classes, tokens):
    """A ViT with MLPs of four times its width on some tokens; all patches are embedded."""
    block = 2 * tokens * width * (3 + 1 + 8) * width + 4 * tokens**2 * width
    return 2 * patches * pixels * width + depth * block + 2 * width * classes


SMALL, BASE = (32, 3, 16, 192, 5), (768, 12, 196, 768, 1000)


def tis(sizes, masks, iterations):
    """A pass, one that finds the tokens, a trial on some of them; half of the patches for each mask; k-means."""
    width, depth, patches, *_ = sizes
    # The trial takes a number near an eighth of the patches that is no other length in the model.
    setup = 2 * vit_flops(*sizes, 1 + patches) + vit_flops(*sizes, 1 + {16: 6, 196: 24}[patches])
    each = vit_flops(*sizes, 1 + patches // 2)
    return setup + masks * each + iterations * 2 * width * depth * masks * patches


def mutex(sizes):
    """As `tis`, and the maps."""
    width, depth, patches, *_ = sizes
    return tis(sizes, 54, 0) + depth * 2 * (1 + patches) ** 2 * width


def heavier(found, wanted):
    """What the count has on top, as a share."""
    return (found - wanted) / wanted


def test_the_formula_of_a_forward(base):
    assert heavier(vit_flops(*BASE, 197) / 1e9, FORWARD) == pytest.approx(0, abs=1e-3)
    with torch.no_grad():
        assert count_flops(lambda: tiny()(images(1))) == vit_flops(*SMALL, 17)


def test_tis_is_as_published():
    """Counted on a small model, where the formula is exact, and extrapolated by it to ViT-B."""
    model, x = tiny(), images(1)
    count = lambda masks, iterations: count_flops(
        lambda: attr.TIS(model).attribute(x, target=1, n_masks=masks, iterations=iterations)
    )
    for masks, iterations in ((5, 1), (9, 2)):
        by_scores = 2 * masks * 16
        assert count(masks, iterations) == tis(SMALL, masks, iterations) + by_scores
    assert tis(BASE, 1024, 1) - tis(BASE, 1024, 0) == pytest.approx(3.70e9, rel=1e-3)
    assert heavier(tis(BASE, 1024, 0) / 1e9, 17629) < 0.02  # 0.23 of it for each mask, as all patches are embedded


def test_mutex_is_as_published(monkeypatch):
    model, x, kept = tiny().double(), images(1, dtype=torch.float64), []
    monkeypatch.setattr(_masks.Run, "each", lambda run, counts, *rest: kept.append(counts) or torch.ones(counts.shape))
    setup = count_flops(lambda: attr.MUTEX(model).attribute(x, target=1))
    assert kept[0].shape == (1, 54)
    assert setup == mutex(SMALL) - tis(SMALL, 54, 0) + tis(SMALL, 0, 0) + 2 * 54 * 16
    assert 985 < mutex(BASE) / 1e9 < 1.02 * 1004  # half of the patches in each mask, without ties


def test_rise_and_vit_cx_cost_forwards_by_masks():
    model, x = tiny(), images(1)
    forward = vit_flops(*SMALL, 17)
    for masks in (3, 6):
        by_scores = 2 * masks * 32**2
        assert count_flops(lambda n=masks: attr.RISE(model).attribute(x, target=1, n_masks=n)) == (
            (masks + 2) * forward + by_scores
        )
        gram = 2 * 32**2 * 32**2  # of the channels; 59 GFLOP on ViT-B
        assert count_flops(lambda n=masks: attr.ViTCX(model).attribute(x, target=1, n_masks=n)) == (
            (2 * masks + 2) * forward + gram
        )
