"""The runner of the experiments, what it measures, and what is said of the results."""

import argparse
import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch
import torch.nn.functional as F
from PIL import Image

from xattr.attr import LayaPostHocAttribution
from xattr.attr.laya_post_hoc import post_hoc
from xattr.heads import LayaHead, LayaModel
from xattr.heads.reproduce import EXPERIMENTS, GROUPS, Experiment, Split, run
from xattr.heads.reproduce import __main__ as command
from xattr.heads.reproduce import measures as m
from xattr.heads.reproduce.claims import CONFIRMED, NOT, OPEN, above, claims, near, overview
from xattr.heads.reproduce.data import cifar
from xattr.heads.reproduce.experiments import CIFAR_MEAN, CIFAR_STD
from xattr.heads.reproduce.faithfulness import (
    ALPHA,
    CONTRIBUTION,
    DEPTH,
    MEAN,
    OF_CLASS,
    PROTOCOLS,
    completeness,
    faithfulness,
    of_class,
)
from xattr.heads.reproduce.networks import ChannelNorm, Pixels, depthwise_cnn, mlp
from xattr.heads.reproduce.runner import agreement, results, written
from xattr.heads.reproduce.summary import (
    Mean,
    agreement_of_runs,
    explained_by_class,
    mean_of,
    paired,
    variance_ratio,
)
from xattr.heads.reproduce.tables import page
from xattr.metrics.layer_ablation import LayerProtocol
from xattr.metrics.layers import layer_deletion, layer_faithfulness

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence" / "laya"
WIDTHS = (12, 10, 8)


