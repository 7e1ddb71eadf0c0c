"""Nothing of the user's is changed, whatever state the model is in and however the call ends."""

import contextlib
import copy
import gc
import threading

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from tests.models import EinsumAttentionViT, images, relative_error, tiny
from xattr.attr import (
    LRP,
    AGCam,
    AttentionRollout,
    FinerCam,
    FullGradPlus,
    GradCam,
    GradientXToken,
    GradSkip,
    IntegratedGradients,
    LeGrad,
)
from xattr.trace import TargetError, UnseenError

# One of each kind: of methods that differ in a formula alone one is here; see tests/attr for the others.
METHODS = {
    "GradSkip": (GradSkip, {"signed": True}),
    "AttentionRollout": (AttentionRollout, {}),
    "GradientXToken": (GradientXToken, {}),
    "IntegratedGradients": (IntegratedGradients, {"n_steps": 4}),
    "LRP, attnlrp": (LRP, {"rule": "attnlrp"}),
    "LRP, gamma": (LRP, {"rule": "gamma"}),
    "GradCam": (GradCam, {"relu_attributions": False}),
    "AGCam": (AGCam, {}),
    "LeGrad": (LeGrad, {}),
    "FullGradPlus": (FullGradPlus, {"gradients": "libra"}),
    "FinerCam": (FinerCam, {"relu_attributions": False}),
}


@pytest.fixture(params=METHODS)
def explain(request):
    kind, arguments = METHODS[request.param]
    return lambda model, x, target=1: kind(model).attribute(x, target=target, **arguments)


def state(model):
    """Everything about a model that an explanation could leave changed."""
    return {
        "values": {k: v.clone() for k, v in model.state_dict(keep_vars=True).items()},
        "versions": {k: v._version for k, v in model.state_dict(keep_vars=True).items()},
        "requires_grad": {k: v.requires_grad for k, v in model.named_parameters()},
        "grads": {k: None if v.grad is None else v.grad.clone() for k, v in model.named_parameters()},
        "modes": {k: m.training for k, m in model.named_modules()},
        "hooks": {
            k: [len(h) for h in (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks)]
            for k, m in model.named_modules()
        },
        "attributes": {k: sorted(m.__dict__) for k, m in model.named_modules()},
        "global hooks": [
            len(nn.modules.module._global_forward_hooks),
            len(nn.modules.module._global_forward_pre_hooks),
        ],
    }


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, tuple):
        return all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other


def mixed_model():
    """In train mode with dropout, stochastic depth and BatchNorm; one part in evaluation mode on purpose."""

    class WithNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(3)
            self.vit = tiny(proj_drop_rate=0.5, drop_path_rate=0.5, attn_drop_rate=0.5, pos_drop_rate=0.5)
            self.norm.running_mean.add_(0.3)
            self.norm.running_var.mul_(2)

        def forward(self, x):
            return self.vit(self.norm(x))

    model = WithNorm().train()
    model.vit.blocks[1].eval()
    return model


def test_train_mode_gives_the_eval_map_and_changes_nothing(explain):
    model, x = mixed_model(), images()
    wanted = explain(copy.deepcopy(model).eval(), x)
    before, image = state(model), x.clone()
    for forward in (model, lambda z: model(z), model.forward):
        first, second = explain(forward, x), explain(forward, x)
        assert torch.equal(first, second)
        # forward called directly is seen by no hook of the outermost module; its children are
        assert relative_error(first, wanted) < 1e-6
        assert same(before, state(model))
        assert torch.equal(x, image)
        assert x.grad is None
        assert not x.requires_grad


def test_gradients_of_a_training_step_are_left_alone(explain):
    model, x = tiny().train(), images()
    F.cross_entropy(model(x), torch.tensor([0, 1])).backward()
    before = state(model)
    assert any(bool(g.any()) for g in before["grads"].values())
    leaf = images().requires_grad_()
    leaf.grad = torch.ones_like(leaf)
    explain(model, leaf)
    assert same(before, state(model))
    assert torch.equal(leaf.grad, torch.ones_like(leaf))


class Breaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.vit, self.norm = tiny(drop_path_rate=0.5), nn.BatchNorm2d(3)

    def forward(self, x):
        self.vit(self.norm(x))
        raise RuntimeError("inside the model")


