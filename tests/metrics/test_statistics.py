"""Intervals, paired tests, ranks and their table, against hand computation, scipy, and what must not matter."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xattr.metrics.statistics import bootstrap_interval, holm, paired_differences, rank_methods, summary_table

NAN = float("nan")
few = settings(deadline=None, max_examples=40)
whole = st.integers(-20, 20)
sample = st.integers(2, 18).flatmap(lambda n: st.tuples(*[st.lists(whole, min_size=n, max_size=n)] * 2))


def against_zero(differences, **options):
    differences = torch.tensor(differences)
    return paired_differences({"a": differences, "zero": torch.zeros_like(differences)}, "zero", **options)[0]


def close(found, wanted):
    return found == pytest.approx(wanted, rel=1e-9, abs=1e-12, nan_ok=True)


# --- bootstrap


@pytest.mark.parametrize(("n", "resamples", "level"), [(2, 2000, 0.95), (17, 150, 0.9), (40, 2000, 0.99)])
def test_the_interval_is_that_of_scipy(n, resamples, level):
    values = torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    found = bootstrap_interval(values, level, resamples, seed=3)
    wanted = scipy.stats.bootstrap(
        (values.sort().values.numpy(),), np.mean, n_resamples=resamples, confidence_level=level, method="percentile",
        random_state=np.random.RandomState(3),
    ).confidence_interval  # fmt: skip
    assert close((found.mean, found.low, found.high), (float(values.mean()), wanted.low, wanted.high))
    assert (found.n, found.undefined) == (n, 0)


def test_the_interval_covers_the_mean_as_often_as_it_says():
    random = np.random.RandomState(0)
    tables = torch.from_numpy(random.exponential(size=(400, 60)))
    found = [bootstrap_interval(row, 0.9, 500, seed) for seed, row in enumerate(tables)]
    error = (0.9 * 0.1 / 400) ** 0.5
    # The mean of a skewed sample of 60: a percentile interval covers some 2 % less than it says, never much more.
    assert 0.9 - 0.02 - 3 * error <= np.mean([i.low <= 1 <= i.high for i in found]) <= 0.9 + 3 * error


def test_undefined_values_are_left_out_and_counted():
    found = bootstrap_interval(torch.tensor([NAN, 1.0, 4.0, NAN, 2.0]))
    assert (found.n, found.undefined) == (3, 2)
    assert (found.mean, found.low, found.high) == (pytest.approx(7 / 3), 1, 4)
    one, none = bootstrap_interval(torch.tensor([2.0, NAN])), bootstrap_interval(torch.tensor([NAN]))
    assert (one.mean, one.n, math.isnan(one.low), math.isnan(one.high)) == (2, 1, True, True)
    assert (math.isnan(none.mean), none.n, none.undefined, math.isnan(none.low)) == (True, 0, 1, True)
    assert bootstrap_interval(torch.tensor([True, False])).mean == 0.5
    assert bootstrap_interval(torch.tensor([3, 3])).high == 3


def test_interval_depends_on_level_and_seed_alone():
    values = torch.arange(30.0) ** 2
    wide, narrow = bootstrap_interval(values, 0.99), bootstrap_interval(values, 0.5)
    assert wide.low < narrow.low < values.mean() < narrow.high < wide.high
    assert bootstrap_interval(values) == bootstrap_interval(values.flip(0))
    assert bootstrap_interval(values, seed=1) != bootstrap_interval(values)


def test_no_global_random_state_is_touched():
    before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()
    against_zero([1.0] * 20)
    assert (before == np.random.get_state()[1]).all()
    assert torch.equal(torch_before, torch.get_rng_state())


# --- paired tests


def test_three_positive_differences_have_p_of_two_in_eight():
    assert against_zero([0.5, 2.0, 1.0]).p == 2 / 8


def test_known_differences_by_hand():
    # Sums of 3, -1, 2 under all flips: 6, 4, 2, 0 and their negatives; four of eight are as far from 0 as 4.
    found = against_zero([3.0, -1.0, 2.0, 0.0])
    assert (found.p, found.interval.mean, found.interval.n) == (0.5, 1, 4)
    assert close(found.rank_biserial, (3 + 2 - 1) / 6)
    assert close(found.d_z, 1 / (10 / 3) ** 0.5)
    # Ties share ranks: 1.5, 1.5 and 3.
    assert close(against_zero([1.0, -1.0, 2.0]).rank_biserial, 3 / 6)
    assert close(against_zero([1.0, 2.0, 3.0]).d_z, 2)


@few
@given(st.lists(whole, min_size=1, max_size=9))
def test_few_differences_are_flipped_in_every_way(differences):
    sums = [sum(x * s for x, s in zip(differences, signs, strict=True))
            for signs in itertools.product((1, -1), repeat=len(differences))]  # fmt: skip
    assert against_zero(differences).p == np.mean([abs(s) >= abs(sum(differences)) for s in sums])


def test_exact_up_to_thirteen_and_random_beyond():
    assert against_zero([1.0] * 13).p == 2 / 2**13
    assert against_zero([1.0] * 13 + [0.0] * 9).p == 2 / 2**13
    # Of 10,000 flips of 40 signs none leaves all equal; the values at hand are one more.
    assert against_zero([1.0] * 40).p == 1 / 10_001


@pytest.mark.parametrize("seed", range(4))
def test_random_flips_are_near_all_flips(seed):
    differences = np.random.RandomState(seed).randint(-9, 14, 25)
    sums = {0: 1}
    for x in differences.tolist():
        ways = {}
        for total, count in sums.items():
            for flipped in (total + x, total - x):
                ways[flipped] = ways.get(flipped, 0) + count
        sums = ways
    wanted = sum(count for total, count in sums.items() if abs(total) >= abs(differences.sum())) / 2**25
    assert abs(against_zero(differences, seed=seed).p - wanted) < 4 * (wanted / 10_000) ** 0.5 + 1e-4


@pytest.mark.parametrize("n", [5, 12, 30, 80])
@pytest.mark.parametrize("zeros", [0, 3])
def test_wilcoxon_is_that_of_scipy_on_pairs_that_differ(n, zeros):
    differences = np.random.RandomState(n).randn(n) + 0.3
    found = against_zero([*differences, *[0.0] * zeros], test="wilcoxon")
    wanted = scipy.stats.wilcoxon(differences)
    assert close(found.p, wanted.pvalue)
    assert close(abs(found.rank_biserial), 1 - 2 * wanted.statistic / (n * (n + 1) / 2))
    assert found.p != against_zero([*differences, *[0.0] * zeros]).p or n == 5


@pytest.mark.parametrize(
    "differences", [[1, 1, -2, 3, 3], [2, 2, 2, 2, 2], [1, -1, 2, -2, 4, 4], [-1, 1, 2, 3, 4, 5, 5]]
)
def test_wilcoxon_is_exact_where_few_sizes_tie(differences):
    found = against_zero(differences, test="wilcoxon")
    ranks = scipy.stats.rankdata(np.abs(differences))
    sums = [float(ranks @ signs) for signs in itertools.product((1, -1), repeat=len(ranks))]
    assert found.p == np.mean(np.abs(sums) >= abs(ranks @ np.sign(differences)))


@pytest.mark.parametrize("n", [13, 14, 20])
def test_wilcoxon_does_not_jump_where_scipy_takes_over(n):
    assert against_zero(np.arange(1.0, n + 1) * (-1) ** (np.arange(n) % 4 == 0), test="wilcoxon").p == pytest.approx(
        scipy.stats.wilcoxon(np.arange(1.0, n + 1) * (-1) ** (np.arange(n) % 4 == 0)).pvalue, rel=1e-9
    )


@pytest.mark.parametrize("test", ["permutation", "wilcoxon"])
@pytest.mark.parametrize("n", [1, 5, 40])
def test_no_difference_at_all(test, n):
    found = against_zero([0.0] * n, test=test)
    assert (found.p, found.p_holm, found.d_z, found.rank_biserial, found.different) == (1, 1, 0, 0, False)


def test_effects_at_the_edge():
    assert against_zero([-0.1] * 4).d_z == -math.inf
    apart = {"a": torch.tensor([0.3, 0.7, 1.1]).double(), "b": torch.tensor([0.2, 0.6, 1.0]).double()}
    apart = {name: (values * 10).round() / 10 for name, values in apart.items()}
    assert len(set((apart["a"] - apart["b"]).tolist())) > 1  # by rounding alone
    assert paired_differences(apart, "b")[0].d_z == math.inf
    one = against_zero([0.5])
    assert (one.p, math.isnan(one.d_z), one.rank_biserial) == (1, True, 1)
    assert abs(against_zero([0.1, 0.1 + 1e-6, 0.1]).d_z) < math.inf


def test_hits_and_numbers_beyond_float32():
    hits = {"a": torch.tensor([True, True, False, True]), "b": torch.tensor([False, True, False, False])}
    assert paired_differences(hits, "b")[0].interval.mean == 0.5
    assert paired_differences({"a": torch.tensor([1e8]), "b": torch.tensor([1.0])}, "b")[0].interval.mean == 1e8 - 1


def test_pairs_with_nan_are_left_out_of_their_comparison_alone():
    table = {
        "reference": torch.tensor([0.0, 0.0, 0.0, NAN, 0.0]),
        "a": torch.tensor([1.0, NAN, 2.0, 5.0, 3.0]),
        "b": torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0]),
        "never": torch.tensor([NAN] * 5),
    }
    a, b, never = paired_differences(table, "reference")
    assert [d.method for d in (a, b, never)] == ["a", "b", "never"]
    assert [(d.interval.n, d.interval.undefined) for d in (a, b, never)] == [(3, 2), (4, 1), (0, 5)]
    assert (a.interval.mean, a.p, b.p) == (2, 2 / 8, 2 / 16)
    assert all(map(math.isnan, (never.interval.mean, never.p, never.p_holm, never.d_z, never.rank_biserial)))
    assert not never.different
    assert (a.p_holm, b.p_holm) == (2 / 8, 2 / 8)  # two tests, for the third does not count


def test_holm_decides_and_the_level_is_not_reached_by_equality():
    up = torch.ones(5)
    assert not paired_differences({"a": up, "zero": 0 * up}, "zero", level=1 - 2 / 32)[0].different
    assert paired_differences({"a": up, "zero": 0 * up}, "zero", level=0.93)[0].different
    # Alone, p = 2/64 is below 0.05; of two methods it is not.
    up = torch.ones(6)
    alone = paired_differences({"a": up, "zero": 0 * up}, "zero")[0]
    two = paired_differences({"a": up, "b": 2 * up, "zero": 0 * up}, "zero")
    assert alone.different
    assert [(d.p, d.p_holm, d.different) for d in two] == [(2 / 64, 4 / 64, False)] * 2


def test_a_method_is_tested_alike_whatever_stands_beside_it():
    random = np.random.RandomState(0)
    table = {name: torch.from_numpy(random.rand(30)) for name in "abcd"}
    for test in ("permutation", "wilcoxon"):
        many = {d.method: d for d in paired_differences(table, "c", test=test)}
        only = paired_differences({name: table[name] for name in "ca"}, "c", test=test)[0]
        assert (many["a"].p, many["a"].interval, many["a"].d_z) == (only.p, only.interval, only.d_z)
        assert only.p == only.p_holm <= many["a"].p_holm


@pytest.mark.parametrize("n", [6, 30])
def test_rounding_of_float32_breaks_no_ties(n):
    thirds = np.random.RandomState(n).randint(-4, 7, n)
    low = torch.from_numpy(thirds).float() / 3
    reference = torch.arange(n) % 3 / 3
    rounded = paired_differences({"a": low + reference, "b": reference}, "b")[0]
    assert (rounded.interval.mean * 3) == pytest.approx(thirds.mean(), abs=1e-6)
    assert rounded.p == against_zero(thirds).p


@few
@given(sample, st.randoms(use_true_random=False))
def test_the_order_of_the_images_does_not_matter(pair, random):
    order = list(range(len(pair[0])))
    random.shuffle(order)
    a, b = (torch.tensor(values) * 0.1 for values in pair)
    for test in ("permutation", "wilcoxon"):
        found = paired_differences({"a": a, "b": b}, "b", test=test)
        assert repr(paired_differences({"a": a[order], "b": b[order]}, "b", test=test)) == repr(found)


@few
@given(sample, st.floats(1e-3, 1e3))
def test_scale_and_direction_leave_p(pair, factor):
    a, b = (torch.tensor(values, dtype=torch.float64) for values in pair)
    found = paired_differences({"a": a, "b": b}, "b")[0]
    scaled = paired_differences({"a": a * factor, "b": b * factor}, "b")[0]
    turned = paired_differences({"a": a, "b": b}, "a")[0]
    assert found.p == scaled.p == turned.p
    assert close(scaled.interval.high, found.interval.high * factor)
    assert close((scaled.d_z, -turned.d_z), (found.d_z, found.d_z))
    assert close(-turned.rank_biserial, found.rank_biserial)
    doubled = [paired_differences({"a": a * s, "b": b * s}, "b", test="wilcoxon")[0].p for s in (1, 8)]
    assert doubled[0] == doubled[1]


def test_family_wise_error_rate():
    random = np.random.RandomState(5)
    any_, uncorrected = 0, 0
    for seed in range(300):
        # Images differ in difficulty, and a method's values spread as its image does: pairs are not alike.
        values = random.randn(40, 1) + random.randn(40, 6) * random.exponential(size=(40, 1))
        table = {str(i): torch.from_numpy(column) for i, column in enumerate(values.T)}
        found = paired_differences(table, "0", seed=seed)
        any_ += any(d.different for d in found)
        uncorrected += any(d.p < 0.05 for d in found)
    most = 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5
    assert any_ / 300 <= most < uncorrected / 300  # without Holm's correction this test would fail
    assert any_ > 0


def test_true_differences_are_found():
    random = np.random.RandomState(0)
    base = random.randn(40, 1) * 3  # images differ more than methods do: pairing is what finds it
    values = base + 0.3 * random.randn(40, 4) + np.array([0, 0, 0.5, -0.5])
    table = {name: torch.from_numpy(column) for name, column in zip("rabc", values.T, strict=True)}
    for test in ("permutation", "wilcoxon"):
        found = paired_differences(table, "r", test=test)
        assert [d.different for d in found] == [False, True, True]
        assert [np.sign(d.rank_biserial) == np.sign(d.interval.mean) for d in found] == [True] * 3
        assert found[1].interval.low > 0 > found[2].interval.high


def test_what_cannot_be_compared():
    two = {"a": torch.ones(3), "b": torch.ones(3)}
    with pytest.raises(ValueError, match=r"found 'c' .* one of \['a', 'b'\]"):
        paired_differences(two, "c")
    with pytest.raises(ValueError, match="'t-test'; expected"):
        paired_differences(two, "a", test="t-test")
    with pytest.raises(ValueError, match=r"\('a', 3, 0\), \('b', 4, 0\)"):
        paired_differences({"a": torch.ones(3), "b": torch.ones(4)}, "a")
    with pytest.raises(ValueError, match=r"\('b', 2, 1\)"):
        paired_differences({"a": torch.ones(2), "b": torch.tensor([1.0, math.inf])}, "a")
    with pytest.raises(ValueError, match=r"\('a', 1, 1\), \('b', 1, 1\)"):
        paired_differences({"a": torch.tensor([math.inf]), "b": torch.tensor([math.inf])}, "a")
    with pytest.raises(ValueError, match=r"found \[3, 1\]"):
        bootstrap_interval(torch.ones(3, 1))
    with pytest.raises(ValueError, match="1 infinite"):
        bootstrap_interval(torch.tensor([1.0, -math.inf]))
    for options in ({"level": 95}, {"level": 0}, {"resamples": 0}):
        with pytest.raises(ValueError, match="expected 0 < level < 1"):
            bootstrap_interval(torch.ones(3), **options)
    assert paired_differences({"a": torch.ones(3)}, "a") == []


# --- Holm


@pytest.mark.parametrize(
    ("p", "wanted"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.02, NAN, 0.04], [0.04, NAN, 0.04]),
        ([0.6, 0.9], [1, 1]),
        ([0.02, 0.02, 0.02], [0.06, 0.06, 0.06]),
        ([NAN], [NAN]),
        ([], []),
    ],
)
def test_holm_by_hand(p, wanted):
    assert close(holm(p), wanted)


@few
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_steps_down(p):
    found = holm(p)
    wanted = [
        max(min(1, sum(other >= earlier for other in p) * earlier) for earlier in p if earlier <= value) for value in p
    ]
    assert close(found, wanted)


@pytest.mark.parametrize("p", [-0.1, 1.1])
def test_holm_takes_probabilities(p):
    with pytest.raises(ValueError, match="expected 0 to 1"):
        holm([0.5, p])


# --- ranks


def scores(*rows):
    return {f"m{i}": dict(zip("abcdefgh", row, strict=False)) for i, row in enumerate(rows)}


UP = {f"m{i}": True for i in range(9)}


def test_one_ranking_and_its_reverse():
    same = rank_methods(scores([3, 2, 1, 0], [9, 5, 4, -1], [0.4, 0.3, 0.2, 0.1]), UP)
    assert (same.methods, same.metrics) == (("a", "b", "c", "d"), ("m0", "m1", "m2"))
    assert same.ranks.tolist() == [[1, 2, 3, 4]] * 3
    assert same.mean_rank.tolist() == [1, 2, 3, 4]
    assert close((same.kendall_w, same.p), (1, scipy.stats.chi2.sf(9, 3)))
    turned = rank_methods(scores([3, 2, 1, 0], [0, 1, 2, 3]), UP)
    assert (turned.kendall_w, turned.p, turned.mean_rank.tolist()) == (0, 1, [2.5] * 4)
    assert rank_methods(scores([3, 2, 1, 0], [0, 1, 2, 3]), {"m0": True, "m1": False}).kendall_w == 1


def test_ties_by_hand():
    # Ranks 1, 2.5, 2.5 and 1, 2, 3: sums 2, 4.5, 5.5, squared from 4 in all 6.5; 12 * 6.5 / (4 * 24 - 2 * 6).
    found = rank_methods(scores([1, 0, 0], [3, 2, 1]), UP)
    assert found.ranks.tolist() == [[1, 2.5, 2.5], [1, 2, 3]]
    assert close(found.kendall_w, 78 / 84)
    assert rank_methods(scores([1, 0, 0], [5, 2, 2]), UP).kendall_w == 1


@few
@given(st.integers(3, 6).flatmap(lambda n: st.lists(st.lists(st.integers(0, 4), min_size=n, max_size=n), min_size=2)))
def test_ranks_agree_with_friedman(rows):
    found = rank_methods(scores(*rows[:9]), UP)
    m, n = found.ranks.shape
    if all(len(set(row)) == 1 for row in rows[:9]):
        assert math.isnan(found.kendall_w)
        return
    wanted = scipy.stats.friedmanchisquare(*zip(*rows[:9], strict=True))
    assert close((found.kendall_w * m * (n - 1), found.p), (wanted.statistic, wanted.pvalue))


def test_agreement_takes_two_metrics_and_two_methods():
    for single in (scores([1, 2, 3]), scores([1], [2])):
        found = rank_methods(single, UP)
        assert math.isnan(found.kendall_w)
        assert math.isnan(found.p)


def test_ranks_take_every_method_in_every_metric():
    with pytest.raises(ValueError, match=r"\('m1', 'c'\)"):
        rank_methods(scores([1, 2, 3], [1, 2]), UP)
    with pytest.raises(ValueError, match=r"\('m0', 'c'\)"):
        rank_methods(scores([1, 2], [1, 2, 3]), UP)
    with pytest.raises(ValueError, match=r"\('m1', 'higher_is_better'\)"):
        rank_methods(scores([1, 2], [1, 2]), {"m0": True})
    with pytest.raises(ValueError, match=r"NaN for \[\('m1', 'b'\)\]"):
        rank_methods(scores([1, 2], [1, NAN]), UP)
    with pytest.raises(ValueError, match="found methods"):
        rank_methods({}, UP)


# --- table


def test_the_table_word_for_word():
    steps = torch.arange(8.0) / 100
    values = {
        "energy": {"GAE": 0.4 + 0 * steps, "I|G": 0.6 + 0 * steps, "near": 0.4 + 0 * steps},
        "cost": {"GAE": torch.full((6,), 300.0), "I|G": torch.full((6,), 300.0), "near": torch.full((6,), 300.0)},
    }
    values["energy"]["near"][2] = NAN
    found = summary_table(values, {"energy": True, "cost": False}, "GAE")
    assert found.splitlines() == [
        "|  | energy ↑ | cost ↓ |",
        "| --- | --- | --- |",
        "| GAE (reference) | 0.400 [0.400, 0.400] | 300 [300, 300] |",
        "| I\\|G | 0.600 [0.600, 0.600]* | 300 [300, 300] |",
        "| near | 0.400 [0.400, 0.400] | 300 [300, 300] |",
        "",
        "`*` differs from GAE on images defined for both (paired sign-flip test, p < 0.05 after Holm by metric). "
        "Mean [95 % bootstrap interval]; ↑ higher, ↓ lower is better. "
        "Images (n): energy 8 (undefined: near 1); cost 6 (undefined: none).",
    ]


def test_the_table_marks_what_the_paired_test_finds():
    random = np.random.RandomState(1)
    values = {
        metric: {name: torch.from_numpy(random.randn(40) + shift) for name, shift in zip("rst", (0, 0, 2), strict=True)}
        for metric in ("one", "two")
    }
    lines = summary_table(values, {"one": True, "two": True}, "r").splitlines()[2:5]
    for name, line in zip("rst", lines, strict=True):
        for metric, cell in zip(("one", "two"), line.split("|")[2:4], strict=True):
            interval = bootstrap_interval(values[metric][name])
            assert cell.strip().strip("*") == f"{interval.mean:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
            marked = {d.method for d in paired_differences(values[metric], "r") if d.different}
            assert cell.strip().endswith("*") == (name in marked) == (name == "t")


def test_the_table_without_a_single_number():
    nothing = torch.full((3,), NAN)
    assert "| a | nan [nan, nan] |" in summary_table({"x": {"a": nothing, "b": nothing}}, {"x": True}, "b")
    assert "0.000 [0.000, 0.000]" in summary_table({"x": {"a": torch.zeros(2)}}, {"x": True}, "a")
    assert "0.000120 [" in summary_table({"x": {"a": torch.tensor([1.2e-4, 1.2e-4])}}, {"x": True}, "a")


def test_the_table_takes_every_method_in_every_metric():
    with pytest.raises(ValueError, match=r"\('y', 'b'\)"):
        summary_table({"x": {"a": torch.ones(2), "b": torch.ones(2)}, "y": {"a": torch.ones(2)}}, UP, "a")
    with pytest.raises(ValueError, match="found 'c'"):
        summary_table({"m0": {"a": torch.ones(2)}}, UP, "c")
