"""The engine: what is removed is removed, in every way of removing, and nothing depends on the batch."""

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import timm
import torch
import torch.nn.functional as F

from tests.attr.test_families import FUSED
from tests.models import images, relative_error, tiny
from tests.trace.test_safety import mixed_model, same, state
from xattr.metrics import Perturber, count_flops, peak_bytes
from xattr.metrics.features import feature_values, patch_labels, ranked
from xattr.metrics.fills import blurred, replacement
from xattr.metrics.road import imputed
from xattr.trace import Inputs, UnsupportedModelError
from xattr.trace.masked import TokenMasker
from xattr.trace.shortened import TokenDropper


def some_patches(batch=2, patches=16, kept=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(patches, generator=generator) < kept for _ in range(batch)])


def logits(output):
    return getattr(output, "logits", output)


# --- dropping tokens --------------------------------------------------------------------------------------------------


def by_hand(model, x, keep):
    """timm's transformers on a sequence shortened by hand, with rotary tables and position biases gathered."""
    prefix = model.num_prefix_tokens
    tokens = model.patch_embed(x)
    rope = None
    if hasattr(model, "rope"):
        tokens, rope = model._pos_embed(tokens)
    elif hasattr(model, "rel_pos_bias"):  # BEiT
        tokens = torch.cat([model.cls_token.expand(len(x), -1, -1), tokens], 1)
        tokens = tokens if model.pos_embed is None else tokens + model.pos_embed
    else:
        tokens = model.patch_drop(model._pos_embed(tokens))
        tokens = model.norm_pre(tokens)
    found = []
    for i in range(len(x)):
        patches = keep[i].nonzero()[:, 0]
        rows = torch.cat([torch.arange(prefix), patches + prefix])
        z = tokens[i : i + 1, rows]
        for block in model.blocks:
            if rope is not None:
                z = block(z, rope=rope[..., patches, :])
            elif hasattr(model, "rel_pos_bias"):
                bias = block.attn._get_rel_pos_bias()[..., rows, :][..., rows]
                scaled = lambda gamma, branch: branch if gamma is None else gamma * branch
                z = z + scaled(block.gamma_1, beit_attention(block.attn, block.norm1(z), bias))
                z = z + scaled(block.gamma_2, block.mlp(block.norm2(z)))
            else:
                z = block(z)
        found.append(model.forward_head(model.norm(z)))
    return torch.cat(found)


def beit_attention(attn, y, bias):
    batch, tokens, _ = y.shape
    qkv_bias = torch.cat([attn.q_bias, attn.k_bias, attn.v_bias])
    q, k, v = F.linear(y, attn.qkv.weight, qkv_bias).view(batch, tokens, 3, attn.num_heads, -1).permute(2, 0, 3, 1, 4)
    weights = (q * attn.scale @ k.mT + bias).softmax(-1)
    return attn.proj((weights @ v).transpose(1, 2).flatten(2))


SHORT = {
    "class token": tiny,
    "mean pool": lambda: tiny(global_pool="avg"),
    "registers": lambda: tiny("vit_small_patch14_reg4_dinov2"),
    "rotary, EVA-02": lambda: tiny("eva02_tiny_patch14_224"),
    "rotary, DINOv3": lambda: tiny("vit_small_patch16_dinov3"),
    "relative bias, BEiT": lambda: tiny("beit_base_patch16_224"),
}


@pytest.mark.parametrize("name", SHORT)
def test_dropping_equals_a_sequence_shortened_by_hand(name):
    model, x, keep = SHORT[name](), images(), some_patches()
    with torch.no_grad():
        wanted, whole = by_hand(model, x, keep), model(x)
    found = TokenDropper(model, Inputs.of(x))(Inputs.of(x), keep)
    assert relative_error(found, wanted) < 1e-5
    assert relative_error(found, whole) > 1e-2


@pytest.mark.parametrize("name", [name for name in FUSED if "CLIP" not in name])
def test_dropping_nothing_changes_nothing_and_images_do_not_interact(name):
    model, x, keep = FUSED[name](), images(), some_patches()
    drop = TokenDropper(model, Inputs.of(x))
    with torch.no_grad():
        whole = logits(model(x))
    everything = logits(drop(Inputs.of(x), torch.ones(2, 16, dtype=torch.bool)))
    assert relative_error(everything, whole) < 1e-5
    together = logits(drop(Inputs.of(x), keep))
    assert relative_error(logits(drop(Inputs.of(x[1:]), keep[1:])), together[1:]) < 1e-5
    assert relative_error(together, whole) > 1e-3


SEEN_ONLY = ("ViT", "DeiT distilled", "DINOv2 with registers", "SigLIP", "CLIP")
NOT_POOLED = {*(f"timm {name}" for name in SEEN_ONLY), "transformers ViT", "transformers DeiT"}