def test_nothing_changes_when_the_model_raises_or_the_target_is_wrong(explain):
    broken, model, x = Breaks().train(), mixed_model(), images()
    before = state(broken), state(model)
    with pytest.raises(RuntimeError, match="inside the model"):
        explain(broken, x)
    with pytest.raises(TargetError, match=r"0\.\.4"):
        explain(model, x, target=5)
    assert same(before, (state(broken), state(model)))
    assert torch._C._len_torch_function_stack() == 0
    assert explain(model, x).shape[0] == 2


@pytest.mark.parametrize("how", ["frozen", "no_grad", "inference_mode", "inference input", "built in inference_mode"])
def test_the_callers_gradient_state_does_not_matter(explain, how):
    model, x = tiny(), images()
    wanted = explain(model, x)
    context = contextlib.nullcontext()
    if how == "frozen":
        model.requires_grad_(False)
    elif how == "no_grad":
        context = torch.no_grad()
    elif how == "inference_mode":
        context = torch.inference_mode()
    elif how == "inference input":
        with torch.inference_mode():
            x = x.clone()
    else:
        with torch.inference_mode():
            model = tiny()
    before = {k: p.requires_grad for k, p in model.named_parameters()}
    with context:
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        found = explain(model, x)
        assert modes == (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    assert relative_error(found, wanted) < 1e-6
    assert before == {k: p.requires_grad for k, p in model.named_parameters()}
    assert not found.requires_grad


def test_a_batch_equals_single_calls(explain):
    model, x = tiny(), images(4)
    target = torch.tensor([0, 1, 2, 3], dtype=torch.int32)
    together = explain(model, x, target)
    for i in range(4):
        assert relative_error(together[i : i + 1], explain(model, x[i : i + 1], int(target[i]))) < 1e-5


def compiles_again():
    torch._dynamo.reset()  # or its limit of compilations of one function is met
    compiled = []
    torch.compile(lambda x: x + 1, backend=lambda graph, inputs: compiled.append(graph) or graph.forward)(torch.ones(1))
    return bool(compiled)


def test_two_threads_explain_one_model_in_train_mode(explain):
    model, x = mixed_model(), images()
    wanted, before, found = explain(model, x), state(model), []
    threads = [threading.Thread(target=lambda: found.extend(explain(model, x) for _ in range(4))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert compiles_again()  # the compiler's stance, which is global, is back
    assert all(torch.equal(one, wanted) for one in found)
    assert same(before, state(model))


def test_a_model_trained_in_another_thread_keeps_its_train_mode():
    seen = []

    class Trains(nn.Module):
        def forward(self, x):
            seen.append(self.training)
            return x

    class Meanwhile(EinsumAttentionViT):
        def forward(self, x):
            thread = threading.Thread(target=Trains().train(), args=(torch.zeros(1),))
            thread.start()
            thread.join()
            return super().forward(x)

    evidence = GradSkip(Meanwhile().train()).explain(images(), target=1)
    assert seen == [True]
    assert evidence.map.shape == (2, 1, 32, 32)


def test_writes_of_the_model_into_its_own_tensors_go_to_a_copy():
    class Counts(EinsumAttentionViT):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("cache", torch.zeros(5))

        def forward(self, x):
            self.calls += 1
            self.cache[2] = 7.0
            return super().forward(x) + self.cache + self.calls

    model, x = Counts().eval(), images()
    calls, cache = model.calls, model.cache
    seen = GradSkip(model).explain(x, target=2)
    assert model.calls is calls
    assert float(calls) == 0
    assert torch.equal(cache, torch.zeros(5))
    from xattr.trace import Inputs, observe

    scores = observe(model, Inputs.of(x)).scores
    model.calls += 0
    assert torch.allclose(scores, EinsumAttentionViT.forward(model, x) + 1 + 7 * torch.eye(5)[2], atol=1e-5)
    assert seen.map.shape == (2, 1, 32, 32)


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def test_what_cannot_be_observed_is_an_error(explain):
    x = images()
    with pytest.raises(UnseenError, match="script"):
        explain(torch.jit.trace(tiny(), x, check_trace=False), x)
    stem = tiny()
    stem.norm_pre = torch.jit.script(nn.LayerNorm(32).eval())
    with pytest.raises(UnseenError, match="script"):
        explain(stem, x)
    custom = tiny()
    custom.norm_pre = type("Custom", (nn.Module,), {"forward": lambda self, z: _Double.apply(z)})()
    with pytest.raises(UnseenError, match="_Double"):
        explain(custom, x)
    with pytest.raises(UnseenError, match="no_grad"):
        explain(torch.no_grad()(tiny()), x)
    with pytest.raises(UnseenError, match="input"):
        explain(lambda z: torch.ones(2, 5, requires_grad=True) * 2, x)


def test_exported_model_is_an_error(explain):
    x = images()
    exported = torch.export.export(tiny(), (x,)).module()
    with pytest.raises(UnseenError, match="export"):
        explain(exported, x)


def test_compiled_model_gives_the_map_of_the_plain_one(explain):
    compilations = []

    def backend(graph, example_inputs):
        compilations.append(graph)
        return graph.forward

    torch.compiler.reset()
    model, x = tiny(), images()
    compiled = torch.compile(model, backend=backend)
    compiled(x)
    before = len(compilations)
    assert before > 0
    assert relative_error(explain(compiled, x), explain(model, x)) < 1e-5
    compiled(x)
    assert len(compilations) == before  # neither the explanation nor the call after it compiled anything


def test_dropout_written_into_the_forward_is_off(explain):
    class Drops(EinsumAttentionViT):
        rate = 0.5

        def forward(self, x):
            x = F.dropout(self.stem(x).flatten(2).transpose(1, 2), self.rate)
            for norm, qkv, out in zip(self.norms, self.qkv, self.out, strict=True):
                q, k, v = (t[:, None] for t in qkv(norm(x)).chunk(3, -1))
                x = x + out(F.scaled_dot_product_attention(q, k, v, None, self.rate)[:, 0])
                x = x + torch.dropout(torch.tanh(x), self.rate, True)
            return self.head(x.mean(1))

    model, x = Drops().eval(), images()
    assert not torch.equal(model(x), model(x))
    dropping = explain(model, x)
    model.rate = 0.0
    assert torch.equal(dropping, explain(model, x))


def test_a_module_that_raises_and_is_caught(explain):
    class Recovers(EinsumAttentionViT):
        def __init__(self):
            super().__init__()
            self.broken = Breaks()

        def forward(self, x):
            try:
                x = self.broken(x)
            except RuntimeError:
                x = x + 1
            return super().forward(x)

    model, x = Recovers().train(), images()
    before = state(model)
    assert relative_error(explain(model, x), explain(lambda z: EinsumAttentionViT.forward(model, z + 1), x)) < 1e-6
    assert same(before, state(model))


def test_pruned_and_parametrised_weights_are_constants(explain):
    import torch.nn.utils.prune as prune

    def build():
        model = tiny()
        prune.l1_unstructured(model.blocks[0].attn.qkv, "weight", amount=0.3)
        torch.nn.utils.parametrizations.weight_norm(model.blocks[1].mlp.fc1)
        return model

    model, x = build(), images()
    assert not model.blocks[0].attn.qkv.weight.is_leaf
    before = model.blocks[0].attn.qkv.weight_orig.clone()
    assert relative_error(explain(model, x), explain(build().requires_grad_(False), x)) < 1e-6
    assert torch.equal(model.blocks[0].attn.qkv.weight_orig, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_close_and_returns_float32(dtype):
    model, x = tiny(global_pool="avg"), images()
    for kind, options in ((GradSkip, {"signed": True}), (AttentionRollout, {})):
        wanted = kind(model).attribute(x, target=1, **options)
        found = kind(copy.deepcopy(model).to(dtype)).attribute(x.to(dtype), target=1, **options)
        assert found.dtype == torch.float32
        cosine = F.cosine_similarity(found.flatten(1), wanted.flatten(1))
        assert float(cosine.min()) > 0.9


def test_convolutional_network_in_train_mode():
    model = timm.create_model("resnet18", num_classes=5).train()
    model.bn1.eval()
    before, x = state(model), images(2, 64)
    found = IntegratedGradients(model).attribute(x, target=1, n_steps=3)
    assert same(before, state(model))
    assert (
        relative_error(found, IntegratedGradients(copy.deepcopy(model).eval()).attribute(x, target=1, n_steps=3)) < 1e-5
    )


def test_nothing_is_kept_after_many_calls(explain):
    """Live tensors after 200 calls are those after 2, with the garbage collector off."""
    model, x = tiny(depth=1), images(1)

    def alive():
        return sum(isinstance(one, torch.Tensor) for one in gc.get_objects())

    for _ in range(2):
        explain(model, x)
    gc.collect()
    gc.disable()
    try:
        before = alive()
        for _ in range(198):
            explain(model, x)
        assert alive() <= before
    finally:
        gc.enable()
