"""GradSkip against the literal oracle, and the identities of its formulas."""

import dataclasses
import itertools

import pytest
import torch

from tests.models import EinsumAttentionViT, images, relative_error, sharpen, tiny
from tests.oracles import test_oracle as scenes
from tests.oracles.gradskip import gradskip as oracle
from tests.oracles.vit import ViTConfig, prefix_count
from tests.oracles.vit import observe as oracle_pass
from xattr.attr import GradSkip, GradSkipSettings
from xattr.attr import _gradskip_steps as steps
from xattr.datasets import digit_scenes, embedded_model
from xattr.trace import Inputs, gradients, observe

READS = dataclasses.replace(GradSkip.DEFAULT, prefix_tokens="exclude", reads=True)
PRESETS = {"PAPER": GradSkip.PAPER, "DEFAULT": GradSkip.DEFAULT, "READS": READS}
KINDS = tuple(scenes.MODELS)
EVERY_SETTING = {
    "alpha": (0.0, 1.0),
    "flow_threshold": (0.0, 0.5, "mean"),
    "prefix_tokens": ("include",),
    "gini_over": ("columns", "map"),
    "head_norm": ("max", "l1"),
    "head_filter": ("top25", "bottom25"),
    "embedding": ("input", "relevance", "value", "projected", "ratio", "none"),
    "row_norm": ("mean", "none"),
    "flow_sign": ("relu",),
    "gate": ("layer", "token"),
    "gate_norm": ("l1", "l2", "signed", "dot"),
    "start": ("uniform",),
    "reads": (True, False),
    "first_layer": (2,),
    "target_output": ("prob",),
}


def literal(model, image, settings, *, heads, pool, grid, target=1, read=None):
    """The oracle's map, signed."""
    values = dataclasses.asdict(settings)
    config = ViTConfig(heads, pool, rules=values.pop("gradients"))
    record = oracle_pass(model.state_dict(), image, config, target, values.pop("target_output"))
    prefix = prefix_count(record.state)
    read = {"token": [0], "distilled": [0, 1], "avg": range(prefix, record.x_last.shape[1])}[pool]
    return oracle(record, grid, prefix, read=list(read), signed=True, **values)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_oracle_in_every_detail(kind, preset):
    model, settings, image = scenes.build(kind), PRESETS[preset], scenes.images()
    wanted = literal(model, image, settings, heads=scenes.HEADS, pool=scenes.pool_of(kind), grid=scenes.GRID)
    found = GradSkip(model).explain(image, target=1, settings=settings, signed=True, upsample=None)
    assert relative_error(found.map[:, 0], wanted["map"]) < 1e-9
    for name in ("omega", "flow", "sparsity", "gini", "beta", "relevance"):
        assert relative_error(getattr(found, name), torch.stack(wanted[name][::-1])) < 1e-9, name
    assert torch.allclose(found.rho_cls, wanted["rho_cls"], atol=1e-12)
    assert found.layers == tuple(f"blocks.{l - 1}.attn" for l in wanted["layers"][::-1])
    assert 0.02 < float(found.beta.mean()) < 0.98  # a model on which the gate matters


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in EVERY_SETTING.items() for v in values])
@pytest.mark.parametrize("preset", PRESETS)
def test_every_setting_equals_the_oracle(name, value, preset):
    kind = "distilled" if name in ("prefix_tokens", "reads") else "token"
    model, image = scenes.build(kind, depth=3), scenes.images()
    settings = dataclasses.replace(PRESETS[preset], **{name: value})
    wanted = literal(model, image, settings, heads=scenes.HEADS, pool=scenes.pool_of(kind), grid=scenes.GRID)
    found = GradSkip(model).attribute(image, target=1, settings=settings, signed=True, upsample=None)
    assert relative_error(found[:, 0], wanted["map"]) < 1e-9


