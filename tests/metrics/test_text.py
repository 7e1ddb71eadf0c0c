"""Tokens on the engine of the other metrics: inputs made by hand, closed forms on sums of words, and nothing beside."""

import itertools

import numpy as np
import pytest
import scipy.stats
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.test_safety import same, state
from xattr.metrics import Bound, deletion, insertion_deletion, leave_one_out, saco, sensitivity_n, violations
from xattr.metrics.text import TokenPerturber

PAD, CLS, SEP, MASK = 0, 1, 2, 3
SPECIAL = [PAD, CLS, SEP]
IDS = torch.tensor([
    [CLS, 11, 12, 13, 14, 15, SEP, 0, 0],
    [CLS, 21, 22, SEP, 0, 0, 0, 0, 0],
    [CLS, 31, 11, 33, 12, 35, 36, 37, SEP],
])  # fmt: skip
ATTENTION = (IDS != PAD).long()
TYPES = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1, 1]])
TEXTS = {"input_ids": IDS, "attention_mask": ATTENTION, "token_type_ids": TYPES}
WORDS = {"input_ids": IDS, "attention_mask": ATTENTION}
REMOVABLE = (IDS > SEP).tolist()


def bert(kind="Bert", seed=0, **options):
    """Two layers with weights of a size that shows."""
    sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 3}
    config = getattr(transformers, f"{kind}Config")(
        **sizes, intermediate_size=64, max_position_embeddings=32, pad_token_id=PAD, type_vocab_size=2, **options
    )
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(1 + 0.2 * noise if name.endswith("LayerNorm.weight") else 0.3 * noise)
    return model


def some_sets(steps=5, seed=0):
    """Sets of tokens of each text; what is no feature is kept at random, which must not matter."""
    return torch.rand(3, steps, 9, generator=torch.Generator().manual_seed(seed)) > 0.5


def one_text(b, kept=None):
    """Text b alone, without padding, with the kept of its tokens."""
    there = [t for t in range(9) if ATTENTION[b, t] and (kept is None or kept[t] or not REMOVABLE[b][t])]
    return {name: value[b : b + 1, there] for name, value in TEXTS.items()}


def by_hand(model, operator, b, kept):
    """Logits `[C]` of one text with some tokens."""
    text = one_text(b, kept if operator == "drop" else None)
    gone = [t for t in range(9) if REMOVABLE[b][t] and not kept[t]]
    if operator == "mask":
        text["attention_mask"][0, gone] = 0
    if operator == "replace":
        text["input_ids"][0, gone] = MASK
    with torch.no_grad():
        return model(**text).logits[0].double()