def clusters(n, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    return torch.randn(n, 6, generator=generator) + 2 * F.one_hot(labels, 6), labels


def tiny(**changes):
    common = {"width": 6, "pre_norm": False}
    sizes = {"width": 6, "hidden": 8, "temperature": 1.0}
    heads = {
        "laya": ("laya-paper", sizes),
        "last": ("last", {}),
        "scalar-mix": ("scalar-mix", common),
        "laya-causal": ("laya", {**sizes, "pre_norm": False, "causal": True}),
    }
    data = Split(clusters(300, 0), clusters(60, 1), clusters(90, 2))
    settings = {"seeds": (0, 1, 2), "lr": 5e-3, "epochs": 4, "freeze": False}
    names = {"layers": ("1", "2", "3"), "classes": ("a", "b", "c")}
    return Experiment("tiny", "A tiny one", lambda: data, lambda: mlp(WIDTHS, 6), heads,
                      **{**names, **settings, **changes})  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("laya")
    experiment = tiny()
    found = [run(experiment, head, seed, folder / "tiny", folder / "work")
             for seed in experiment.seeds for head in experiment.heads]  # fmt: skip
    return folder, found


def trained():
    """A head with sharp and varied weights."""
    torch.manual_seed(0)
    head = LayaHead(WIDTHS, 3, width=6, zero_scores=False, pre_norm=False).eval()
    with torch.no_grad():
        for p in head.parameters():
            p.copy_(torch.randn_like(p))
    shift = 2 * torch.arange(3)
    features = [torch.randn(40, d, dtype=torch.float64) for d in WIDTHS]
    return head.double(), features, [torch.randn(25, d).double() + k for d, k in zip(WIDTHS, shift, strict=True)]


def test_a_run_again_from_scratch_is_the_same_and_another_seed_is_not(runs, tmp_path):
    _, found = runs
    again = run(tiny(), "laya", 0, tmp_path / "tiny", tmp_path / "work")
    first = next(r for r in found if (r["head"], r["seed"]) == ("laya", 0))
    assert agreement(first, again) == []
    other = next(r for r in found if (r["head"], r["seed"]) == ("laya", 1))
    assert {"seed", "accuracy"} <= {path for path, _ in agreement(first, other)}


def test_a_result_holds_what_was_asked_for(runs):
    folder, found = runs
    stored = {(r["head"], r["seed"]): r for r in results(folder / "tiny")}
    assert len(stored) == 12
    for r in found:
        assert stored[r["head"], r["seed"]] == r
        assert 0.4 < r["accuracy"] <= 1
        assert ("attention" in r) == (r["head"] != "last")
        assert ("faithfulness" in r) == (r["head"] in ("laya", "scalar-mix"))
        assert ("probes" in r) == (r["head"] != "scalar-mix")
        assert ("early_exit" in r) == (r["head"] == "laya-causal")
        if "attention" in r:
            assert r["truncation"][-1]["accuracy"] == r["accuracy"] == r["checks"]["conditioning"]["own"]
            mean = np.array(r["attention"]["alpha"]["label/all"]["mean"][0])
            assert mean.sum() == pytest.approx(1, abs=2e-4)
            kept = r["attention"].get("alpha_of_first")
            assert (kept is None) == (r["head"] == "scalar-mix")
            if kept:
                assert np.allclose(np.mean(kept, 0), mean, atol=2e-3)


def test_finished_runs_are_left_out_and_the_tables_follow(runs, monkeypatch, capsys):
    folder, _ = runs
    monkeypatch.setitem(EXPERIMENTS, "tiny", tiny())
    before = (folder / "tiny" / "laya-0.json").stat().st_mtime_ns
    command.main(["tiny", "--folder", str(folder), "--work", str(folder / "work")])
    assert capsys.readouterr().out == ""
    assert (folder / "tiny" / "laya-0.json").stat().st_mtime_ns == before
    text = (folder / "tiny" / "README.md").read_text(encoding="utf-8")
    assert "12 of 12 runs" in text and "Pending" not in text
    for name in ("tiny/profiles.png", "tiny/exits.png", "headline.png", "README.md"):
        assert (folder / name).stat().st_size > 1000
    with pytest.raises(SystemExit, match="found 'ours'"):
        command.main(["tiny", "--head", "ours", "--folder", str(folder)])


def test_the_runs_of_the_paper_are_four_heads_and_five_seeds(tmp_path):
    given = argparse.Namespace(head=None, seed=None, folder=tmp_path, paper=True)
    found = list(command.missing(EXPERIMENTS["fashion-mnist"], given))
    assert len(found) == 20 and found[0] == ("laya", 1337)
    assert {head for head, _ in found} == {"laya", "last", "concat", "scalar-mix"}
    given.paper = False
    assert len(list(command.missing(EXPERIMENTS["fashion-mnist"], given))) == 70


def test_verify_compares_with_the_file(runs, monkeypatch, tmp_path, capsys):
    folder, _ = runs
    monkeypatch.setitem(EXPERIMENTS, "tiny", tiny())
    with pytest.raises(SystemExit) as ended:
        command.main(["tiny", "--verify", "--folder", str(folder)])
    assert ended.value.code == 0
    assert "tiny: laya-0: every number is the same" in capsys.readouterr().out
    for key, value in (("accuracy", 0.1), ("parameters", {"backbone": 1, "head": 1})):
        stored = json.loads((folder / "tiny" / "laya-0.json").read_text(encoding="utf-8"))
        (tmp_path / "tiny").mkdir(exist_ok=True)
        (tmp_path / "tiny" / "laya-0.json").write_text(json.dumps({**stored, key: value}), encoding="utf-8")
        with pytest.raises(SystemExit, match="did not agree"):
            command.main(["tiny", "--verify", "--folder", str(tmp_path)])
    with pytest.raises(SystemExit, match="did not agree"):
        command.main(["tiny", "--verify", "--folder", str(tmp_path / "nothing")])


def test_a_frozen_backbone_is_read_once_and_stays(tmp_path):
    experiment = tiny(freeze=True)
    before = experiment.build("laya", 3).backbone.state_dict()
    run(experiment, "laya", 3, tmp_path / "tiny", tmp_path / "work")
    assert len(list((tmp_path / "work" / "features").iterdir())) == 3  # training, validation and test
    state = torch.load(tmp_path / "work" / "tiny" / "laya-3.pt", weights_only=True)["module"]
    assert not any(key.startswith("backbone") for key in state)
    assert all(torch.equal(v, before[k]) for k, v in experiment.build("laya", 3).backbone.state_dict().items())


def test_rows_are_those_of_the_layer_metrics():
    head, features, reference = trained()
    found = faithfulness(head, features, reference)
    assert list(found) == list(PROTOCOLS)
    seen, usual = head.explain(features), head.explain(reference)
    classes = seen.logits.argmax(1)
    assert set(classes.tolist()) == set(usual.logits.argmax(1).tolist()) and len(set(classes.tolist())) > 1
    scores = {
        ALPHA: seen.alpha,
        CONTRIBUTION: seen.contributions[torch.arange(40), :, classes],
        MEAN: usual.alpha.mean(0).expand(40, -1),
        DEPTH: torch.arange(3.0).expand(40, -1),
        OF_CLASS: torch.stack([usual.alpha[usual.logits.argmax(1) == c].mean(0) for c in classes]),
        "Grad-CAM, logit": LayaPostHocAttribution(model(head)).attribute(torch.cat(features, 1), kind="grad_cam"),
    }
    for name, protocol in PROTOCOLS.items():
        for row, given in scores.items():
            wanted = layer_faithfulness(head, features, given, protocol=protocol, reference=reference)
            assert found[name][row]["faithfulness"] == pytest.approx(wanted.mean, abs=1e-6)
            assert found[name][row]["undefined"] == wanted.undefined
            deleted = layer_deletion(head, features, given, protocol=protocol, reference=reference)
            assert found[name][row]["deletion"] == pytest.approx(deleted.mean, abs=1e-6)
        assert found[name]["random"]["deletion"] == pytest.approx(deleted.random, abs=1e-9)
        assert found[name]["oracle"]["deletion"] == pytest.approx(deleted.oracle, abs=1e-9)
        assert found[name][DEPTH]["deletion"] == pytest.approx(deleted.depth_prior, abs=1e-9)
    assert found[str(LayerProtocol(target="logit"))][CONTRIBUTION]["faithfulness"] == pytest.approx(1)


class Apart(torch.nn.Module):
    """Cuts an input into the features of a head."""

    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Identity() for _ in WIDTHS)

    def forward(self, x):
        for part, value in zip(self.parts, x.split(WIDTHS, 1), strict=True):
            part(value)
        return x