def test_cls_start_equals_the_oracle():
    model, image = scenes.build("token"), scenes.images()
    settings = dataclasses.replace(GradSkip.PAPER, prefix_tokens="include", start="cls")
    wanted = literal(model, image, settings, heads=scenes.HEADS, pool="token", grid=scenes.GRID)
    found = GradSkip(model).attribute(image, target=1, settings=settings, signed=True, upsample=None)
    assert relative_error(found[:, 0], wanted["map"]) < 1e-9


@pytest.mark.parametrize("gradients", ["plain", "libra"])
def test_plain_gradients_equal_the_oracle_from_a_uniform_start(gradients):
    # Plain input times gradient behind a LayerNorm is rounding noise, so the default start would compare noise.
    settings = dataclasses.replace(GradSkip.PAPER, gradients=gradients, start="uniform")
    for kind in ("token", "avg"):
        model, image = scenes.build(kind), scenes.images()
        wanted = literal(model, image, settings, heads=scenes.HEADS, pool=scenes.pool_of(kind), grid=scenes.GRID)
        found = GradSkip(model).attribute(image, target=1, settings=settings, signed=True, upsample=None)
        assert relative_error(found[:, 0], wanted["map"]) < 1e-9


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("name", "pool"), [("class-token", "token"), ("mean-pool", "avg"), ("distilled", "distilled")])
def test_equals_the_oracle_on_trained_models(name, pool, preset, dtype, tolerance):
    model, sample = embedded_model(name).to(dtype), digit_scenes("tuning", n=2)
    image, target = sample.images.to(dtype), sample.labels
    wanted = literal(
        model.double(), image.double(), PRESETS[preset], heads=6, pool=pool, grid=(6, 6), target=target.tolist()
    )
    found = GradSkip(model.to(dtype)).attribute(image, target, settings=PRESETS[preset], signed=True, upsample=None)
    assert found.dtype == dtype
    assert relative_error(found[:, 0], wanted["map"]) < tolerance


# --- a test must be able to fail: removing an ingredient moves the map ----------------------------------------------

REMOVED = {
    "PAPER": {
        "gate": ("main_share", lambda a, x, g, s: torch.full_like(a[..., 0], 0.5)),
        "omega": ("head_weights", lambda flow, sparsity, gini, s: torch.ones_like(flow)),
        "flow": ("flow", lambda edges, threshold: torch.ones_like(edges[..., 0, 0])),
        "gini": ("sparsity", lambda A, over: torch.ones_like(A[..., 0, 0])),
        "dA": (
            "weighted_attention",
            lambda A, edges, o, nu, s, f=steps.weighted_attention: f(A, A, o, nu, s),
        ),
        "nu": (
            "weighted_attention",
            lambda A, edges, o, nu, s, f=steps.weighted_attention: f(A, edges, o, torch.ones_like(nu), s),
        ),
        "row_norm": {"row_norm": "none"},
        "start": {"start": "uniform"},
    },
    "DEFAULT": {
        "prefix": {"prefix_tokens": "exclude"},
        "relevance": {"embedding": "input"},
        "dot": {"gate_norm": "l1"},
        "token gate": {"gate": "layer"},
    },
    "READS": {
        "reads": {"reads": False},
        "relevance": {"embedding": "input"},
        "dot": {"gate_norm": "l1"},
        "token gate": {"gate": "layer"},
    },
}


@pytest.mark.parametrize(("preset", "removed"), [(p, r) for p, parts in REMOVED.items() for r in parts])
def test_each_ingredient_moves_the_map(preset, removed, monkeypatch):
    model, image = scenes.build("token"), scenes.images()
    explain = lambda settings: GradSkip(model).attribute(image, target=1, settings=settings, signed=True, upsample=None)
    whole = explain(PRESETS[preset])
    change, settings = REMOVED[preset][removed], PRESETS[preset]
    if isinstance(change, dict):
        settings = dataclasses.replace(settings, **change)
    else:
        monkeypatch.setattr(steps, *change)
    assert relative_error(explain(settings), whole) > 100 * 1e-5