def words(count=40, classes=3, seed=0):
    """What each word says for each class, for models that add up words."""
    return torch.randn(count, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def adding(table):
    def model(input_ids, attention_mask=None):
        said = table[input_ids]
        return (said if attention_mask is None else said * attention_mask[..., None]).sum(1)

    return model


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
@pytest.mark.parametrize("score", ["logit", "prob"])
@pytest.mark.parametrize("operator", ["mask", "drop", "replace"])
def test_removed_tokens_are_removed_by_hand(operator, score, kind):
    # RoBERTa counts positions from its ids.
    model, keep = bert(kind), some_sets()
    found = TokenPerturber(model, operator, MASK, SPECIAL, score).bind(TEXTS, [0, 2, 1]).score(keep)
    assert found.shape == (3, 5) and found.dtype == torch.float64
    for b, c in enumerate([0, 2, 1]):
        for s in range(5):
            logits = by_hand(model, operator, b, keep[b, s].tolist())
            wanted = float(logits[c] if score == "logit" else logits.softmax(0)[c])
            assert float(found[b, s]) == pytest.approx(wanted, abs=2e-5)
    assert float(found.std(1).min()) > 1e-3


@pytest.mark.parametrize("operator", ["mask", "drop", "replace"])
def test_all_kept_is_the_model(operator):
    model = bert()
    with torch.no_grad():
        wanted = model(**TEXTS).logits
    for score, value in (("logit", wanted), ("prob", wanted.softmax(1))):
        bound = TokenPerturber(model, operator, MASK, SPECIAL, score).bind(TEXTS)
        assert isinstance(bound, Bound) and bound.features.valid.tolist() == REMOVABLE
        whole = bound.score(torch.ones(3, 1, 9, dtype=torch.bool))
        top = wanted.argmax(1, keepdim=True)
        assert torch.allclose(whole.float(), value.gather(1, top), atol=1e-5)


@pytest.mark.parametrize("operator", ["mask", "drop", "replace"])
def test_alone_in_a_batch_in_any_order_and_in_parts(operator):
    model, keep = bert(), some_sets()
    perturber = TokenPerturber(model, operator, MASK, SPECIAL, "logit")
    whole = perturber.bind(TEXTS).score(keep)
    for b in range(3):
        size = int(ATTENTION[b].sum())
        alone = perturber.bind(one_text(b)).score(keep[b : b + 1, :, :size])
        assert torch.allclose(alone, whole[b : b + 1], atol=2e-5)
    order = torch.tensor([2, 0, 1])
    moved = perturber.bind({name: value[order] for name, value in TEXTS.items()}).score(keep[order])
    assert torch.allclose(moved, whole[order], atol=2e-5)
    sizes = []
    handle = model.register_forward_pre_hook(lambda m, a, k: sizes.append(k["input_ids"].shape), with_kwargs=True)
    for limits in ({"budget": 1}, {"internal_batch_size": 1}):
        bound = TokenPerturber(model, operator, MASK, SPECIAL, "logit", **limits).bind(TEXTS)
        sizes.clear()
        assert torch.allclose(bound.score(keep), whole, atol=2e-5)
        assert [n for n, _ in sizes] == [1] * 15
    handle.remove()
    left = (keep | (IDS <= SEP)[:, None]) & (ATTENTION > 0)[:, None]
    assert sorted(t for _, t in sizes) == sorted(left.sum(2).flatten().tolist() if operator == "drop" else [9] * 15)


def test_left_padding_leaves_with_dropped_tokens():
    model, keep = bert(), some_sets()
    left = {name: value.flip(1) for name, value in TEXTS.items()}
    found = TokenPerturber(model, "drop", special=SPECIAL, score="logit").bind(left, 1).score(keep.flip(2))
    for b in range(3):
        text = {name: value.flip(1) for name, value in one_text(b, keep[b, 0].tolist()).items()}
        with torch.no_grad():
            assert float(found[b, 0]) == pytest.approx(float(model(**text).logits[0, 1]), abs=2e-5)


def test_given_positions_and_other_tensors_of_tokens_follow():
    model, keep = bert(), some_sets(1)
    texts = TEXTS | {"position_ids": torch.arange(9).expand(3, 9)}
    found = TokenPerturber(model, "drop", special=SPECIAL, score="logit").bind(texts, 0).score(keep)
    masked = TokenPerturber(model, "mask", special=SPECIAL, score="logit").bind(TEXTS, 0).score(keep)
    assert torch.allclose(found, masked, atol=2e-5)  # places as they were, and nobody sees the rest: the same
    anew = TokenPerturber(model, "drop", special=SPECIAL, score="logit").bind(TEXTS, 0).score(keep)
    assert float((anew - found).abs().max()) > 1e-2
    boxes, bias = torch.randn(3, 9, 4), torch.tensor([1.0, 2.0, 3.0])
    boxed = lambda input_ids, boxes, bias, scale: (boxes.sum((1, 2)) * scale + bias)[:, None]
    given_ = {"input_ids": IDS, "boxes": boxes, "bias": bias, "scale": 2.0}
    found = TokenPerturber(boxed, "drop", special=SPECIAL, score="logit").bind(given_).score(keep)
    shown = torch.where((keep[:, 0] | (IDS <= SEP))[..., None], boxes, 0)
    assert torch.allclose(found[:, 0].float(), 2 * shown.sum((1, 2)) + bias, atol=1e-5)


@pytest.mark.parametrize("form", ["mapping", "encoding", "ids"])
@pytest.mark.parametrize("operator", ["mask", "drop", "replace"])
def test_forms_of_inputs(form, operator):
    table, keep = words(), some_sets()
    table[PAD] = 0
    data = {"input_ids": IDS, "attention_mask": ATTENTION}
    inputs = {"mapping": data, "encoding": transformers.BatchEncoding(data), "ids": IDS}[form]
    found = TokenPerturber(adding(table), operator, MASK, SPECIAL, "logit").bind(inputs, 1).score(keep)
    other = table[MASK, 1] if operator == "replace" else 0.0
    wanted = torch.where((keep | (IDS <= SEP)[:, None]), table[IDS, 1][:, None], other).sum(2)
    assert torch.allclose(found, wanted, atol=1e-12)
    positional = TokenPerturber(lambda ids, table: table[ids].sum(1), "drop", None, SPECIAL, "logit", table)
    assert torch.allclose(positional.bind(IDS, 1).score(keep), torch.where(
        (keep | (IDS <= SEP)[:, None]), table[IDS, 1][:, None], 0.0).sum(2), atol=1e-12)  # fmt: skip


def test_special_tokens_by_ids_and_by_mask():
    model = adding(words())
    masks = (IDS <= SEP).long()
    for special in (SPECIAL, tuple(SPECIAL), torch.tensor(SPECIAL), masks, masks.bool(), masks.tolist()):
        assert TokenPerturber(model, special=special).bind(WORDS).features.valid.tolist() == REMOVABLE
    everything = TokenPerturber(model).bind(WORDS).features.valid
    assert torch.equal(everything, ATTENTION > 0)
    assert bool(TokenPerturber(model).bind(IDS).features.valid.all())


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), operator=st.sampled_from(["mask", "drop", "replace"]), factor=st.floats(0.01, 100))
def test_words_that_add_up_are_explained_by_what_they_say(seed, operator, factor):
    table = words(seed=seed)
    said = table[IDS, 2] - (table[MASK, 2] if operator == "replace" else 0)
    said[IDS <= SEP] = 1e3  # of special tokens and padding: must not be read
    perturber = TokenPerturber(adding(table), operator, MASK, SPECIAL, "logit")
    bound = perturber.bind(WORDS, 2)
    one = torch.ones(3, dtype=torch.float64)
    for metric in (leave_one_out, sensitivity_n):
        assert torch.allclose(metric(bound, None, factor * said), one, atol=1e-5)
        assert torch.allclose(metric(bound, None, -said), -one, atol=1e-5)
    assert not bool(violations(bound, None, said).any()) and bool(violations(bound, None, -said).all())
    assert torch.allclose(saco(bound, None, said, groups=2), one)
    pair = insertion_deletion(bound, None, said)
    for b in range(3):
        parts = sorted((float(said[b, t]) for t in range(9) if REMOVABLE[b][t]), reverse=True)
        whole = float((table[IDS[b], 2] * ATTENTION[b]).sum())
        hidden = np.cumsum([whole, *(-part for part in parts)])
        shown = np.cumsum([whole - sum(parts), *parts])
        for found, curve in ((pair.deletion, hidden), (pair.insertion, shown)):
            area = sum((a + b) / 2 for a, b in itertools.pairwise(curve)) / len(parts)
            assert float(found.value[b]) == pytest.approx(area, abs=1e-5)
            assert found.curve[b, [0, -1]].tolist() == pytest.approx([curve[0], curve[-1]])