def model(head):
    return LayaModel(Apart(), 3, layers=["parts.0", "parts.1", "parts.2"], head=head,
                     example=torch.zeros(1, 30))  # fmt: skip


def test_a_class_that_was_never_predicted_gets_the_mean_of_all():
    head, features, _ = trained()
    seen = head.explain([h[:1] for h in features])
    mean = torch.full((3,), 1 / 3, dtype=torch.float64)
    found = of_class(seen, mean)
    only = int(seen.logits.argmax(1))
    assert torch.equal(found[only], seen.alpha[0])
    assert all(torch.equal(found[c], mean) for c in range(3) if c != only)


def test_gradients_of_the_probability_go_through_the_softmax():
    head, features, _ = trained()
    z = head.explain(features).z.detach()
    f = lambda z: ((head.weigh(head.scores(z))[..., None] * z).sum(1) @ head.classifier.weight.T
                   + head.classifier.bias).softmax(1)[:, 2]  # fmt: skip
    gradient = torch.autograd.functional.jacobian(lambda z: f(z).sum(), z)
    found = post_hoc(head, z, 2, "gradient_x_input", output="prob")
    assert torch.allclose(found, (gradient * z).sum(-1), atol=1e-10)
    assert not torch.allclose(found, post_hoc(head, z, 2, "gradient_x_input"), atol=1e-3)
    path = post_hoc(head, z, 2, "integrated_gradients", output="prob", n_steps=2000)
    assert torch.allclose(path.sum(1), f(z) - f(0 * z), atol=1e-4)
    whole = LayaPostHocAttribution(model(head)).attribute(torch.cat(features, 1), 2, output="prob")
    assert torch.allclose(whole, found)
    with pytest.raises(ValueError, match="output='loss'"):
        LayaPostHocAttribution(model(head)).attribute(torch.cat(features, 1), 2, output="loss")


def test_completeness_says_how_far_integrated_gradients_are_off():
    head, features, _ = trained()
    seen = head.explain(features)
    classes = seen.logits.argmax(1)
    found = post_hoc(head, seen.z.detach(), classes, "integrated_gradients").sum(1)
    wanted = seen.contributions[torch.arange(40), :, classes].sum(1).detach()
    error = float((wanted - found).abs().mean() / wanted.abs().mean())
    assert error > 1e-6
    assert completeness(head, features) == pytest.approx(error)


def test_macro_f1():
    generator = torch.Generator().manual_seed(0)
    labels, predicted = (torch.randint(0, 4, (200,), generator=generator) for _ in range(2))
    wanted = sklearn.metrics.f1_score(labels, predicted, average="macro")
    assert m.macro_f1(predicted, labels) == pytest.approx(wanted)


def test_probes_find_the_layer_that_knows():
    x, labels = clusters(3000, 0)
    features = [torch.randn(3000, 5, generator=torch.Generator().manual_seed(1)), x / 1000 + 7]
    logits = m.probes((features, labels), (features, labels), features, 0)
    assert logits.shape == (3000, 2, 3)
    assert m.right(logits[:, 0], labels) < 0.6
    assert m.right(logits[:, 1], labels) > 0.85