# --- identities -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_mass_is_kept_by_the_walk(preset):
    settings = dataclasses.replace(PRESETS[preset], reads=False)
    for kind in ("token", "avg", "distilled"):
        seen = GradSkip(scenes.build(kind)).explain(scenes.images(), target=1, settings=settings)
        mass = seen.relevance.sum(-1)
        assert torch.allclose(mass, seen.start.sum(-1).expand_as(mass), atol=1e-12 * float(seen.start.abs().max()))


def test_reads_add_their_mass():
    model, image = scenes.build("token"), scenes.images()
    seen = GradSkip(model).explain(image, target=1, settings=READS)
    wanted = literal(model, image, READS, heads=scenes.HEADS, pool="token", grid=scenes.GRID)
    reads = sum(part.sum(-1) for part in wanted["reads"])
    assert float(reads.abs().min()) > 0
    assert torch.allclose(seen.relevance[0].sum(-1), seen.start.sum(-1) + reads, rtol=1e-9)


def test_step_identities_on_random_inputs():
    g = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.rand(*shape, generator=g, dtype=torch.float64)
    for _ in range(20):
        A, dA = draw(2, 3, 7, 7), draw(2, 3, 7, 7) - 0.5
        W = steps.weighted_attention(A, A * dA, draw(2, 3), draw(2, 1, 7), GradSkip.PAPER)
        beta, R = draw(2, 7), draw(2, 7)
        assert torch.allclose(W.sum(-1), torch.ones(2, 7, dtype=torch.float64))
        after = steps.step(R, W, beta)
        assert torch.allclose(after.sum(-1), R.sum(-1))  # I3: the mass is kept
        assert bool((after >= 0).all())  # and so is positivity
        # I4: two starts of equal mass forget each other at most as fast as the Dobrushin coefficient says.
        other = draw(2, 7)
        other = other / other.sum(-1, keepdim=True) * R.sum(-1, keepdim=True)
        share = draw(2, 1)
        tau = 0.5 * (W[:, :, None] - W[:, None]).abs().sum(-1).amax((1, 2))
        apart = (steps.step(R, W, share) - steps.step(other, W, share)).abs().sum(-1)
        bound = (1 - share[:, 0] + share[:, 0] * tau) * (R - other).abs().sum(-1)
        assert bool((apart <= bound + 1e-12).all())
        # I10: the vector recursion is the matrix accumulated from the identity.
        matrix = W.mT * beta[:, None] + torch.diag_embed(1 - beta)
        assert torch.allclose(after, (matrix @ R[..., None])[..., 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("settings", PRESETS.values(), ids=PRESETS)
def test_gate_of_an_identity_block_and_of_a_block_without_skip(settings):
    x, g = torch.randn(2, 5, 4, dtype=torch.float64), torch.randn(2, 5, 4, dtype=torch.float64)
    zero, R = torch.zeros_like(x), torch.rand(2, 5, dtype=torch.float64)
    W = torch.rand(2, 5, 5, dtype=torch.float64).softmax(-1)
    assert torch.equal(steps.step(R, W, steps.main_share(zero, x, g, settings)), R)  # I5: a = 0
    assert torch.equal(steps.main_share(x, zero, g, settings), torch.ones_like(steps.main_share(x, zero, g, settings)))
    assert torch.equal(steps.main_share(x, x, zero, settings), torch.zeros_like(steps.main_share(x, x, g, settings)))


def test_gini():
    uniform, one_hot = torch.full((7,), 0.3, dtype=torch.float64), torch.eye(7, dtype=torch.float64)[3]
    assert float(steps.gini(uniform)) == pytest.approx(0, abs=1e-12)
    assert float(steps.gini(one_hot)) == pytest.approx(6 / 7, abs=1e-12)
    assert float(steps.gini(torch.zeros(7))) == 0
    values = torch.rand(7, dtype=torch.float64)
    for changed in (values * 12.5, values[torch.randperm(7)]):
        assert float(steps.gini(changed)) == pytest.approx(float(steps.gini(values)), abs=1e-12)


@pytest.mark.parametrize(
    ("values", "how", "wanted"),
    [
        ([1.0, 2.0, 3.0], "minmax", [0.0, 0.5, 1.0]),
        ([1.0, 2.0, 4.0], "max", [0.25, 0.5, 1.0]),
        ([1.0, 2.0, 5.0], "l1", [0.125, 0.25, 0.625]),
        ([1.0, 2.0], "minmax", [0.5, 1.0]),  # two heads: min-max would make them exactly 0 and 1
        ([1.0, 1.0005, 1.0002], "minmax", [1.0, 1.0, 1.0]),  # hardly any difference: noise must not decide
        ([1.0, 1.0005, 1.0002], "l1", [1.0, 1.0, 1.0]),
        ([0.0, 0.0, 0.0], "minmax", [1.0, 1.0, 1.0]),
        ([0.7], "minmax", [1.0]),
    ],
)
def test_indicators_over_heads(values, how, wanted):
    found = steps.normalise_heads(torch.tensor([values], dtype=torch.float64), how)
    assert found.tolist()[0] == pytest.approx(wanted)


def test_flow_threshold():
    A = torch.ones(1, 3, 2, 2, dtype=torch.float64)
    dA = torch.tensor([10.0, -1.01, 0.99], dtype=torch.float64).view(1, 3, 1, 1).expand_as(A)
    assert steps.flow(A * dA, 0.1)[0].tolist() == pytest.approx([10, 1.01, 0])
    assert steps.flow(A * dA, "mean")[0].tolist() == pytest.approx([10, 0, 0])


def test_rows_without_gradient():
    A = torch.tensor([[0.2, 0.8], [0.6, 0.4]], dtype=torch.float64)[None, None]
    dA = torch.tensor([[1.0, -1.0], [0.0, 0.0]], dtype=torch.float64)[None, None]
    omega, nu = torch.ones(1, 1, dtype=torch.float64), torch.tensor([[[1.0, 3.0]]], dtype=torch.float64)
    W = steps.weighted_attention(A, A * dA, omega, nu, GradSkip.PAPER)[0]
    assert W.flatten().tolist() == pytest.approx([0.2 / 2.6, 2.4 / 2.6, 0.6 / 1.8, 1.2 / 1.8])
    identity = steps.weighted_attention(A, A * dA, omega, torch.zeros_like(nu), GradSkip.PAPER)[0]
    assert torch.equal(identity, torch.eye(2, dtype=torch.float64))


def test_head_filter_keeps_a_quarter():
    gini = torch.tensor([[0.5, 0.9, 0.1, 0.7, 0.2, 0.3]])
    for which, kept in (("top25", [1, 3]), ("bottom25", [2, 4])):
        settings = GradSkipSettings(head_filter=which)
        omega = steps.head_weights(torch.ones(1, 6), torch.ones(1, 6), gini, settings)
        assert torch.nonzero(omega[0])[:, 0].tolist() == kept


def test_rollout_is_a_special_case(monkeypatch):
    """I6: omega = 1, no |dA|, no nu, beta = 1/2, started on the class token kept in the walk."""
    from xattr.attr import AttentionRollout

    model, image = tiny(), images()
    settings = GradSkipSettings(prefix_tokens="include", start="cls", embedding="none")
    monkeypatch.setattr(steps, *REMOVED["PAPER"]["gate"])
    monkeypatch.setattr(steps, *REMOVED["PAPER"]["omega"])
    monkeypatch.setattr(steps, *REMOVED["PAPER"]["dA"])
    found = GradSkip(model).attribute(image, target=1, settings=settings, upsample=None)
    assert relative_error(found, AttentionRollout(model).attribute(image, target=1, upsample=None)) < 1e-6


def blocks_with_gradients(model, image):
    seen = observe(model, Inputs.of(image), rules="libra")
    blocks = seen.record.blocks
    found = iter(gradients(seen.score(1), [p for b in blocks for p in (b.x, b.z, b.attentions[0].out)]))
    return [(block, next(found), next(found), next(found)) for block in blocks]


@pytest.mark.parametrize("kind", ["token", "avg"])
def test_attention_times_its_gradient_decomposes_the_branch(kind):
    """I1 and I2: `sum_j A dA = <g_z, a - b_O>` for each query, and `<g_z, z> = <g_z, x> + <g_z, a>`."""
    model = scenes.build(kind)
    for block, _, g_z, g_out in blocks_with_gradients(model, scenes.images()):
        edges = (block.attentions[0].map() * block.attentions[0].map_gradient(g_out)).sum((1, 3))
        bias = model.get_submodule(block.path).proj.bias
        assert torch.allclose(edges, (g_z * (block.a - bias)).sum(-1), atol=1e-12, rtol=1e-10)
        parts = (g_z * block.x.value).sum(-1) + (g_z * block.a).sum(-1)
        assert torch.allclose((g_z * block.z.value).sum(-1), parts, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("kind", ["token", "avg"])
def test_signed_recursion_without_weights_is_gradient_x_token(kind):
    """`<g_x, x> = <g_z, x> + (A dA)^T 1` for each key token, where no bias stands between x and the values."""
    model = scenes.build(kind)
    with torch.no_grad():
        for block in model.blocks:
            block.norm1.bias.zero_()
            block.attn.qkv.bias.zero_()
    for block, g_x, g_z, g_out in blocks_with_gradients(model, scenes.images()):
        into = (block.attentions[0].map() * block.attentions[0].map_gradient(g_out)).sum((1, 2))
        wanted = (g_z * block.x.value).sum(-1) + into
        assert relative_error((g_x * block.x.value).sum(-1), wanted) < 1e-10


def test_no_gradient_on_patches_behind_the_last_block():
    """I9, and the reverse under mean pooling."""
    for kind, reads in (("token", [0]), ("distilled", [0, 1]), ("avg", list(range(1, 37)))):
        seen = observe(scenes.build(kind), Inputs.of(scenes.images()), rules="libra")
        (g_last,) = gradients(seen.score(1), [seen.record.last])
        assert torch.nonzero(g_last.abs().sum((0, 2)))[:, 0].tolist() == reads


# --- what the user sees ---------------------------------------------------------------------------------------------


def test_presets_are_what_is_documented():
    assert GradSkip.PAPER == GradSkipSettings()
    assert dataclasses.asdict(GradSkip.PAPER) == {
        **{"alpha": 0.5, "flow_threshold": 0.1, "gradients": "libra", "prefix_tokens": "exclude", "gini_over": "rows"},
        **{"head_norm": "minmax", "head_filter": None, "embedding": "input", "row_norm": "row", "flow_sign": "abs"},
        **{"gate": "layer", "gate_norm": "l1", "start": "gradient_x_input", "reads": False, "first_layer": 1},
        "target_output": "logit",
    }
    changed = {f for f, v in dataclasses.asdict(GradSkip.DEFAULT).items() if v != getattr(GradSkip.PAPER, f)}
    assert changed == {"prefix_tokens", "embedding", "gate", "gate_norm"}


def test_overrides_change_their_field_alone():
    model, image = tiny(), images()
    for name, value in {"alpha": 0.0, "flow_threshold": "mean", "gate": "layer", "head_norm": "max"}.items():
        by_keyword = GradSkip(model).explain(image, **{name: value})
        settings = dataclasses.replace(GradSkip.DEFAULT, **{name: value})
        assert by_keyword.settings == settings
        assert torch.equal(by_keyword.map, GradSkip(model).attribute(image, settings=settings))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"alpha": 1.5}, "alpha"),
        ({"gate": "row"}, "gate"),
        ({"gradients": "lrp"}, "gradients"),
        ({"flow_threshold": -1}, "flow_threshold"),
        ({"flow_threshold": "median"}, "flow_threshold"),
        ({"head_norm": "softmax"}, "head_norm"),
        ({"settings": "paper"}, "settings"),
        ({"upsample": "cubic"}, "upsample"),
    ],
)
def test_wrong_settings_are_named(wrong, named):
    with pytest.raises(ValueError, match=named):
        GradSkip(tiny()).attribute(images(), target=1, **wrong)
    with pytest.raises(TypeError, match=r"alfa.*alpha"):
        GradSkip(tiny()).attribute(images(), alfa=0.3)
    with pytest.raises(NotImplementedError, match="complete"):
        GradSkip(tiny()).compute_convergence_delta(images(), images(), images())
    with pytest.raises(ValueError, match="first_layer"):
        GradSkipSettings(first_layer=0)
    with pytest.raises(ValueError, match="include"):
        GradSkipSettings(start="cls")
    with pytest.raises(ValueError, match="prefix token"):
        GradSkip(tiny(global_pool="avg", class_token=False)).attribute(
            images(), settings=GradSkipSettings(start="cls", prefix_tokens="include")
        )


