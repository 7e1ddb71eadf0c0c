"""The oracle against timm, against the identities of GradSkip, and against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from .gradskip import CHOICES, DEFAULT, PAPER, READS, Settings, gini, gradskip, head_weights, weighted_attention
from .vit import Block, Record, ViTConfig, observe, prefix_count

GRID = (6, 6)
HEADS = 6

MODELS: dict[str, dict] = {
    "token": {"global_pool": "token"},
    "avg": {"global_pool": "avg"},
    "avg_without_prefix": {"global_pool": "avg", "class_token": False},
    "distilled": {},
    "layer_scale": {"global_pool": "token", "init_values": 1e-5},
    "registers": {"global_pool": "token", "reg_tokens": 3, "no_embed_class": True, "init_values": 1e-5},
}
SIZE = {"img_size": 24, "patch_size": 4, "embed_dim": 48, "num_heads": HEADS, "num_classes": 5, "qkv_bias": True}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(kind: str, seed: int = 0, depth: int = 4) -> nn.Module:
    """A float64 model in which every part matters; freshly initialised ones give next to the start vector."""
    torch.manual_seed(seed)
    make = VisionTransformerDistilled if kind == "distilled" else VisionTransformer
    model = make(**SIZE, depth=depth, **MODELS[kind]).double().eval().requires_grad_(False)
    for name, value in model.named_parameters():
        noise = torch.randn_like(value)
        if name.endswith("qkv.weight"):
            value.mul_(10)
        elif name.endswith("proj.weight") and "attn" in name:
            value.mul_(12)
        elif name.endswith(("fc1.weight", "fc2.weight")):
            value.mul_(5)
        elif name.endswith("gamma") or ("norm" in name and name.endswith("weight")):
            value.copy_(1 + 0.2 * noise)
        elif name.startswith("head") or name.endswith("bias") or "token" in name or name == "pos_embed":
            value.copy_(0.3 * noise)
    return model


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 24, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def pool_of(kind: str) -> str:
    return "avg" if kind.startswith("avg") else "distilled" if kind == "distilled" else "token"


def seen(kind: str, rules: str = "libra", seed: int = 0, depth: int = 4, **kwargs: object) -> Record:
    config = ViTConfig(HEADS, pool_of(kind), rules=rules)
    return observe(build(kind, seed, depth).state_dict(), images(), config, **kwargs)


def reading(kind: str, record: Record) -> list[int]:
    n_prefix = prefix_count(record.state)
    patches = list(range(n_prefix, record.x_last.shape[1]))
    return {"token": [0], "distilled": [0, 1], "avg": patches}[pool_of(kind)]


def explain(kind: str, record: Record, **settings: object) -> dict:
    return gradskip(record, GRID, prefix_count(record.state), read=reading(kind, record), **settings)


def error(found: Tensor, wanted: Tensor) -> float:
    """Largest difference, relative to the largest wanted value."""
    return float((found - wanted).abs().max() / wanted.abs().max())


# --- the forward and its gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", ["libra", "plain"])
@pytest.mark.parametrize("kind", MODELS)
def test_forward_is_timms(kind: str, rules: str) -> None:
    assert error(seen(kind, rules).logits, build(kind)(images())) < 1e-10


@pytest.mark.parametrize("target_output", ["logit", "prob"])
@pytest.mark.parametrize("kind", ["token", "avg", "distilled"])
def test_plain_gradients_are_autograds(kind: str, target_output: str) -> None:
    model, image = build(kind), images().requires_grad_()
    logits = model(image)
    outputs = logits if target_output == "logit" else logits.softmax(-1)
    (wanted,) = torch.autograd.grad(outputs[:, 3].sum(), image)
    record = seen(kind, "plain", target=3, target_output=target_output)
    assert error(record.d_image, wanted) < 1e-10


@pytest.mark.parametrize("kind", MODELS)
def test_i7_libra_fullgrad_sum_is_the_logit(kind: str) -> None:
    model = build(kind)
    config = ViTConfig(HEADS, pool_of(kind))
    biases = ("bias", "cls_token", "dist_token", "reg_token", "pos_embed")
    for image in images():  # a bias is shared by the images of a batch, so each logit has its own pass
        record = observe(model.state_dict(), image[None], config)
        parts = [(record.image * record.d_image).sum()]
        parts += [(w * record.d_state[name]).sum() for name, w in record.state.items() if name.endswith(biases)]
        assert abs(sum(parts) / record.logits[0, record.target[0]] - 1) < 1e-10
        assert all(abs(part) > 0 for part in parts[:2])

    plain = observe(model.state_dict(), images()[:1], replace(config, rules="plain"))
    total = (plain.image * plain.d_image).sum()
    total += sum((w * plain.d_state[name]).sum() for name, w in plain.state.items() if name.endswith(biases))
    assert abs(total / plain.score[0] - 1) > 1e-3  # the identity is the rules' doing


@pytest.mark.parametrize("rules", ["libra", "plain"])
@pytest.mark.parametrize("kind", ["token", "layer_scale", "avg"])
def test_i1_attention_times_gradient_decomposes_the_branch(kind: str, rules: str) -> None:
    record = seen(kind, rules)
    for index, block in enumerate(record.blocks):
        gamma = record.state.get(f"blocks.{index}.ls1.gamma", torch.ones(48, dtype=torch.float64))
        do = torch.einsum("bnD,D,hDd->bhnd", block.dz, gamma, block.W_O)  # df/do_i^q, through the projection
        assert error(do @ block.v.transpose(-2, -1), block.dA) < 1e-12
        edges = (block.A * block.dA).sum(dim=(1, 3))
        bias = gamma * record.state[f"blocks.{index}.attn.proj.bias"]
        assert error((block.dz * (block.a - bias)).sum(-1), edges) < 1e-12


def test_i2_signed_shares_of_the_sum_and_bounded_gate() -> None:
    record = seen("token")
    for block in record.blocks:
        parts = (block.dz * block.x).sum(-1) + (block.dz * block.a).sum(-1)
        assert error((block.dz * block.z).sum(-1), parts) < 1e-12
        assert torch.equal(block.z, block.x + block.a)
    for gate in CHOICES["gate"]:
        for norm in CHOICES["gate_norm"]:
            result = explain("token", record, gate=gate, gate_norm=norm)
            assert all(((beta >= 0) & (beta <= 1)).all() for beta in result["beta"])
            assert max(beta.max() for beta in result["beta"]) > 0.1


def test_libra_gradient_x_token_is_the_signed_recursion() -> None:
    """Bias terms apart, ``<x_j, df/dx_j> = <g_z, x>_j + sum_{q,i} A dA``: skip, walk and reads with every sign kept."""
    state = build("token").state_dict()
    for name in state:
        if name.endswith(("qkv.bias", "norm1.bias")):
            state[name].zero_()
    record = observe(state, images(), ViTConfig(HEADS))
    for block in record.blocks:
        wanted = (block.x * block.dx).sum(-1)
        assert error((block.dz * block.x).sum(-1) + (block.A * block.dA).sum(dim=(1, 2)), wanted) < 1e-10


@pytest.mark.parametrize("kind", ["token", "distilled", "registers"])
@pytest.mark.parametrize("rules", ["libra", "plain"])
def test_i9_no_gradient_on_patches_behind_the_last_block(kind: str, rules: str) -> None:
    record = seen(kind, rules)
    read = reading(kind, record)
    others = [token for token in range(record.x_last.shape[1]) if token not in read]
    assert (record.dx_last[:, others] == 0).all()
    assert (record.dx_last[:, read] != 0).all()


# --- the walk ---------------------------------------------------------------------------------------------------------

WALKS = {
    "paper": PAPER,
    "default": DEFAULT,
    "reads": READS,
    "without_reads": {**READS, "reads": False},
    "token_gate_l1": {**PAPER, "gate": "token"},
    "paper_included": {**PAPER, "prefix_tokens": "include"},
}


@pytest.mark.parametrize("kind", ["token", "avg", "distilled", "registers"])
@pytest.mark.parametrize("walk", WALKS)
def test_i3_mass(walk: str, kind: str) -> None:
    record = seen(kind)
    result = explain(kind, record, signed=True, **WALKS[walk])
    expected = result["start"].sum(-1)
    scale = result["start"].abs().sum(-1)
    for layer, (W, mass, entering) in enumerate(zip(result["W"], result["masses"][1:], result["reads"], strict=True)):
        assert error(W.sum(-1), torch.ones_like(W[:, 0])) < 1e-12
        assert (W >= 0).all()
        expected = expected + entering.sum(-1)
        assert ((mass - expected).abs() < 1e-12 * (scale + expected.abs())).all(), layer
    has_reads = WALKS[walk]["reads"] and WALKS[walk]["prefix_tokens"] == "exclude"
    assert any(entering.abs().sum() > 0 for entering in result["reads"]) == has_reads
    kept = result["map"].flatten(1).sum(-1)
    if WALKS[walk]["prefix_tokens"] == "exclude":
        assert torch.allclose(kept, result["masses"][-1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("settings", [PAPER, {**READS, "reads": False}], ids=["paper", "without_reads"])
def test_i3_positive_starts_stay_positive(settings: dict) -> None:
    result = explain("token", seen("token"), **{**settings, "start": "uniform"})
    assert torch.allclose(result["start"], torch.full_like(result["start"], 1 / 36))
    assert all((R >= 0).all() for R in result["relevance"])
    assert torch.allclose(result["map"].flatten(1).sum(-1), torch.ones(2, dtype=torch.float64))


def test_i4_the_walk_forgets_at_most_as_fast_as_dobrushins_coefficients() -> None:
    record = seen("avg")
    one, two = explain("avg", record, signed=True), explain("avg", record, signed=True, start="uniform")
    for b in range(2):
        mass = one["start"][b].sum()
        difference = one["start"][b] - mass * two["start"][b]
        after = one["map"][b].flatten() - mass * two["map"][b].flatten()
        bound = difference.abs().sum()
        for W, beta in zip(one["W"], one["beta"], strict=True):
            tau = torch.cdist(W[b], W[b], p=1).max() / 2
            bound = bound * ((1 - beta[b]) + beta[b] * tau)
        assert 0 < after.abs().sum() <= bound < difference.abs().sum()


@pytest.mark.parametrize("settings", [PAPER, {**READS, "reads": False}], ids=["paper", "without_reads"])
def test_i5_an_identity_block_changes_nothing_and_a_block_without_skip_moves_everything(settings: dict) -> None:
    record = seen("avg")
    block = record.blocks[1]
    idle = replace(record, blocks=(record.blocks[0], replace(block, a=torch.zeros_like(block.a)), *record.blocks[2:]))
    result = explain("avg", idle, **settings)
    at = result["layers"].index(2)
    assert (result["beta"][at] == 0).all()
    assert torch.equal(result["relevance"][at], result["relevance"][at - 1])

    bare = replace(record, blocks=(record.blocks[0], replace(block, x=torch.zeros_like(block.x)), *record.blocks[2:]))
    assert (explain("avg", bare, **{**settings, "embedding": "none"})["beta"][at] == 1).all()


@pytest.mark.parametrize("prefix_tokens", ["exclude", "include"])
@pytest.mark.parametrize("gate", ["layer", "token"])
@pytest.mark.parametrize("kind", ["token", "avg"])
def test_i10_vector_recursion_is_the_accumulated_matrix(kind: str, gate: str, prefix_tokens: str) -> None:
    result = explain(kind, seen(kind), signed=True, gate=gate, prefix_tokens=prefix_tokens)
    for b in range(2):
        size = result["start"].shape[1]
        accumulated = torch.eye(size, dtype=torch.float64)
        for W, beta in zip(result["W"], result["beta"], strict=True):
            share = beta[b].expand(size)
            accumulated = accumulated @ (torch.diag(share) @ W[b] + torch.diag(1 - share))
        wanted = (accumulated.T @ result["start"][b])[size - 36 :]
        assert error(result["map"][b].flatten(), wanted) < 1e-12


@pytest.mark.parametrize(
    ("kind", "prefix_tokens", "start_layer"), [("token", "exclude", 3), ("token", "include", 4), ("avg", "exclude", 4)]
)
def test_start(kind: str, prefix_tokens: str, start_layer: int) -> None:
    record = seen(kind)
    result = explain(kind, record, prefix_tokens=prefix_tokens)
    assert result["start_layer"] == start_layer
    assert result["layers"] == list(range(start_layer, 0, -1))
    if (kind, prefix_tokens) == ("token", "include"):
        assert (result["start"][:, 0] == 1).all()
        assert (result["start"][:, 1:] == 0).all()
        assert torch.allclose(result["rho_cls"], torch.ones(2, dtype=torch.float64))
        return
    block = record.blocks[-1]
    u, du = (record.x_last, record.dx_last) if kind == "avg" else (block.x, block.dx)
    product = (u * du).sum(-1)
    assert torch.equal(result["start"], product[:, 1:])
    assert torch.allclose(result["rho_cls"], product[:, 0].abs() / product.abs().sum(-1))


def test_prefix_tokens_that_are_read_share_the_start() -> None:
    record = seen("distilled")
    for start in ("gradient_x_input", "cls"):
        result = explain("distilled", record, prefix_tokens="include", start=start)
        assert result["start"][0, :3].tolist() == [0.5, 0.5, 0]
    both = gradskip(record, GRID, 2, read=[0, *range(2, 38)])  # class token and patches: still one block earlier
    assert both["start_layer"] == 3
    dense = gradskip(seen("avg"), GRID, 1, read=range(1, 37), prefix_tokens="include", start="cls")
    assert dense["start"][0, :2].tolist() == [1, 0]


def test_first_layer_stops_the_walk() -> None:
    record = seen("avg")
    whole, cut = explain("avg", record, signed=True), explain("avg", record, signed=True, first_layer=3)
    assert cut["layers"] == [4, 3]
    assert torch.equal(cut["map"].flatten(1), whole["relevance"][1])


# --- heads and edges --------------------------------------------------------------------------------------------------


def test_i8_gini() -> None:
    n = 8
    assert gini(torch.ones(n).double()) == 0
    assert gini(torch.eye(n).double()[3]) == pytest.approx((n - 1) / n, abs=1e-15)
    values = torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert gini(values * 1024) == gini(values)
    assert gini(values.flip(0)) == gini(values)
    differences = (values[:, None] - values[None, :]).abs().sum() / (2 * n * values.sum())
    assert gini(values) == pytest.approx(float(differences), abs=1e-14)  # mean absolute difference over twice the mean


def heads(flows: list[float], settings: dict) -> dict[str, Tensor]:
    """Uniform 2 x 2 maps whose flows are as given: the Gini is 0 for every head, so sparsity is 1 throughout."""
    A = torch.full((len(flows), 2, 2), 0.5, dtype=torch.float64)
    dA = 2 * torch.tensor(flows, dtype=torch.float64)[:, None, None].expand_as(A)
    return head_weights(A, -dA, Settings(**settings))


@pytest.mark.parametrize(
    ("flows", "settings", "wanted"),
    [
        ([1.0, 3.0, 5.0], {}, [0, 0.5, 1]),
        ([0.4, 3.0, 5.0], {}, [0, 0.6, 1]),  # below a tenth of the largest: 0 before the normalisation
        ([1.0, 3.0, 5.0], {"flow_threshold": "mean"}, [0, 0.6, 1]),
        ([1.0, 3.0, 5.0], {"head_norm": "max"}, [0.2, 0.6, 1]),
        ([1.0, 3.0, 4.0], {"head_norm": "l1"}, [0.125, 0.375, 0.5]),
        ([1.0, 4.0], {}, [0.25, 1]),  # two heads: by the maximum
        ([1.0, 4.0], {"head_norm": "l1"}, [0.2, 0.8]),
        ([3.0], {}, [1]),
        ([1.0, 1.0005, 1.0005], {}, [1, 1, 1]),  # a spread of rounding size decides nothing
        ([1.0, 1.0005, 1.0005], {"head_norm": "l1"}, [1, 1, 1]),
        ([0.0, 0.0, 0.0], {}, [1, 1, 1]),
    ],
)
def test_flow_indicator(flows: list[float], settings: dict, wanted: list[float]) -> None:
    found = heads(flows, settings)
    assert found["flow"].tolist() == pytest.approx(wanted, abs=1e-12)
    assert found["sparsity"].tolist() == [1] * len(flows)
    assert torch.allclose(found["omega"], 0.5 * found["flow"] + 0.5)
    assert torch.equal(found["raw_flow"], torch.tensor(flows, dtype=torch.float64))


def test_omega_and_head_filter() -> None:
    diffuse = torch.full((2, 2), 0.5, dtype=torch.float64)
    A = torch.stack([diffuse, diffuse, torch.eye(2, dtype=torch.float64)])
    dA = torch.stack([diffuse, 2 * diffuse, 0 * diffuse])
    for settings, wanted in [
        ({"alpha": 0.0}, [0, 0, 1]),  # sparsity only
        ({"alpha": 1.0}, [0.5, 1, 0]),  # flow only
        ({"alpha": 0.25}, [0.125, 0.25, 0.75]),
        ({}, [0.25, 0.5, 0.5]),
        ({"head_filter": "top25"}, [0, 0, 0.5]),
        ({"head_filter": "bottom25"}, [0.25, 0, 0]),  # of two equal heads the first
        ({"head_filter": "bottom25", "alpha": 0.0}, [0, 0, 0]),
    ]:
        assert head_weights(A, dA, Settings(**settings))["omega"].tolist() == wanted, settings


def test_edges_by_hand() -> None:
    A = torch.tensor([[[0.5, 0.5], [0.25, 0.75]]], dtype=torch.float64)
    dA = torch.tensor([[[1.0, -3.0], [0.0, 0.0]]], dtype=torch.float64)
    omega, nu = torch.tensor([2.0], dtype=torch.float64), torch.tensor([1.0, 2.0], dtype=torch.float64)
    # E = [[2 * .5 * 1 * 1, 2 * .5 * 3 * 2], [0, 0]]; the second row falls back on omega A nu = [.5, 3].
    row = weighted_attention(A, dA, omega, nu, Settings())
    assert torch.allclose(row, torch.tensor([[1 / 7, 6 / 7], [1 / 7, 6 / 7]]).double())
    relu = weighted_attention(A, dA, omega, nu, Settings(flow_sign="relu"))
    assert torch.allclose(relu, torch.tensor([[1, 0], [1 / 7, 6 / 7]]).double())
    mean = weighted_attention(A, dA, omega, nu, Settings(row_norm="mean"))
    assert torch.allclose(mean, torch.tensor([[1, 6], [0, 0]]).double() / 3.5)
    assert weighted_attention(A, dA, omega, nu, Settings(row_norm="none")).tolist() == [[1, 6], [0, 0]]
    assert weighted_attention(A, dA, 0 * omega, nu, Settings()).tolist() == [[1, 0], [0, 1]]


def test_one_layer_by_hand() -> None:
    """Two tokens, one head, width 1, no prefix: ``g_z = (1, 2)``, ``x = (1, 3)``, ``a = (1, -2)``."""

    def column(*values: float) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).reshape(1, -1, 1)

    A = torch.tensor([[[[0.5, 0.5], [0.25, 0.75]]]], dtype=torch.float64)
    dA = torch.tensor([[[[1.0, -1.0], [3.0, 1.0]]]], dtype=torch.float64)
    block = Block(
        x=column(1, 3), a=column(1, -2), z=column(2, 1), A=A, dA=dA, v=column(1, 1)[:, None], W_O=column(1),
        dx=column(4, -1), dz=column(1, 2),
    )  # fmt: skip
    record = Record(
        logits=torch.zeros(1, 2), target=torch.zeros(1).long(), score=torch.zeros(1), blocks=(block,),
        x_last=column(2, 4), dx_last=column(1, 1), image=A, d_image=A, state={}, d_state={},
    )  # fmt: skip
    # Start (2, 4). nu = (1, 3) / 2. E = [[.25, .75], [.375, 1.125]], so both rows of W are (1/4, 3/4).
    # |g a| = 1 + 4, |g x| = 1 + 6: beta = 5/12. R = 5/12 * 6 * (1/4, 3/4) + 7/12 * (2, 4).
    paper = gradskip(record, (1, 2), 0, read=[0, 1], **PAPER)
    assert paper["beta"][0].item() == pytest.approx(5 / 12)
    assert paper["map"][0, 0].tolist() == pytest.approx([0.625 + 14 / 12, 1.875 + 28 / 12])
    # nu = (4, 0) / 2: all goes to token 0. Per token: beta = (1/2, 4/10). R = (1 + 1.6 + 1, 2.4).
    default = gradskip(record, (1, 2), 0, read=[0, 1], **READS)
    assert default["beta"][0][0].tolist() == pytest.approx([0.5, 0.4])
    assert default["map"][0, 0].tolist() == pytest.approx([3.6, 2.4])


@pytest.mark.parametrize("prefix_tokens", ["exclude", "include"])
def test_parts_of_a_layer_in_their_vectorised_form(prefix_tokens: str) -> None:
    """The formulas once more, for all images, heads and tokens at once."""
    record = seen("distilled")
    first = 2 if prefix_tokens == "exclude" else 0

    def layer(**settings: object) -> tuple[dict, Block]:
        result = explain("distilled", record, prefix_tokens=prefix_tokens, **settings)
        at = result["layers"].index(2)
        return {name: result[name][at] for name in ("nu", "beta", "reads", "raw_flow", "gini")}, record.blocks[1]

    _, block = layer()
    x, a, v, g = block.x[:, first:], block.a[:, first:], block.v[:, :, first:], block.dz[:, first:]
    A, dA = block.A[..., first:, first:], block.dA[..., first:, first:]
    projected = torch.einsum("bhjd,hDd->bhjD", v, block.W_O)
    norms = {
        "input": (x**2).sum(-1).sqrt(),
        "relevance": (x * block.dx[:, first:]).sum(-1).relu(),
        "value": (v**2).sum(-1).sqrt(),
        "projected": (projected**2).sum(-1).sqrt(),
        "ratio": (projected.sum(1) ** 2).sum(-1).sqrt() / (x**2).sum(-1).sqrt(),
    }
    for embedding, norm in norms.items():
        assert error(layer(embedding=embedding)[0]["nu"], norm / norm.mean(-1, keepdim=True)) < 1e-12, embedding

    sizes = {
        ("layer", "l1"): lambda p: p.abs().sum((1, 2)),
        ("layer", "l2"): lambda p: (p**2).sum((1, 2)).sqrt(),
        ("layer", "signed"): lambda p: p.sum((1, 2)).abs(),
        ("layer", "dot"): lambda p: p.sum(2).abs().sum(1),
        ("token", "l1"): lambda p: p.abs().sum(2),
        ("token", "l2"): lambda p: (p**2).sum(2).sqrt(),
        ("token", "signed"): lambda p: p.sum(2).abs(),
        ("token", "dot"): lambda p: p.sum(2).abs(),
    }
    for (gate, norm), size in sizes.items():
        wanted = size(g * a) / (size(g * a) + size(g * x))
        assert error(layer(gate=gate, gate_norm=norm)[0]["beta"], wanted) < 1e-12, (gate, norm)

    found, _ = layer(reads=True)
    assert error(found["raw_flow"], (A * dA.abs()).mean((-2, -1))) < 1e-12
    if prefix_tokens == "include":
        assert (found["reads"] == 0).all()
    else:
        assert error(found["reads"], (block.A * block.dA)[:, :, :2, 2:].sum((1, 2))) < 1e-12

    def ginis(p: Tensor) -> Tensor:  # mean absolute difference over twice the mean
        return (p[..., :, None] - p[..., None, :]).abs().mean((-2, -1)) / (2 * p.mean(-1))

    assert error(found["gini"], ginis(A).mean(-1)) < 1e-10
    assert error(layer(gini_over="columns")[0]["gini"], ginis(A.mean(-2))) < 1e-10
    assert error(layer(gini_over="map")[0]["gini"], ginis(A.flatten(-2))) < 1e-10


# --- every setting counts ---------------------------------------------------------------------------------------------

CHANGES = [
    {"alpha": 0.0}, {"alpha": 1.0}, {"flow_threshold": "mean"}, {"gini_over": "columns"}, {"gini_over": "map"},
    {"head_norm": "max"}, {"head_norm": "l1"}, {"head_filter": "top25"}, {"head_filter": "bottom25"},
    {"embedding": "relevance"}, {"embedding": "value"}, {"embedding": "projected"}, {"embedding": "ratio"},
    {"embedding": "none"}, {"row_norm": "mean"}, {"row_norm": "none"}, {"flow_sign": "relu"}, {"gate": "token"},
    {"gate_norm": "l2"}, {"gate_norm": "signed"}, {"gate_norm": "dot"}, {"start": "uniform"},
    {"prefix_tokens": "include"}, {"reads": True}, {"first_layer": 2},
]  # fmt: skip


def test_every_setting_moves_the_map() -> None:
    record = seen("token")
    paper = explain("token", record, signed=True)["map"]
    for change in CHANGES:
        assert error(explain("token", record, signed=True, **change)["map"], paper) > 1e-6, change
    assert error(explain("token", seen("token", "plain"), signed=True)["map"], paper) > 1e-3
    assert error(explain("token", seen("token", target_output="prob"), signed=True)["map"], paper) > 1e-3
    assert torch.equal(explain("token", record)["map"], paper.clamp(min=0))
    assert (paper < 0).any()


@pytest.mark.parametrize("settings", [PAPER, READS, DEFAULT], ids=["paper", "reads", "default"])
def test_images_do_not_interact(settings: dict) -> None:
    state, config = build("token").state_dict(), ViTConfig(HEADS)
    together = explain("token", observe(state, images(), config, target=[1, 4]), **settings)["map"]
    alone = explain("token", observe(state, images()[1:], config, target=4), **settings)["map"]
    assert error(together[1:], alone) < 1e-10


@pytest.mark.parametrize(
    "wrong", [{"gate": "tokens"}, {"flow_threshold": "max"}, {"start": "cls"}, {"first_layer": 0}], ids=str
)
def test_unknown_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Settings(**wrong)
