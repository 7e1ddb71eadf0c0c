"""What may be said of a run: intervals, paired tests, ranks, costs, and tables of them."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from xattr.benchmark import Results, run
from xattr.benchmark.export import frame, save, text
from xattr.benchmark.names import NAMES
from xattr.benchmark.reporting import disagreement
from xattr.cli import app
from xattr.metrics import bootstrap_interval, paired_differences

from .plans import HERE, cheap


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    methods = ["CentreMap", "BrightnessMap", "own.py:Raises", {"use": "own.py:Own", "name": "a|b & <c>_1"}]
    plan = cheap(methods=methods, metrics=["pointing", "energy", "gini"], data=[{"use": "scenes", "n": 12}])
    return run(plan, tmp_path_factory.mktemp("run"))


def test_the_leaderboard_is_that_of_the_statistics(results):
    board = results.leaderboard().set_index(["metric", "method"])
    values = results.values("class-token", "scenes")
    for metric, by_method in values.items():
        tests = {d.method: d for d in paired_differences(by_method, "CentreMap")}
        for method, row in by_method.items():
            interval = bootstrap_interval(row)
            found = board.loc[(metric, method)]
            assert (found["mean"], found.low, found.high, found.n) == (
                interval.mean,
                interval.low,
                interval.high,
                interval.n,
            )
            if method != "CentreMap":
                assert found.p_holm == tests[method].p_holm and found.different == tests[method].different
    assert board.loc[("energy", "BrightnessMap"), "mean"] == board.loc[("energy", "a|b & <c>_1"), "mean"]
    assert not board.loc[("energy", "CentreMap"), "different"] and np.isnan(
        board.loc[("energy", "CentreMap"), "p_holm"]
    )
    assert board.control.groupby("method").first().to_dict() == {
        "CentreMap": True, "BrightnessMap": True, "Raises": False, "a|b & <c>_1": False,
    }  # fmt: skip


def test_values_stay_beside_their_images(results):
    table = results.table[(results.table.method == "Raises") & (results.table.metric == "energy")].sort_values("row")
    found = results.values("class-token", "scenes")["energy"]["Raises"].numpy()
    assert np.array_equal(found, table.value.to_numpy(), equal_nan=True) and np.isnan(found).any()


def test_metrics_agree_by_their_ranks(results):
    ranks = results.agreement("class-token", "scenes")
    assert ranks.metrics == ("pointing", "energy"), "gini says nothing of quality"
    # Three are the same map, and the one that fails on some images counts on those that all have.
    by_energy = dict(zip(ranks.methods, ranks.ranks[1].tolist(), strict=True))
    assert by_energy == {"CentreMap": 4, "BrightnessMap": 2, "Raises": 2, "a|b & <c>_1": 2}


def test_markdown_csv_and_latex_say_the_same(results):
    markdown = text(results)
    assert r"a\|b & <c>_1" in markdown and "CentreMap (control) (reference)" in markdown
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len({len(re.split(r"(?<!\\)\|", line)) for line in rows}) == 1
    table = pd.read_csv(save(results, "csv"))
    board = results.leaderboard()
    assert np.allclose(table["mean"], board["mean"]) and {"seconds", "forwards", "flops"} <= set(table.columns)
    latex = text(results, "latex")
    assert r"a|b \& <c>\_1" in latex and latex.count(r"\toprule") == 1
    energy = board[(board.metric == "energy") & (board.method == "BrightnessMap")].iloc[0]
    assert f"{energy['mean']:.3f}" in markdown and f"{energy['mean']:.3f}" in latex
    with pytest.raises(ValueError, match="markdown, csv, latex"):
        text(results, "word")


def test_failures_are_counted(results):
    shown = frame(results, "class-token", "scenes")
    failed = shown.loc["Raises", "failed"]
    assert int(failed) == int(results.table[(results.table.metric == "gini")].error.notna().sum()) > 0
    assert set(results.errors().error) == {"RuntimeError: too bright to see"}


def test_a_run_that_goes_on_can_be_read(results, tmp_path):
    import shutil

    shutil.copytree(results.folder, tmp_path / "run")
    sorted((tmp_path / "run" / "shards").glob("*.parquet"))[0].unlink()
    found = Results.read(tmp_path / "run")
    assert found.missing == 1 and "jobs are missing" in text(found) and "missing" in found._repr_html_()


def test_a_notebook_shows_the_table(results):
    shown = results._repr_html_()
    assert "&lt;c&gt;" in shown and "<c>" not in shown and "pointing ↑" in shown


def test_provenance_says_what_is_needed_to_do_it_again(results):
    said = results.provenance
    assert f"torch {torch.__version__.partition('+')[0]}" in said["versions"] and said["jobs"] == "16 of 16"
    assert said["threads of torch in each process"] == "1" and said["explained class"] == "predicted"
    assert json.loads((results.folder / "run.json").read_text())["plan"]["shard"] == 3


def test_disagreement_is_one_less_the_rank_correlation():
    one = torch.arange(16.0).view(1, 4, 4)
    assert disagreement([one, 5 * one**3]) == pytest.approx(0)
    assert disagreement([one, -one]) == pytest.approx(2)
    assert np.isnan(disagreement([one]))
    wide = one.repeat_interleave(2, 1).repeat_interleave(2, 2)
    assert disagreement([one, wide]) == pytest.approx(0, abs=1e-6), "on the coarser grid"


def test_the_command_from_plan_to_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(
        'models = ["embedded/class-token"]\nmethods = ["CentreMap"]\nmetrics = ["energy"]\n'
        'data = [{ use = "scenes", n = 4 }]\nshard = 2\n'
    )
    call = lambda *arguments: CliRunner().invoke(app, list(arguments))
    done = call("benchmark", "mine.toml", "--workers", "0")
    assert done.exit_code == 0, done.output
    assert "CentreMap (control) (reference)" in done.output and "mine-run" in done.output
    files = {path.name for path in (tmp_path / "mine-run").iterdir() if path.is_file()}
    assert files == {"run.json", "report.html", "leaderboard.md", "leaderboard.csv", "leaderboard.tex"}
    (tmp_path / "mine-run" / "report.html").unlink()
    assert call("report", "mine-run").exit_code == 0 and (tmp_path / "mine-run" / "report.html").exists()
    wrong = call("benchmark", "none.toml")
    assert wrong.exit_code == 1 and "none.toml" in wrong.output and len(wrong.output.splitlines()) == 1
    assert call("report", str(HERE)).exit_code == 1


@pytest.mark.parametrize("what", NAMES)
def test_the_command_lists_names(what):
    found = CliRunner().invoke(app, ["list", what])
    wanted = {"methods": "GradSkip", "metrics": "insertion_deletion", "models": "embedded/mean-pool", "data": "scenes"}
    assert found.exit_code == 0 and wanted[what] in found.output
    assert CliRunner().invoke(app, ["list", "cheese"]).exit_code == 1


def test_failing_on_hard_images_is_no_merit(tmp_path):
    # Of two equal methods one fails on bright images, which score high: the other must not be ranked above it.
    found = run(cheap(methods=["BrightnessMap", "own.py:Raises"], metrics=["energy"]), tmp_path)
    ranks = found.agreement("class-token", "scenes")
    assert ranks.ranks.tolist() == [[1.5, 1.5]] and found.leaderboard()["mean"].nunique() == 2
