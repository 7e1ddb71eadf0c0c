"""Published protocols: each against a literal version, numbers by hand, and what they must not depend on."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.metrics.test_perturber import by_hand
from tests.models import images, tiny
from tests.oracles import presets as oracle
from xattr.metrics import Perturber, presets
from xattr.metrics.features import patch_labels
from xattr.metrics.presets import PRESETS, Preset, evaluate_preset
from xattr.trace import UnsupportedModelError

SUMS = lambda z: torch.stack([z.sum((1, 2, 3)), -z.sum((1, 2, 3))], 1)
SIZE = (9, 12)


def raw(name, **changes):
    """A protocol whose numbers can be checked by hand: logits, and 0 for whatever is removed."""
    return dataclasses.replace(PRESETS[name], deletion=0, insertion=0, score="logit", **changes)


class Small(torch.nn.Module):
    """Three classes of a picture of any size; which one wins changes as pixels go."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(19)
        self.filters, self.head = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Linear(8, 3)
        self.pretrained_cfg = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.5), "input_size": (3, *SIZE)}

    def forward(self, x):
        return 8 * self.head(self.filters(x).tanh().amax((2, 3)))


def plain(model):
    """The model as a function of one picture in numpy."""

    def f(x):
        with torch.no_grad():
            return model(torch.from_numpy(x)[None].float())[0].double().numpy()

    return f


def pictures(count=2, size=SIZE):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(count, 3, *size, generator=generator)


def heats(count=2, size=(3, 4)):
    return torch.randn(count, 1, *size, generator=torch.Generator().manual_seed(6))


# --- literal versions -------------------------------------------------------------------------------------------------

BLACK = lambda: np.broadcast_to(np.array([-0.5 / 0.2, -0.4 / 0.25, -0.3 / 0.5])[:, None, None], (3, *SIZE))
GRAIN = lambda: torch.randn(3, *SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
LITERAL = {
    "rise": oracle.rise,
    "tis": oracle.tis,
    "mutex": oracle.mutex,
    "chefer": lambda *given: oracle.chefer(*given, BLACK()),
    "abpc": oracle.abpc,
    "road": lambda *given: oracle.road(*given, GRAIN()),
}


@pytest.mark.parametrize("name", LITERAL)
def test_pixel_protocols_are_their_literal_versions(name):
    model, x = Small().eval(), pictures()
    # Resized maps have ties at the border; how the literal versions break them is only promised for "last".
    maps = heats(2, (3, 4) if PRESETS[name].ties == "last" else SIZE)
    with torch.no_grad():
        predicted = model(x).argmax(1)
    labels = (predicted + 1) % 3
    target = labels if name == "tis" else None
    found = evaluate_preset(model, x, maps, name, target)
    for i in range(2):
        c = int(labels[i] if name == "tis" else predicted[i])
        wanted = LITERAL[name](plain(model), x[i].double().numpy(), maps[i, 0].double().numpy(), c)
        assert set(wanted) == set(found.values) == set(found.higher_is_better)
        for key, value in wanted.items():
            # Road solves its system only as well as its noise needs.
            assert float(found.values[key][i]) == pytest.approx(value, abs=5e-3 if name == "road" else 1e-5), key
    assert all(float(curve.std(1).max()) > 0.01 for curve in found.curves.values())  # not constant


def test_libragrad_is_its_literal_version():
    model, x = tiny(), images(3)
    maps = heats(3, (4, 4))
    found = evaluate_preset(model, x, maps, "libragrad")
    for i in range(3):

        def without(gone, i=i):
            keep = torch.ones(1, 16, dtype=torch.bool)
            keep[0, gone] = False
            with torch.no_grad():
                return by_hand(model, x[i : i + 1], keep)[0].double().numpy()

        wanted = oracle.libragrad(without, 16, maps[i].flatten().tolist(), int(without([]).argmax()))
        assert {key: float(value[i]) for key, value in found.values.items()} == pytest.approx(wanted, abs=1e-5)
    assert found.curves["accuracy"].unique().tolist() == [0, 1]
    assert {one.operator for one in found.protocols.values()} == {"drop_tokens"}
    assert {name: one.score for name, one in found.protocols.items()} == {"accuracy": "accuracy", "aopc": "prob"}


def test_srg_is_its_literal_version():
    model, x, maps = tiny(), images(), heats(2, (4, 4))
    found = evaluate_preset(model, x, maps, "srg")
    for i in range(2):
        one, f = x[i].double().numpy(), plain(model)
        wanted = oracle.srg(f, one, maps[i].flatten().tolist(), (4, 4), int(f(one).argmax()))
        assert {key: float(value[i]) for key, value in found.values.items()} == pytest.approx(wanted, abs=1e-4)
    assert found.curves["mif"].shape == (2, 17)


def test_at_224_pixels_numbers_are_those_of_the_papers():
    counts = {}
    for name, preset in PRESETS.items():
        kept = Kept(224 * 224)
        presets._curve(kept, torch.rand(1, 1, 224, 224), preset, "deletion", 0, False)
        counts[name] = (kept.features.count - kept.kept).tolist()
    assert counts["rise"] == [224 * s for s in range(225)]
    assert counts["tis"] == [224 * s for s in range(1, 225)]
    assert counts["mutex"] == [int(q * 50176) for q in (0.01, 0.05, *(k / 10 for k in range(1, 11)))]
    assert counts["chefer"] == [int(50176 * q) for q in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)]
    assert counts["road"] == counts["libragrad"] == [round(5017.6 * k) for k in range(1, 10)]
    assert counts["abpc"] == [round(5017.6 * k) for k in range(11)]
    assert counts["srg"] == [round(501.76 * k) for k in range(101)]