@pytest.mark.parametrize("name", FUSED)
def test_dropping_equals_masking_the_keys_unless_the_head_pools_over_patches(name):
    model, x = FUSED[name](), images()
    if name not in NOT_POOLED:
        with pytest.raises(UnsupportedModelError, match="that average over the patches"):
            TokenMasker(model, Inputs.of(x))
        return
    mask = TokenMasker(model, Inputs.of(x))
    # As many patches as the row says: masks need no rectangle.
    keep = torch.cat([some_patches(1, kept=5), some_patches(1, kept=11)])
    found = logits(mask(Inputs.of(x), keep))
    for i in range(2):
        alone = Inputs.of(x[i : i + 1])
        wanted = logits(TokenDropper(model, alone)(alone, keep[i : i + 1]))
        assert relative_error(found[i : i + 1], wanted) < 1e-5
    with torch.no_grad():
        assert relative_error(found, logits(model(x))) > 1e-3


def test_models_whose_tokens_cannot_leave_fall_back_and_say_so():
    options = {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2)}
    swin = timm.create_model("swin_tiny_patch4_window7_224", num_classes=5, **options).eval()
    with pytest.raises(UnsupportedModelError, match="drop_tokens"):
        Perturber(swin, baseline="drop_tokens").bind(images(1, 64))
    assert Perturber(swin).bind(images(1, 64)).features.operator == "mean"
    assert Perturber(tiny(), unit="pixel").bind(images(1)).features.operator == "mean"
    with pytest.raises(ValueError, match='unit="patch"'):
        Perturber(tiny(), unit="pixel", baseline="drop_tokens").bind(images(1))


def test_a_mean_of_no_patches_is_the_score_of_the_mean_picture():
    model, x = tiny(global_pool="avg", class_token=False), images()
    bound = Perturber(model, score="logit").bind(x, 1)
    nothing = bound.score(torch.zeros(2, 1, 16, dtype=torch.bool))
    with torch.no_grad():
        assert torch.allclose(nothing[:, 0].float(), model(torch.zeros_like(x))[:, 1], atol=1e-5)


# --- filling ----------------------------------------------------------------------------------------------------------


def test_a_filled_picture_is_the_one_made_by_hand():
    f = lambda z: torch.stack([(z * torch.arange(12.0).view(1, 3, 2, 2)).sum((1, 2, 3)), z.sum((1, 2, 3))], 1)
    x = torch.randn(2, 3, 2, 2)
    keep = torch.tensor([[[True, False, True, True], [False] * 4], [[True] * 4, [False, True, False, False]]])
    for baseline, fill in (("mean", 0.0), (2.5, 2.5), (torch.full((1, 3, 1, 1), -1.0), -1.0)):
        bound = Perturber(f, "pixel", baseline, "logit").bind(x, 0)
        for i in range(2):
            for s in range(2):
                shown = torch.where(keep[i, s].view(1, 2, 2), x[i], torch.tensor(fill))
                assert float(bound.score(keep)[i, s]) == pytest.approx(float(f(shown[None])[0, 0]), rel=1e-5)


def test_black_is_black_before_normalisation():
    model, x = tiny(), images()
    fill, name = replacement("black", model, x)
    p = timm.data.resolve_data_config(model.pretrained_cfg)
    for c in range(3):
        assert torch.allclose(fill[:, c], torch.tensor(-p["mean"][c] / p["std"][c]))
    assert name == "black"
    with pytest.raises(ValueError, match="nothing says how"):
        replacement("black", lambda z: z, x)
    with pytest.raises(ValueError, match="does not fit"):
        replacement(torch.zeros(1, 3, 5, 5), model, x)
    with pytest.raises(ValueError, match="baseline='grey'"):
        replacement("grey", model, x)


def test_blur_keeps_the_mean_and_a_constant():
    x = images(2, 32)
    assert torch.allclose(blurred(torch.full((1, 3, 20, 30), 0.7)), torch.tensor(0.7), atol=1e-6)
    drift = (blurred(x).mean((2, 3)) - x.mean((2, 3))).abs() / (x.amax((2, 3)) - x.amin((2, 3)))
    assert float(drift.max()) < 0.05
    assert float(blurred(x).std()) < 0.3 * float(x.std())


def sparse_imputation(image, keep):
    """The linear system as it stands, solved exactly."""
    _, height, width = image.shape
    number = {(y, x): i for i, (y, x) in enumerate((~keep).nonzero().tolist())}
    A, b = scipy.sparse.lil_matrix((len(number), len(number))), np.zeros((len(number), len(image)))
    for (y, x), i in number.items():
        around = [
            (dy, dx, 1 / 6 if 0 in (dy, dx) else 1 / 12) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if (dy, dx) != (0, 0)
        ]
        inside = [(y + dy, x + dx, w) for dy, dx, w in around if 0 <= y + dy < height and 0 <= x + dx < width]
        total = sum(w for *_, w in inside)
        A[i, i] = 1
        for ny, nx, w in inside:
            if (ny, nx) in number:
                A[i, number[ny, nx]] -= w / total
            else:
                b[i] += w / total * image[:, ny, nx].numpy()
    solved = scipy.sparse.linalg.spsolve(A.tocsr(), b)
    result = image.clone().double()
    for (y, x), i in number.items():
        result[:, y, x] = torch.from_numpy(np.atleast_1d(solved[i]))
    return result