def test_early_exits_stop_at_the_first_sure_layer():
    sure, unsure = torch.tensor([9.0, 0.0]), torch.tensor([0.0, 0.1])
    logits = torch.stack([torch.stack([sure, unsure]), torch.stack([unsure, sure])])
    found = {p["threshold"]: p for p in m.early_exits(logits, torch.tensor([0, 0]), [0.25, 1.0])}
    assert found[0.9] == {"threshold": 0.9, "accuracy": 1.0, "cost": 0.625, "layers": 1.5}
    assert found[0.5] == {"threshold": 0.5, "accuracy": 0.5, "cost": 0.25, "layers": 1.0}


def test_depths_are_shares_of_the_backbone():
    experiment = tiny()
    found = m.depths(experiment.build("last", 0), experiment.data().test[0][:1])
    flops = np.cumsum([6 * 12, 12 * 10, 10 * 8])
    assert np.allclose(found, flops / flops[-1])


def test_the_cnn_normalises_channels_and_halves_twice():
    network = depthwise_cnn((4, 6, 8), CIFAR_MEAN, CIFAR_STD)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    assert network(images).shape == (2, 8, 8, 8)
    mean, std = (torch.tensor(v)[:, None, None] for v in (CIFAR_MEAN, CIFAR_STD))
    assert torch.allclose(Pixels(CIFAR_MEAN, CIFAR_STD)(images), (images / 255 - mean) / std, atol=1e-5)
    x, norm = torch.randn(2, 5, 3, 4), ChannelNorm(5)
    assert torch.allclose(norm(x), F.layer_norm(x.permute(0, 2, 3, 1), (5,)).permute(0, 3, 1, 2), atol=1e-6)