class Kept:
    """Counts what is kept of one square picture."""

    def __init__(self, count):
        side = round(count**0.5)
        labels = torch.arange(count).view(side, side)
        valid = torch.ones(1, count, dtype=torch.bool)
        self.features = presets.Features(valid, "pixel", "0", "prob", "given", labels)
        self.kept = torch.empty(0, dtype=torch.int64)

    def score(self, keep, show_progress=False):
        self.kept = torch.cat([self.kept, keep.sum(2)[0]])
        return keep.sum(2).double()


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_rise_and_tis_by_hand():
    x = torch.tensor([[4.0, 3.0], [2.0, 1.0]]).view(1, 1, 2, 2)
    found = evaluate_preset(SUMS, x, x, raw("rise"), 0)
    assert found.curves["deletion"].tolist() == [[10, 3, 0]]
    assert found.curves["insertion"].tolist() == [[0, 7, 10]]
    assert found.fractions["insertion"].tolist() == [[0, 0.5, 1]]
    assert [float(found.values[name]) for name in ("deletion", "insertion")] == [4, 6]
    found = evaluate_preset(SUMS, x, x, raw("tis"), 0)
    assert found.curves["deletion"].tolist() == [[3, 0]]
    assert found.fractions["deletion"].tolist() == [[0.5, 1]]
    assert [float(found.values[name]) for name in ("deletion", "insertion")] == [1.5, 8.5]
    assert found.protocols["deletion"].steps == 2


def test_mutex_by_hand():
    ones = torch.ones(1, 1, 10, 10)
    found = evaluate_preset(SUMS, ones, heats(1, (2, 2)), raw("mutex"), 0)
    assert found.curves["deletion"].tolist() == [[0, 99, 95, 90, 80, 70, 60, 50, 40, 30, 20, 10, 0]]
    assert found.curves["insertion"].tolist() == [[1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]]
    assert found.fractions["deletion"][0, :3].tolist() == [0, 0.01, 0.05]
    assert float(found.values["deletion"]) == pytest.approx(0.495 + 3.88 + 4.625 + 40.5)
    assert float(found.values["insertion"]) == pytest.approx(0.12 + 0.375 + 49.5)
    assert float(found.values["insertion - deletion"]) == pytest.approx(49.995 - 49.5)
    assert found.protocols["deletion"].steps == found.protocols["insertion"].steps == 12