@pytest.mark.parametrize("operator", ["mask", "drop", "replace"])
def test_metrics_on_a_transformer_against_loops(operator):
    model, rated = bert(), torch.randn(3, 9, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    bound = TokenPerturber(model, operator, MASK, SPECIAL).bind(TEXTS)
    curve, agreed = deletion(bound, TEXTS, rated), leave_one_out(bound, TEXTS, rated)
    protocol = curve.protocol
    assert (protocol.unit, protocol.score, protocol.class_, protocol.empty) == ("token", "prob", "predicted", None)
    assert protocol.operator == (f"replace {MASK}" if operator == "replace" else operator)
    for b in range(3):
        places = [t for t in range(9) if REMOVABLE[b][t]]
        c = int(by_hand(model, operator, b, [True] * 9).argmax())
        f = lambda kept, b=b, c=c: float(by_hand(model, operator, b, kept).softmax(0)[c])
        drops = [f([True] * 9) - f([t != i for t in range(9)]) for i in places]
        assert float(agreed[b]) == pytest.approx(scipy.stats.spearmanr(rated[b, places], drops).statistic, abs=1e-9)
        order = sorted(places, key=lambda t, b=b: -float(rated[b, t]))
        points = [f([t not in order[:n] for t in range(9)]) for n in range(len(order) + 1)]
        area = sum((p + q) / 2 for p, q in itertools.pairwise(points)) / len(order)
        assert float(curve.value[b]) == pytest.approx(area, abs=1e-5)
        alone = TokenPerturber(model, operator, MASK, SPECIAL).bind(one_text(b))
        given_ = rated[b : b + 1, : int(ATTENTION[b].sum())]
        assert float(leave_one_out(alone, None, given_)) == pytest.approx(float(agreed[b]), abs=1e-9)
        assert float(deletion(alone, None, given_).value) == pytest.approx(area, abs=1e-5)


@pytest.mark.parametrize("operator", ["mask", "drop"])
def test_a_text_of_which_nothing_is_left(operator):
    table = words()
    keep = torch.tensor([[True] * 9, [False] * 9]).expand(3, 2, 9)
    bound = TokenPerturber(adding(table), operator, MASK, score="logit").bind(WORDS, 0)
    assert (bound.features.operator, bound.features.empty) == (operator, f"replace {MASK}")
    found = bound.score(keep)
    assert torch.allclose(found[:, 1], ATTENTION.sum(1) * table[MASK, 0], atol=1e-12)
    assert torch.allclose(found[:, 0], (table[IDS, 0] * ATTENTION).sum(1), atol=1e-12)
    without = TokenPerturber(adding(table), operator, score="logit").bind(WORDS, 0)
    assert without.features.empty is None
    assert torch.equal(without.score(keep[:, :1]), found[:, :1])
    with pytest.raises(ValueError, match=f'operator="{operator}" left nothing of a text; expected special'):
        without.score(keep)


@pytest.mark.parametrize("operator", ["mask", "drop", "replace"])
def test_nothing_of_the_users_changes(operator):
    model, keep = bert(hidden_dropout_prob=0.5), some_sets()
    wanted = TokenPerturber(model, operator, MASK, SPECIAL).bind(TEXTS).score(keep)
    model.train()
    model.bert.encoder.layer[0].eval()
    texts, kept = {name: value.clone() for name, value in TEXTS.items()}, keep.clone()
    before, rng = state(model), torch.get_rng_state()
    perturber = TokenPerturber(model, operator, MASK, SPECIAL)
    assert torch.equal(perturber.bind(texts).score(keep), wanted)  # in evaluation mode
    broken = TokenPerturber(model, operator, 999, SPECIAL) if operator == "replace" else None
    if broken is not None:
        with pytest.raises(IndexError):
            broken.bind(texts).score(keep)
    assert same(before, state(model)) and torch.equal(rng, torch.get_rng_state())
    assert list(texts) == list(TEXTS) and all(torch.equal(texts[name], TEXTS[name]) for name in texts)
    assert torch.equal(keep, kept)


def test_autocast_is_for_the_perturbed_forwards():
    model, keep = bert(), some_sets(2)
    exact = TokenPerturber(model, special=SPECIAL).bind(TEXTS, 0).score(keep)
    rough = TokenPerturber(model, special=SPECIAL, autocast=torch.bfloat16).bind(TEXTS, 0).score(keep)
    assert rough.dtype == torch.float64 and 0 < float((rough - exact).abs().max()) < 0.1


@pytest.mark.parametrize(
    ("options", "inputs", "target", "says"),
    [
        ({"operator": "delete"}, IDS, 0, r"operator='delete'; expected one of \['mask', 'drop', 'replace'\]"),
        ({"operator": "replace"}, IDS, 0, 'operator="replace" found no token; expected token='),
        ({"score": "loss"}, IDS, 0, "score='loss'"),
        ({"internal_batch_size": 0}, IDS, 0, "internal_batch_size=0"),
        ({"special": [0.5]}, IDS, 0, r"special: found torch.float32 \[1\]; expected ids \[n\]"),
        ({"special": [[0, 1]]}, IDS, 0, r"special: found torch.int64 \[1, 2\]; expected .* \[3, 9\]"),
        ({"special": [True, False]}, IDS, 0, "special: found torch.bool"),
        ({"special": [*SPECIAL, 21, 22]}, WORDS, 0, r"texts \[1\] hold only padding and special"),
        ({}, IDS[0], 0, r"input_ids: found torch.int64 \[9\]; expected whole numbers \[B, T\]"),
        ({}, IDS.float(), 0, "input_ids: found torch.float32"),
        ({}, IDS[:0], 0, r"input_ids: found torch.int64 \[0, 9\]"),
        ({}, {"ids": IDS}, 0, "input_ids: found NoneType"),
        ({}, ["a text"], 0, "input_ids: found list"),
        ({}, {"input_ids": IDS, "attention_mask": ATTENTION[:, :4]}, 0, r"attention_mask: found torch.int64 \[3, 4\]"),
        ({}, {"input_ids": IDS, "attention_mask": -1.0 * ATTENTION}, 0, "1 at tokens and 0 at padding"),
        ({}, IDS, 3, "target=3 does not fit"),
        ({}, IDS, [0, 1], "2 targets for 3 images"),
        ({"forward_func": lambda input_ids, attention_mask: words()[input_ids]}, IDS, (1, 2), "more than two axes"),
    ],
)
def test_wrong_arguments_are_named(options, inputs, target, says):
    with pytest.raises(ValueError, match=says):
        TokenPerturber(**{"forward_func": adding(words()), **options}).bind(inputs, target)