@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
def test_road_solves_its_system(share):
    x = F.avg_pool2d(images(2, 48), 3, 1, 1)[..., :20, :24]
    keep = torch.rand(2, 1, 20, 24, generator=torch.Generator().manual_seed(0)) > share
    found = imputed(x, keep, noise=0.0)
    for i in range(2):
        assert float((found[i].double() - sparse_imputation(x[i], keep[i, 0])).abs().max()) < 5e-3
    assert torch.equal(found[keep.expand_as(found)], x[keep.expand_as(x)])
    noisy = imputed(x, keep)
    assert 0.005 < float((noisy - found)[~keep.expand_as(found)].std()) < 0.015
    assert torch.equal(imputed(x[:1], keep[:1]), noisy[:1])


# --- features ---------------------------------------------------------------------------------------------------------


def test_patches_of_sides_that_do_not_divide():
    labels = patch_labels((3, 2), (7, 5))
    assert labels.unique().tolist() == list(range(6))
    assert labels[:, 0].tolist() == [0, 0, 0, 2, 2, 4, 4]
    x = torch.randn(2, 1, 7, 5)
    values = feature_values(x, labels, 6)
    for f in range(6):
        assert torch.allclose(values[:, f], x[:, 0, labels == f].double().mean(1))


def test_ties_are_broken_alike_and_counted():
    values = torch.tensor([[3.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [4.0, 3.0, 2.0, 1.0]])
    order, ties = ranked(values)
    assert ties.tolist() == [0.75, 1.0, 0.0]
    assert order[2].tolist() == [0, 1, 2, 3]
    assert int(order[0, 0]) == 0
    assert torch.equal(ranked(values[1:2])[0], order[1:2])
    assert not torch.equal(ranked(values, seed=3)[0][1], order[1])


# --- safety -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("baseline", [None, "mean"])
def test_nothing_of_the_users_changes(baseline):
    model, x = mixed_model(), images()
    before, image, rng = state(model), x.clone(), torch.get_rng_state()
    bound = Perturber(model, "patch", baseline).bind(x)
    one = bound.score(some_patches()[:, None])
    assert torch.equal(bound.score(some_patches()[:, None]), one)  # in evaluation mode
    assert same(before, state(model))
    assert torch.equal(x, image)
    assert torch.equal(rng, torch.get_rng_state())


def test_a_budget_makes_more_forwards_and_the_same_numbers():
    model, x = tiny(), images(3)
    keep = torch.stack([some_patches(3, kept=k) for k in (2, 5, 9)], 1)
    sizes = []
    handle = model.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    for baseline in (None, "blur"):
        whole = Perturber(model, "patch", baseline).bind(x).score(keep)
        bound = Perturber(model, "patch", baseline, budget=1).bind(x)
        sizes.clear()
        assert torch.allclose(bound.score(keep), whole, atol=1e-6)
        assert sizes == [1] * 9
    handle.remove()


def test_half_the_patches_cost_about_half():
    model, x = timm.create_model("vit_tiny_patch16_224").eval(), images(1, 224)
    bound = Perturber(model).bind(x)
    whole, half = (count_flops(lambda k=k: bound.score(torch.arange(196)[None, None] < k)) for k in (196, 98))
    assert half < 0.55 * whole


class Tinted(torch.nn.Module):
    """Takes a number for each image."""

    def __init__(self):
        super().__init__()
        self.vit = tiny()

    def forward(self, x, tint, factor):
        return self.vit(x + tint.view(-1, 1, 1, 1)) * factor


@pytest.mark.parametrize("baseline", [None, "mask_tokens", "mean"])
def test_what_belongs_to_an_image_goes_with_it(baseline):
    model, x, tint = Tinted().eval(), images(3), torch.tensor([0.0, 0.5, -0.5])
    keep = torch.stack([some_patches(3, kept=k) for k in (3, 9)], 1)
    settings = {"unit": "patch", "baseline": baseline, "score": "logit", "internal_batch_size": 2}
    found = Perturber(model, additional_forward_args=(tint, 2), **settings).bind(x, 1).score(keep)
    for i in range(3):
        alone = Perturber(lambda z, i=i: model(z, tint[i], 2), **settings).bind(x[i : i + 1], 1)
        assert torch.allclose(found[i], alone.score(keep[i : i + 1])[0], atol=1e-5)
    assert not torch.allclose(found, Perturber(lambda z: model(z, tint[:1], 2), **settings).bind(x, 1).score(keep))


def test_weights_are_no_part_of_what_a_forward_holds():
    layer, x, model = torch.nn.Linear(1000, 10), torch.randn(1, 1000), tiny()
    with torch.no_grad():
        assert peak_bytes(lambda: layer(x)) == 40
        one, five = (peak_bytes(lambda n=n: model(images(n))) for n in (1, 5))
    assert 4.5 < five / one < 5.5