def test_evidence_names_layers_and_what_was_left_out():
    whole = GradSkip(tiny()).explain(images(), target=1)
    assert whole.layers == ("blocks.0.attn", "blocks.1.attn", "blocks.2.attn")
    assert whole.left_out == {}
    assert whole.beta.shape == (3, 2, 17)
    seen = GradSkip(tiny()).explain(images(), target=1, settings=READS)
    assert seen.layers == ("blocks.0.attn", "blocks.1.attn")
    assert list(seen.left_out) == ["blocks.2.attn"]
    assert seen.omega.shape == seen.gini.shape == (2, 2, 2)
    assert seen.beta.shape == (2, 2, 16)
    assert seen.target == 1
    late = dataclasses.replace(READS, first_layer=9)
    seen = GradSkip(tiny()).explain(images(), target=1, settings=late, signed=True, upsample=None)
    assert seen.layers == ()
    assert torch.equal(seen.map.flatten(1), seen.start)
    assert len(seen.left_out) == 3


def test_predicted_class_is_the_default_target():
    model, image = tiny(), images(4)
    predicted = model(image).argmax(1)
    assert len(set(predicted.tolist())) > 1
    seen = GradSkip(model).explain(image)
    assert torch.equal(seen.target, predicted)
    assert torch.equal(seen.map, GradSkip(model).attribute(image, target=predicted))


def test_map_budget_changes_nothing():
    model, image = tiny(), images(3)
    whole = GradSkip(model).attribute(image, target=1)
    assert relative_error(GradSkip(model).attribute(image, target=1, map_budget=1), whole) < 1e-6


def test_handwritten_transformer():
    model, image = sharpen(EinsumAttentionViT()).double().eval(), images(dtype=torch.float64)
    seen = GradSkip(model).explain(image, target=1)
    assert len(seen.omega) == 2
    assert seen.map.shape == (2, 1, 32, 32)


def test_non_square_image_keeps_rows_and_columns():
    model = tiny(img_size=(32, 64), global_pool="avg", class_token=False)
    image = torch.zeros(1, 3, 32, 64)
    assert GradSkip(model).attribute(image + images(1, 64)[:, :, :32], target=1, upsample=None).shape == (1, 1, 4, 8)


def test_combinations_of_options_all_run():
    model, image = tiny(), images(1)
    for norm, gate, prefix in itertools.product(("l1", "dot"), ("layer", "token"), ("include", "exclude")):
        settings = GradSkipSettings(gate=gate, gate_norm=norm, prefix_tokens=prefix, reads=True)
        assert bool(torch.isfinite(GradSkip(model).attribute(image, settings=settings)).all())
