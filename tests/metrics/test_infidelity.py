"""Infidelity and max-sensitivity: exact on linear models, the same as loops and Captum, and image by image."""

import captum.attr
import captum.metrics
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import images, tiny
from tests.trace.test_safety import mixed_model, same, state
from xattr.attr import GradSkip, IntegratedGradients
from xattr.metrics import Perturber
from xattr.metrics.infidelity import infidelity
from xattr.metrics.sensitivity import max_sensitivity

FORMS = ("squares", "gaussian")
captum_speaks = pytest.mark.filterwarnings("ignore:Input Tensor 0 did not")
each_form = pytest.mark.parametrize("form", FORMS)


def linear(seed=0, batch=3, size=(6, 5)):
    """A linear model, images, its weights as maps and what each entry contributes."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(2, *size, generator=generator, dtype=torch.float64)
    x = torch.rand(batch, 2, *size, generator=generator, dtype=torch.float64)
    return lambda z: (z * weights).sum((1, 2, 3)), x, {"gaussian": weights.expand_as(x), "squares": x * weights}


def drawn(model, x, **arguments):
    """The result, and the perturbed images that the model saw, `[B, samples, C, H, W]`."""
    seen = []
    arguments = {"samples": 5, "score": "logit", **arguments}
    found = infidelity(lambda z: seen.append(z.clone()) or model(z), x, internal_batch_size=1, **arguments)
    shown = torch.cat(seen[-len(x) * (arguments["samples"] + 1) :]).view(len(x), -1, *x.shape[1:])
    assert torch.equal(shown[:, 0], x)
    return found, shown[:, 1:]


@settings(max_examples=20, deadline=None)
@given(
    form=st.sampled_from(FORMS),
    seed=st.integers(0, 99),
    scale=st.floats(0.01, 100),
    sign=st.sampled_from([1, -1]),
)
def test_a_linear_model_is_explained_by_its_weights_at_any_scale(form, seed, scale, sign):
    f, x, exact = linear(seed)
    right = infidelity(f, x, exact[form], perturbation=form, samples=8)
    assert float(right.raw.max()) < 1e-24
    assert float(right.value.max()) < 1e-24
    assert torch.allclose(right.factor, torch.ones(3, dtype=torch.float64))
    found = infidelity(f, x, sign * scale * exact[form], perturbation=form, samples=8)
    assert float(found.value.max()) < 1e-20
    assert torch.allclose(found.factor, torch.full((3,), sign / scale, dtype=torch.float64))
    # raw = (scale - 1)^2 E d^2, and E d^2 is what a map of 0 gets
    nothing = infidelity(f, x, 0 * exact[form], perturbation=form, samples=8)
    assert torch.allclose(found.raw, (sign * scale - 1) ** 2 * nothing.raw, rtol=1e-9, atol=1e-12)
    assert torch.equal(nothing.raw, nothing.value)
    assert not bool(nothing.factor.any())


def test_seven_times_the_weights():
    f, x, exact = linear()
    found = infidelity(f, x, 7 * exact["gaussian"], perturbation="gaussian", samples=16)
    assert bool((found.raw > 0.1).all())
    assert float(found.value.max()) < 1e-24


@settings(max_examples=10, deadline=None)
@given(form=st.sampled_from(FORMS), seed=st.integers(0, 99), factor=st.floats(0.01, 100), sign=st.sampled_from([1, -1]))
def test_any_map_at_any_scale(form, seed, factor, sign):
    f, x, _ = linear(seed)
    map_ = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    one = infidelity(f, x, map_, perturbation=form, samples=8)
    other = infidelity(f, x, sign * factor * map_, perturbation=form, samples=8)
    assert torch.allclose(one.value, other.value, rtol=1e-9)
    assert torch.allclose(one.factor, sign * factor * other.factor, rtol=1e-9)
    assert bool((one.value <= one.raw * (1 + 1e-12)).all())


@each_form
def test_against_a_loop_and_captum(form):
    model, x = tiny().double(), images(dtype=torch.float64)
    phi = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64) / 10
    found, shown = drawn(model, x, attributions=phi, target=2, perturbation=form, score="prob")
    moved = x[:, None] - shown if form == "gaussian" else (shown != x[:, None]).any(2, keepdim=True).double()
    with torch.no_grad():
        p = lambda z: model(z).softmax(1)[:, 2]
        for i in range(2):
            sums, drops = [], []
            for k in range(5):
                sums.append(float((moved[i, k] * phi[i]).sum()))
                drops.append(float(p(x[i : i + 1]) - p(shown[i, k : k + 1])))
            beta = sum(s * d for s, d in zip(sums, drops, strict=True)) / sum(s * s for s in sums)
            assert float(found.factor[i]) == pytest.approx(beta, rel=1e-9)
            for factor, value in ((1, found.raw[i]), (beta, found.value[i])):
                wanted = sum((factor * s - d) ** 2 for s, d in zip(sums, drops, strict=True)) / 5
                assert float(value) == pytest.approx(wanted, rel=1e-6)
    perturb = lambda repeated: (moved.expand_as(shown).flatten(0, 1), shown.flatten(0, 1))
    for normalize, value in ((False, found.raw), (True, found.value)):
        theirs = captum.metrics.infidelity(p, perturb, x, phi, n_perturb_samples=5, normalize=normalize)
        assert torch.allclose(value, theirs, rtol=1e-6, atol=1e-12)


def test_draws_are_what_the_result_says():
    f, x, exact = linear(size=(9, 7))
    found, shown = drawn(f, x, attributions=exact["squares"], size=3, baseline=-1, samples=99)
    gone = (shown == -1).all(2)
    assert torch.equal(gone, (shown != x[:, None]).any(2))  # a pixel goes with all its channels
    assert torch.equal(gone, gone[:1].expand_as(gone))  # the same squares in every image
    whole = torch.zeros(9, 7, 9, 7, dtype=torch.bool)
    for row in range(9):
        for column in range(7):
            whole[row, column, max(0, row - 1) : row + 2, max(0, column - 1) : column + 2] = True
    assert all(bool((square == whole.flatten(0, 1)).all((1, 2)).any()) for square in gone[0])
    assert bool(gone[0].any(0).all())  # in 99 draws every pixel was in one
    assert (found.perturbation, found.size, found.baseline, found.samples) == ("squares", 3, "-1", 99)
    found, shown = drawn(f, x, attributions=exact["gaussian"], perturbation="gaussian", size=0.5, samples=40, seed=4)
    noise = x[:, None] - shown
    assert torch.allclose(noise, noise[:1].expand_as(noise))
    assert float(noise[0].std()) == pytest.approx(0.5, rel=0.05)
    assert float(noise[0].mean()) == pytest.approx(0, abs=0.05)
    assert (found.size, found.baseline, found.seed, found.score, found.class_) == (0.5, None, 4, "logit", "predicted")
    other = drawn(f, x, attributions=exact["gaussian"], perturbation="gaussian", size=0.5, samples=40)[1]
    assert not torch.allclose(shown, other)


def test_maps_of_other_sizes():
    f, x, _ = linear(size=(5, 7))
    coarse = torch.tensor([[[[6.0, 0.0, 4.0], [12.0, 0.0, 9.0]]]]).expand(3, 1, 2, 3)
    # 7 columns in 3 cells hold 3, 2 and 2; 5 rows in 2 hold 3 and 2
    fine = torch.zeros(3, 1, 5, 7)
    fine[:, :, :3, :3], fine[:, :, :3, 5:], fine[:, :, 3:, :3], fine[:, :, 3:, 5:] = 6 / 9, 4 / 6, 12 / 6, 9 / 4
    assert torch.allclose(fine.sum((1, 2, 3)), coarse.sum((1, 2, 3)))
    wanted = infidelity(f, x, fine, samples=6)
    for maps in (coarse, coarse[:, 0], torch.cat([0.3 * coarse, 0.7 * coarse], 1), fine.expand(3, 2, 5, 7) / 2):
        assert torch.allclose(infidelity(f, x, maps, samples=6).raw, wanted.raw, rtol=1e-6)
        assert torch.allclose(infidelity(f, x, maps, samples=6).value, wanted.value, rtol=1e-6)


@each_form
def test_no_image_depends_on_another(form):
    model, x = tiny(), images(3)
    phi = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    whole = infidelity(model, x, phi, perturbation=form, samples=4)
    target, order = model(x).argmax(1), torch.tensor([2, 0, 1])
    others = [
        infidelity(model, x[order], phi[order], target[order], perturbation=form, samples=4).value[order.argsort()]
    ]
    for size in (1, 2):
        parts = [infidelity(model, a, b, perturbation=form, samples=4, internal_batch_size=size)
                 for a, b in zip(x.split(size), phi.split(size), strict=True)]  # fmt: skip
        others.append(torch.cat([part.value for part in parts]))
    for other in others:
        assert torch.allclose(other, whole.value, rtol=1e-3, atol=1e-9)


def test_what_belongs_to_an_image_goes_with_it():
    f, x, exact = linear()
    factors = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    maps = exact["squares"] * factors.view(3, 1, 1, 1)
    found = infidelity(
        lambda z, by: by * f(z), x, maps, samples=4, additional_forward_args=factors, internal_batch_size=2
    )
    assert float(found.raw.max()) < 1e-24


class Fails(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.calls = mixed_model(), []

    def forward(self, x):
        self.calls.append(len(x))
        if len(self.calls) > 3:
            raise RuntimeError("inside the model")
        return self.inner(x)


@each_form
def test_nothing_changes(form):
    model, x = mixed_model(), images()
    before, image, random = state(model), x.clone(), torch.get_rng_state()
    one = infidelity(model, x, x, perturbation=form, samples=2)
    assert torch.equal(infidelity(model, x, x, perturbation=form, samples=2).raw, one.raw)  # no dropout
    assert same(before, state(model))
    assert torch.equal(x, image)
    fails = Fails().train()
    before = state(fails)
    with pytest.raises(RuntimeError, match="inside the model"):
        infidelity(fails, x, x, perturbation=form, samples=2, internal_batch_size=1)
    assert same(before, state(fails))
    assert torch.equal(random, torch.get_rng_state())


def test_what_infidelity_refuses():
    f, x, exact = linear()
    maps = exact["squares"]
    with pytest.raises(ValueError, match="found a Perturber; infidelity has its own draws"):
        infidelity(Perturber(f), x, maps)
    with pytest.raises(ValueError, match='perturbation="squares" takes others'):
        infidelity(f, x, maps[:, :1], perturbation="gaussian")
    for wrong in (maps[:2], torch.zeros(3, 1, 7, 5), torch.zeros(3, 5)):
        with pytest.raises(ValueError, match="no larger than them"):
            infidelity(f, x, wrong)
    with pytest.raises(ValueError, match="NaN or infinite"):
        infidelity(f, x, maps.log())
    for arguments, match in (
        ({"size": 6}, "side of a square in pixels, 1 to 5"),
        ({"size": 2.0}, "side of a square in pixels"),
        ({"size": -1, "perturbation": "gaussian"}, "standard deviation above 0"),
        ({"perturbation": "noise"}, '"squares" or "gaussian"'),
        ({"samples": 0}, "samples=0"),
        ({"score": "softmax"}, "score='softmax'"),
        ({"baseline": "drop_tokens"}, "baseline='drop_tokens'; expected \"mean\""),
        ({"internal_batch_size": 0}, "internal_batch_size=0"),
    ):
        with pytest.raises(ValueError, match=match):
            infidelity(f, x, maps, **arguments)


def scaled(x, target=None):
    """A map that a closed form follows: the image itself, twice."""
    return 2 * x


def test_sensitivity_against_a_loop():
    x, seen = images(2, 8), []
    found = max_sensitivity(lambda z, target: seen.append(z) or scaled(z), x, radius=0.3, samples=7)
    for i in range(2):
        image, noisy = seen[2 * i], seen[2 * i + 1]
        assert torch.equal(image, x[i : i + 1])
        assert len(noisy) == 7
        changes = [float((2 * n - 2 * image[0]).norm() / (2 * image).norm()) for n in noisy]
        assert float(found.value[i]) == pytest.approx(max(changes), rel=1e-5)
        noise = noisy - image
        assert 0.29 < float(noise.abs().max()) <= 0.3 + 1e-6
        assert float(noise.mean()) == pytest.approx(0, abs=0.03)
    assert torch.allclose(seen[1] - seen[0], seen[3] - seen[2], atol=1e-6)  # the same noise for each image
    assert (found.radius, found.samples, found.seed, found.higher_is_better) == (0.3, 7, 0, False)


def test_maps_that_stay_or_are_zero():
    x = images(3, 8)
    assert not bool(max_sensitivity(lambda z, target: torch.ones_like(z).mT, x).value.any())
    turned = max_sensitivity(lambda z, target: z.mT, x).value
    assert torch.allclose(turned, max_sensitivity(scaled, x).value)
    x[1] = 0
    found = max_sensitivity(scaled, x)
    assert found.value.isnan().tolist() == [False, True, False]


@captum_speaks
def test_sensitivity_of_real_methods_image_by_image():
    model, x = tiny(depth=1), images(3)
    target = torch.tensor([0, 3, 1])
    order = torch.tensor([1, 2, 0])
    for method in (GradSkip(model), IntegratedGradients(model), captum.attr.Saliency(model)):
        if isinstance(method, IntegratedGradients):
            explain = lambda z, target, method=method: method.attribute(z, target=target, n_steps=2)
        else:
            explain = method
        whole = max_sensitivity(explain, x, target, samples=3).value
        assert bool((whole > 0).all())
        alone = [max_sensitivity(explain, x[i : i + 1], int(target[i]), samples=3).value for i in range(3)]
        assert torch.equal(torch.cat(alone), whole)
        assert torch.equal(max_sensitivity(explain, x[order], target[order].tolist(), samples=3).value, whole[order])
        parts = max_sensitivity(explain, x, target, samples=3, internal_batch_size=2).value
        assert torch.allclose(parts, whole, rtol=1e-3)
    by_hand = GradSkip(model).attribute
    assert torch.equal(max_sensitivity(by_hand, x, target, samples=3).value,
                       max_sensitivity(GradSkip(model), x, target, samples=3).value)  # fmt: skip


def test_the_class_is_that_of_the_image_itself():
    """The noise changes which class wins; the explained one must stay."""

    class Method:
        asked = []  # noqa: RUF012

        def forward_func(self, z):
            return torch.stack([z.sum((1, 2, 3)), -z.sum((1, 2, 3))], 1)

        def attribute(self, z, target=None):
            self.asked.append(target)
            return z

    x = torch.full((2, 1, 2, 2), 0.01)
    x[1] *= -1
    max_sensitivity(Method(), x, radius=1, samples=4)
    assert Method.asked == [0, 0, 1, 1]
    passed = []
    max_sensitivity(lambda z, target: passed.append(target) or z, x, samples=2)
    assert passed == [None] * 4


def test_explanations_that_draw_do_not_depend_on_the_order_and_leave_the_generator_alone():
    x, order, seen = images(3, 8), torch.tensor([2, 0, 1]), []
    explain = lambda z, target: z + torch.randn(z.shape)
    whole = max_sensitivity(explain, x, samples=3).value
    torch.rand(5)
    random = torch.get_rng_state()
    assert torch.equal(max_sensitivity(explain, x[order], samples=3).value, whole[order])
    max_sensitivity(lambda z, target: seen.append(z) or explain(z, target), x, samples=3, internal_batch_size=1)
    max_sensitivity(lambda z, target: seen.append(z) or z, x, samples=3, internal_batch_size=1)
    assert torch.equal(torch.cat(seen[:12]), torch.cat(seen[12:]))  # their draws do not change ours
    with pytest.raises(ZeroDivisionError):
        max_sensitivity(lambda z, target: torch.rand(1) * (1 / 0), x)
    assert torch.equal(random, torch.get_rng_state())


@captum_speaks
def test_a_function_may_take_gradients():
    model, x = tiny(), images()

    def gradient(z, target):
        leaf = z.clone().requires_grad_()
        return torch.autograd.grad(model(leaf)[:, target].sum(), leaf)  # a tuple, as from Captum

    theirs = lambda z, target: captum.attr.Saliency(model).attribute(z, target=target, abs=False)
    with torch.no_grad():
        found = max_sensitivity(gradient, x, 1, samples=2).value
    assert torch.allclose(found, max_sensitivity(theirs, x, 1, samples=2).value)


@captum_speaks
def test_sensitivity_leaves_a_model_in_train_mode_alone():
    model, x = mixed_model(), images()
    before, image = state(model), x.clone()
    for method in (GradSkip(model), captum.attr.Saliency(model), captum.attr.InputXGradient(model)):
        first = max_sensitivity(method, x, samples=2).value
        assert torch.equal(first, max_sensitivity(method, x, samples=2).value)
        assert same(before, state(model))
    assert torch.equal(x, image)
    assert not x.requires_grad


def test_what_sensitivity_refuses():
    x = images(2, 8)
    with pytest.raises(ValueError, match="3 targets for 2 images"):
        max_sensitivity(scaled, x, [0, 1, 2])
    with pytest.raises(ValueError, match="radius=0"):
        max_sensitivity(scaled, x, radius=0)
    with pytest.raises(ValueError, match="samples=0"):
        max_sensitivity(scaled, x, samples=0)
    with pytest.raises(ValueError, match="internal_batch_size=0"):
        max_sensitivity(scaled, x, internal_batch_size=0)
    with pytest.raises(ValueError, match="found a str"):
        max_sensitivity("GradSkip", x)
