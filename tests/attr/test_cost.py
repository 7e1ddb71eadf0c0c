"""What an explanation of ViT-B/16 costs, counted; and that what is left out of the backward is 0."""

import pytest
import timm
import torch

from tests.attr.test_families import COMPLETE
from tests.models import images, relative_error
from xattr.attr import AttentionRollout, GenericAttention, GradientXToken, GradSkip
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