def test_accuracy_by_hand():
    x = torch.tensor([5.0] + 9 * [-0.5]).view(1, 1, 2, 5)  # the first class wins by its first pixel
    chefer = dataclasses.replace(PRESETS["chefer"], deletion=0, insertion=0)
    found = evaluate_preset(SUMS, x, x, chefer)
    assert found.curves["positive"].tolist() == [9 * [0]]
    assert found.curves["negative"].tolist() == [9 * [1]]
    assert float(found.values["positive"]) == 0
    assert float(found.values["negative"]) == pytest.approx(0.8)  # plain, from 0.1 to 0.9
    published = evaluate_preset(SUMS, x, x, dataclasses.replace(chefer, start="measured"))
    assert float(published.values["positive"]) == pytest.approx(0.05)
    assert float(published.values["negative"]) == pytest.approx(0.9)
    patches = dataclasses.replace(PRESETS["libragrad"], unit=torch.arange(10).view(2, 5), deletion=0)
    found = evaluate_preset(SUMS, x, x, patches)
    p = torch.tensor([2 * (-0.5 * k) for k in range(9, 0, -1)]).double().sigmoid()
    assert float(found.values["accuracy"]) == 0
    assert float(found.values["100 - accuracy"]) == 100
    assert float(found.values["aopc"]) == pytest.approx(float((torch.tensor(1.0).double().sigmoid() - p).mean()))
    assert found.higher_is_better == {"accuracy": False, "100 - accuracy": True, "aopc": True}


def test_least_relevant_first_by_hand():
    x = torch.arange(10.0).view(1, 1, 2, 5)
    abpc = evaluate_preset(SUMS, x, x, raw("abpc"), 0)
    assert abpc.curves["morf"].tolist() == [[45, 36, 28, 21, 15, 10, 6, 3, 1, 0, 0]]
    assert abpc.curves["lerf"].tolist() == [[45, 45, 44, 42, 39, 35, 30, 24, 17, 9, 0]]
    assert float(abpc.values["abpc"]) == pytest.approx((330 - 45 / 2 - 165 + 45 / 2) / 10)
    srg = evaluate_preset(SUMS, x, x, raw("srg", unit=torch.arange(10).view(2, 5)), 0)
    assert float(srg.values["srg"]) == pytest.approx(16.5)
    road = evaluate_preset(SUMS, x, x, raw("road"), 0)
    assert float(road.values["combined"]) == pytest.approx((285 - 120) / 9 / 2)
    assert road.fractions["lerf"][0].tolist() == pytest.approx([k / 10 for k in range(1, 10)])


def test_a_constant_score_has_its_own_value_as_area():
    constant = lambda z: 0 * z.sum((1, 2, 3))[:, None] + torch.tensor([2.0, 1.0])
    for name in ("rise", "tis", "srg", "abpc", "road"):
        change = {"unit": torch.arange(24).view(4, 6)} if name == "srg" else {}
        found = evaluate_preset(constant, torch.rand(1, 1, 4, 6), heats(1, (4, 6)), raw(name, **change), 0)
        assert [float(found.values[one]) for one in found.preset.names] == pytest.approx([2, 2])


def test_equal_values_and_sizes_that_are_no_square():
    x = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]]).view(1, 1, 2, 3)
    flat = torch.zeros(1, 1, 2, 3)
    assert evaluate_preset(SUMS, x, flat, raw("rise"), 0).curves["deletion"].tolist() == [[63, 7, 0]]  # last first
    found = evaluate_preset(SUMS, x, flat, raw("rise", ties="random"), 0, seed=1)
    assert found.ties.tolist() == [1]
    assert found.curves["deletion"][0, 1] in [sum(2.0**k for k in range(6) if k not in gone) for gone in TRIPLES]
    several = {float(evaluate_preset(SUMS, x, flat, raw("srg", unit="pixel"), 0, seed=s).values["mif"]) for s in (1, 2)}
    assert len(several) == 2


TRIPLES = [(a, b, c) for a in range(6) for b in range(a) for c in range(b)]