EXAMPLES = {
    "fashion-mnist": torch.zeros(1, 28, 28),
    "fashion-mnist-6": torch.zeros(1, 28, 28),
    "cifar-10": torch.zeros(1, 3, 32, 32, dtype=torch.uint8),
    "frozen-efficientnet": torch.zeros(1, 3, 32, 32, dtype=torch.uint8),
    "frozen-cifar-vit": torch.zeros(1, 3, 32, 32, dtype=torch.uint8),
    "frozen-digits-vit": torch.zeros(1, 1, 24, 24),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_experiment_has_the_layers_that_it_names_and_heads_of_one_size(name):
    example = EXAMPLES[name], torch.zeros(1, dtype=torch.long)
    experiment = dataclasses.replace(EXPERIMENTS[name], data=lambda: Split(example, example, example))
    before = torch.get_rng_state()
    laya, other = experiment.build("laya", 0), experiment.build("last-mlp", 0)
    assert torch.equal(before, torch.get_rng_state())
    assert len(laya.layers) == len(experiment.layers) > 2
    assert laya(EXAMPLES[name]).shape == (1, len(experiment.classes))
    count = lambda m: sum(p.numel() for p in m.head.parameters())
    assert abs(count(laya) - count(other)) <= laya.layers[-1].width + 11  # a hidden unit


def test_cifar_is_shuffled_once_with_its_labels(tmp_path, monkeypatch):
    jpegs = []
    for value in range(0, 200, 20):
        with io.BytesIO() as file:
            Image.new("RGB", (32, 32), (value, value, value)).save(file, "JPEG", quality=95)
            jpegs.append(np.frombuffer(file.getvalue(), np.uint8))
    offsets = np.cumsum([0, *map(len, jpegs)])
    np.savez(tmp_path / "cifar10_train.npz", jpeg=np.concatenate(jpegs), offsets=offsets, labels=np.arange(10))
    monkeypatch.setenv("XATTR_DATA", str(tmp_path))
    images, labels = cifar("train")
    assert images.shape == (10, 3, 32, 32) and images.dtype == torch.uint8
    assert sorted(labels.tolist()) == list(range(10)) != labels.tolist()
    assert torch.allclose(images.float().mean((1, 2, 3)), 20 * labels.float(), atol=2)
    with pytest.raises(FileNotFoundError, match="let XATTR_DATA name a folder"):
        cifar("test")


def test_intervals_and_differences():
    values = [0.88, 0.89, 0.905, 0.87]
    low, high = scipy.stats.t.interval(0.95, 3, np.mean(values), scipy.stats.sem(values))
    found = mean_of([*values, float("nan")])
    assert (found.n, found.low, found.high) == (4, pytest.approx(low), pytest.approx(high))
    assert str(mean_of([0.5])) == "0.5000 (1 run)" and str(mean_of([])) == ""
    runs = [{"head": h, "seed": s, "accuracy": a}
            for h, s, a in (("a", 0, 0.5), ("a", 1, 0.7), ("a", 2, 0.9), ("b", 1, 0.6), ("b", 0, 0.3))]  # fmt: skip
    less = paired(runs, "a", "b", lambda r: r["accuracy"])
    assert (less.n, less.mean) == (2, pytest.approx(0.15))
    runs.append({"head": "b", "seed": 2, "accuracy": 0.9})
    ratio = variance_ratio(runs, "b", "a", lambda r: r["accuracy"])
    assert ratio.mean == pytest.approx(0.09 / 0.04)
    assert scipy.stats.f.cdf(ratio.mean / ratio.low, 2, 2) == pytest.approx(0.975)
    assert scipy.stats.f.cdf(ratio.mean / ratio.high, 2, 2) == pytest.approx(0.025)


def attended(alpha, predicted):
    stored = m.profiles(alpha, predicted, predicted, [str(c) for c in range(3)])
    return {"attention": {"alpha": stored, "alpha_of_first": alpha.tolist()}}


def test_attention_that_is_a_code_of_the_class_is_told_apart():
    predicted = torch.arange(300) % 3
    code = F.one_hot(predicted, 4).double()
    free = torch.rand(300, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert explained_by_class(attended(code, predicted)) == pytest.approx(1)
    assert abs(explained_by_class(attended(free, predicted))) < 0.03
    mixed = code + free
    groups = torch.stack([mixed[predicted == c].mean(0) for c in range(3)])[predicted]
    wanted = float(((groups - mixed.mean(0)) ** 2).sum() / ((mixed - mixed.mean(0)) ** 2).sum())
    assert explained_by_class(attended(mixed, predicted)) == pytest.approx(wanted, abs=1e-3)


def test_runs_that_look_at_other_layers_do_not_agree():
    first = torch.tensor([[0.7, 0.2, 0.1]] * 3 + [[0.1, 0.2, 0.7]])
    one, same, other = ({"attention": {"alpha_of_first": a.tolist()}} for a in (first, first, first.flip(1)))
    found = agreement_of_runs([one, same])
    assert found["rank correlation"] == found["same top layer"] == (1, 1, 1)
    assert found["by chance"][0] == pytest.approx(0.75**2 + 0.25**2)
    found = agreement_of_runs([one, other])
    assert found["rank correlation"] == (-1, -1, -1) and found["same top layer"] == (0, 0, 0)
    assert found["by chance"][0] == pytest.approx(2 * 0.75 * 0.25)
    assert agreement_of_runs([one]) == {}


def test_verdicts_follow_the_interval():
    of = lambda low, high, n=5: Mean((low + high) / 2, low, high, 0.1, n)
    assert [above(of(0.01, 0.1)), above(of(-0.01, 0.1)), above(of(-0.2, -0.1)), above(of(0.1, 0.2, 2))] == [
        CONFIRMED, NOT, NOT, OPEN,
    ]  # fmt: skip
    assert [near(of(0.8, 0.9), 0.85), near(of(0.8, 0.84), 0.85), near(of(0.8, 0.9, 1), 0.85)] == [CONFIRMED, NOT, OPEN]


def test_claims_are_judged_by_the_runs(runs):
    _, found = runs
    judged = {c.text: c for c in claims({"fashion-mnist": found})}
    first = judged["Fashion-MNIST: LAYA is more accurate than LastLayer"]
    less = paired(found, "laya", "last", lambda r: r["accuracy"])
    assert first.found == less.signed and first.verdict == above(less)
    assert judged["CIFAR-10: nearly all attention on the last stage"].verdict == OPEN
    assert "| **not testable here** |" in overview({"fashion-mnist": found})


def test_numbers_in_a_file_keep_six_digits_and_lists_one_line():
    text = written({"a": [1 / 3, 2], "b": {"c": [[1.0], [2.0]]}, "d": None})
    assert json.loads(text) == {"a": [0.333333, 2], "b": {"c": [[1.0], [2.0]]}, "d": None}
    assert '"a": [ 0.333333, 2 ]' in text


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_tables_are_those_of_the_committed_results(name):
    experiment, runs = EXPERIMENTS[name], results(EVIDENCE / name)
    for one in runs:
        assert one["experiment"] == name and one["head"] in experiment.heads and one["seed"] in experiment.seeds
        assert one["training"]["limit"] is None
    if runs:
        assert (EVIDENCE / name / "README.md").read_text(encoding="utf-8") == page(experiment, runs)
    assert any(name in group for group in GROUPS.values())