def test_maps_come_to_the_size_of_the_picture_as_the_protocol_says():
    x, small = torch.arange(16.0).view(1, 1, 4, 4), torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    gone = evaluate_preset(SUMS, x, small, raw("mutex"), 0).curves["deletion"][0, -2]  # 90 % of 16 are 14
    assert float(gone) == 0 + 1  # the last of the lowest block went first
    smooth = evaluate_preset(SUMS, x, small, raw("mutex", resize="bilinear"), 0).curves["deletion"]
    exact = oracle.bilinear(small[0, 0].numpy(), 4, 4)
    top = oracle.backwards(exact.ravel())[: 20 * 16 // 100]
    assert float(smooth[0, 4]) == 120 - sum(top)
    with pytest.raises(ValueError, match=r"maps of \[2, 2\]; this protocol does not resize, expected \[4, 4\]\."):
        evaluate_preset(SUMS, x, small, raw("mutex", resize="none"), 0)
    with pytest.raises(ValueError, match=r"expected \[32, 32\] or \[4, 4\]"):
        evaluate_preset(tiny(), images(), heats(2, (8, 8)), "srg")
    pixels = torch.rand(2, 1, 32, 32)
    patches = torch.nn.functional.avg_pool2d(pixels.double(), 8)
    found, wanted = (evaluate_preset(tiny(), images(), maps, "srg").values["srg"] for maps in (pixels, patches))
    assert torch.equal(found, wanted)


# --- accuracy in the engine -------------------------------------------------------------------------------------------


def test_accuracy_counts_a_largest_score_that_is_alone():
    f = lambda z: z[:, :, 0, 0] * torch.tensor([1.0, 2.0, 2.0])
    x = torch.tensor([[2.0, 0.5, 0.5], [1.0, 3.0, 2.0], [0.0, 1.0, 1.0], [1.0, 0.0, 0.5]]).view(4, 3, 1, 1)
    for target, wanted in ((0, [1, 0, 0, 0]), (1, [0, 1, 0, 0]), (-1, [0, 0, 0, 0]), ([0, 1, 2, 0], [1, 1, 0, 0])):
        bound = Perturber(f, "pixel", 0, "accuracy").bind(x, target)
        found = bound.score(torch.ones(4, 1, 1, dtype=torch.bool))
        assert found[:, 0].tolist() == wanted
        assert found.dtype == torch.float64
        assert bound.features.score == "accuracy"


def test_accuracy_of_dense_scores_is_that_of_a_place():
    f = lambda z: torch.stack([z[:, 0], 1 - z[:, 0]], 1)  # [B, 2, H, W]
    x = torch.tensor([[0.9, 0.2], [0.5, 0.6]]).view(1, 1, 2, 2)
    keep = torch.ones(1, 1, 4, dtype=torch.bool)
    places = [(0, y, u) for y in (0, 1) for u in (0, 1)]
    found = [float(Perturber(f, "pixel", 0, "accuracy").bind(x, place).score(keep)) for place in places]
    assert found == [1, 0, 0, 1]


# --- invariances ------------------------------------------------------------------------------------------------------


def arguments(name, count):
    vit = name in ("libragrad", "srg")
    x = images(count) if vit else pictures(count)
    return tiny() if vit else Small().eval(), x, heats(count, (4, 4) if vit else (3, 4)), name, torch.arange(count) % 3


@pytest.mark.parametrize("name", PRESETS)
def test_nothing_depends_on_the_batch_or_its_order(name):
    model, x, maps, _, target = arguments(name, 3)
    maps[1] = maps[1].round()  # with ties
    target = target if name == "tis" else None
    whole = evaluate_preset(model, x, maps, name, target)
    some = lambda rows: evaluate_preset(model, x[rows], maps[rows], name, None if target is None else target[rows])
    for rows in ([0], [2, 1]):
        part = some(rows)
        for key, value in whole.values.items():
            assert torch.allclose(part.values[key], value[rows], atol=1e-5), key
        assert torch.equal(part.ties, whole.ties[rows])
    limited = evaluate_preset(Perturber(model, internal_batch_size=2), x, maps, name, target)
    assert all(torch.allclose(limited.curves[key], curve, atol=1e-5) for key, curve in whole.curves.items())


@settings(max_examples=8, deadline=None)
@given(
    name=st.sampled_from([n for n in PRESETS if n != "libragrad"]), factor=st.floats(0.1, 10), seed=st.integers(0, 9)
)
def test_only_the_order_of_a_map_counts(name, factor, seed):
    x, maps = torch.rand(1, 1, 6, 6), torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
    preset = raw(name, **({"unit": "pixel"} if name == "srg" else {}))
    found, again, turned = (evaluate_preset(SUMS, x, m, preset, 0) for m in (maps, factor * maps + 3, -maps))
    for key, value in found.values.items():
        assert torch.allclose(again.values[key], value)
    if preset.second == "lerf":
        first, second = preset.names
        assert torch.allclose(turned.values[first], found.values[second])
        if preset.difference:
            assert torch.allclose(turned.values[preset.difference[0]], -found.values[preset.difference[0]])


def test_masks_made_in_parts_change_nothing(monkeypatch):
    model, x, maps, name, _ = arguments("rise", 2)
    whole = evaluate_preset(model, x, maps, name)
    monkeypatch.setattr(presets, "_AT_ONCE", 500)
    parts = evaluate_preset(model, x, maps, name)
    assert all(torch.allclose(parts.curves[key], curve, atol=1e-6) for key, curve in whole.curves.items())


def test_images_with_different_numbers_of_regions():
    labels = torch.tensor([[[0, 1], [2, 3]], [[0, 0], [1, 1]]])
    x = torch.tensor([[4.0, 3.0], [2.0, 1.0]]).expand(2, 1, 2, 2).clone()
    found = evaluate_preset(SUMS, x, x, raw("srg", unit=labels), 0)
    alone = evaluate_preset(SUMS, x[1:], x[1:], raw("srg", unit=labels[1]), 0)
    assert found.curves["lif"][0].tolist() == [10, 9, 7, 4, 0]
    assert set(found.curves["lif"][1].tolist()) == {10.0, 7.0, 0.0}
    last = evaluate_preset(SUMS, x, x, raw("srg", unit=labels, ties="last"), 0)  # the same order, as nothing ties
    assert torch.equal(last.values["srg"], found.values["srg"])
    assert found.ties.tolist() == [0, 0]
    assert float(alone.values["srg"]) == float(found.values["srg"][1]) == (8.5 + 3.5 - 6.5 - 1.5) / 2


# --- what is recorded, what is refused --------------------------------------------------------------------------------


def test_a_result_says_how_it_came_about():
    model, x, maps, _, _ = arguments("rise", 2)
    found = evaluate_preset(model, x, maps, "rise")
    assert found.preset is PRESETS["rise"]
    one, two = found.protocols["deletion"], found.protocols["insertion"]
    assert (one.metric, one.unit, one.operator, one.score, one.steps, one.class_, one.images) == (
        "deletion", "pixel", "0", "prob", 9, "predicted", 2,
    )  # fmt: skip
    assert two.operator == "blur"
    assert evaluate_preset(model, x, maps, "rise", 1).protocols["deletion"].class_ == "given"


class TokensFirst(torch.nn.Module):
    """A transformer with the axis of tokens in front of that of images, which the engine does not shorten."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = torch.nn.Conv2d(3, 16, 8, 8), torch.nn.Linear(16, 5)
        self.blocks = torch.nn.ModuleList(torch.nn.TransformerEncoderLayer(16, 2, 32) for _ in range(2))

    def forward(self, x):
        tokens = self.stem(x).flatten(2).permute(2, 0, 1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(tokens.mean(0))


def test_where_tokens_cannot_leave():
    model, x = TokensFirst().eval(), images()
    found = evaluate_preset(model, x, heats(2, (4, 4)), "libragrad").protocols["accuracy"]
    assert found.unit == "patch"
    assert found.operator == Perturber(model, "patch").bind(x).features.operator != "drop_tokens"
    with pytest.raises(UnsupportedModelError, match='unit="patch"'):
        evaluate_preset(Small(), pictures(), heats(), "libragrad")
    squares = dataclasses.replace(PRESETS["srg"], unit=patch_labels((3, 4), SIZE))
    assert evaluate_preset(Small(), pictures(), heats(2, SIZE), squares).curves["mif"].shape == (2, 13)


def test_forwards_are_as_many_as_the_table_says():
    rows = []
    model, x = Small().eval(), pictures(1)
    model.register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
    for name, points, binds in (("rise", 20, 2), ("tis", 18, 1), ("mutex", 24, 1), ("chefer", 18, 1), ("abpc", 22, 1)):
        rows.clear()
        Perturber(model, "pixel", 0).bind(x)
        bind = sum(rows)
        rows.clear()
        evaluate_preset(model, x, heats(1), name, 0)
        assert sum(rows) == points + binds * bind, name


def test_nothing_of_the_users_changes():
    model, x, maps, _, _ = arguments("srg", 2)
    before, rng = [t.clone() for t in (x, maps, *model.state_dict().values())], torch.get_rng_state()
    evaluate_preset(model.train(), x, maps, "libragrad")
    assert model.training
    assert all(torch.equal(a, b) for a, b in zip(before, (x, maps, *model.state_dict().values()), strict=True))
    assert torch.equal(rng, torch.get_rng_state())


def test_silent_and_with_a_bar(capfd):
    model, x, maps, _, _ = arguments("abpc", 1)
    evaluate_preset(model, x, maps, "abpc")
    assert capfd.readouterr() == ("", "")
    evaluate_preset(model, x, maps, "abpc", show_progress=True)
    assert "%|" in capfd.readouterr().err


SINGLE = lambda z: z.sum((1, 2, 3))[:, None]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"preset": "lime"}, "preset='lime'; expected a Preset, or one of rise, tis, mutex, chefer, libragrad"),
        ({"preset": None}, "preset=None"),
        ({"preset": "tis"}, "target=None; this protocol .Englebert.* give target=labels"),
        ({"attributions": torch.zeros(1, 1, 4, 4)}, "found 1 attributions for 2 examples"),
        ({"attributions": torch.full((2, 1, 3, 4), float("nan")), "preset": "mutex"}, "NaN"),
        ({"forward_func": SINGLE, "preset": dataclasses.replace(PRESETS["chefer"], deletion=0)}, "2 classes or more"),
        ({"forward_func": SUMS, "preset": "chefer"}, "nothing says how this model normalises"),
        ({"forward_func": Perturber(SUMS, "pixel", score="logit")}, "a perturber, and unit, score given"),
        ({"forward_func": Perturber(SUMS), "additional_forward_args": (1,)}, "and additional_forward_args given"),
        ({"forward_func": Perturber(SUMS).bind(pictures())}, "found a bound perturber"),
        ({"preset": raw("rise", unit=torch.zeros(SIZE).long())}, 'steps="row" takes pixels; found unit .region.'),
        ({"target": 7}, r"0\.\.2"),
    ],
)
def test_bad_arguments_are_named(change, says):
    given = {"forward_func": Small(), "inputs": pictures(), "attributions": heats(), "preset": "rise", **change}
    with pytest.raises(ValueError, match=says):
        evaluate_preset(**given)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"area": "sum"}, "area='sum'; expected one of range, plain, mean"),
        ({"ties": "first"}, "ties='first'"),
        ({"score": "loss"}, "score='loss'"),
        ({"names": ()}, r"names=\(\)"),
        ({"names": ("morf",)}, "two for a difference"),
        ({"steps": (10, 10)}, "rising percentages"),
        ({"steps": (0, 10)}, "rising percentages"),
        ({"steps": ()}, "rising percentages"),
        ({"steps": [10, 20]}, "a tuple"),
        ({"steps": 0}, "steps=0"),
        ({"steps": True}, "steps=True"),
    ],
)
def test_a_protocol_of_your_own_is_checked(change, says):
    with pytest.raises(ValueError, match=says):
        dataclasses.replace(PRESETS["abpc"], **change)
    assert isinstance(dataclasses.replace(PRESETS["abpc"], steps=(100,)), Preset)
