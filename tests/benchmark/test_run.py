"""A run: what is recorded, what is resumed, and what happens when things go wrong."""

import errno
import json
import os
import random
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from xattr.attr import GradSkip, RandomMap
from xattr.benchmark import Results, run
from xattr.benchmark.limits import OverTime, Watch, seeded
from xattr.benchmark.store import COLUMNS, Store
from xattr.datasets import cell_masks, digit_scenes, embedded_model
from xattr.loading import Loaded
from xattr.metrics import insertion_deletion, pointing
from xattr.trace.errors import PlanError, RunError

from .plans import HERE, cheap, plan


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return run(plan(), folder)


def of(results, method, metric):
    table = results.table
    return table[(table.method == method) & (table.metric == metric)].sort_values("row")


def test_values_are_those_of_the_metrics_called_by_hand(finished):
    model, scenes = embedded_model("class-token"), digit_scenes("report", 6)
    target = model(scenes.images).argmax(1)
    for method, make in (("GradSkip", GradSkip), ("RandomMap", RandomMap)):
        kind = {"upsample": None} if make is GradSkip else {}
        maps = make(model).attribute(scenes.images, target=target, **kind)
        pair = insertion_deletion(model, scenes.images, maps, target, steps=4)
        found = of(finished, method, "insertion_deletion")
        assert np.allclose(found.value, pair.difference, atol=1e-5)
        assert found.target.tolist() == target.tolist() == found.predicted.tolist()
        assert found.label.tolist() == scenes.labels.tolist()
        curves = np.stack(of(finished, method, "insertion_deletion/deletion").curve.to_list())
        assert np.allclose(curves, pair.deletion.curve, atol=1e-5)
        wide = torch.nn.functional.interpolate(maps, size=(24, 24), mode="bilinear")
        assert of(finished, method, "pointing").value.tolist() == pointing(wide, cell_masks(scenes.cells)).tolist()
    assert finished.table.error.isna().all() and list(finished.table.columns) == list(COLUMNS)
    assert finished.protocols["insertion_deletion"].startswith("unit patch, operator drop_tokens")


def test_costs_stand_with_the_images_that_they_were_counted_on(finished):
    costs = finished.costs().set_index("method")
    assert 1.8 < costs.loc["GradSkip", "forwards"] < 1.9 and costs.loc["RandomMap", "forwards"] == 0
    assert (costs.seconds > 0).all() and costs.loc["GradSkip", "peak_bytes"] > costs.loc["RandomMap", "peak_bytes"] > 0


def test_captum_methods_are_counted_and_warn_of_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = run(
            plan(methods=["Saliency", "InputXGradient"], metrics="gini", data=[{"use": "scenes", "n": 2}]), tmp_path
        )
    assert (found.costs().forwards > 1.5).all() and found.table.error.isna().all()


def test_maps_are_kept_for_the_first_images(finished):
    kept = {path.stem: Store(finished.folder).loaded(f"maps/{path.stem}") for path in finished.folder.glob("maps/*")}
    assert len(kept) == 2 and all(part["rows"].tolist() == [0, 1] for part in kept.values())
    assert sorted(part["maps"].shape[-1] for part in kept.values()) == [6, 24]
    (pictures,) = [part["pictures"] for part in kept.values() if "pictures" in part]
    scenes = digit_scenes("report", 2).images
    assert torch.equal(pictures[..., 0], (scenes[:, 0] * 255).round().byte())


def test_what_is_finished_is_not_measured_again(finished, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in finished.folder.rglob("*.parquet")}
    monkeypatch.setattr(GradSkip, "attribute", lambda *_, **__: pytest.fail("measured again"))
    again = run(plan(), finished.folder)
    assert before == {path: path.stat().st_mtime_ns for path in finished.folder.rglob("*.parquet")}
    assert again.table.equals(finished.table)


def test_a_changed_plan_measures_what_is_new_and_keeps_the_rest(tmp_path):
    first = run(cheap(), tmp_path)
    files = set(tmp_path.glob("shards/*"))
    more = run(cheap(methods=["BrightnessMap", "CentreMap"]), tmp_path)
    assert files < set(tmp_path.glob("shards/*")), "nothing is lost"
    assert set(more.table.method) == {"BrightnessMap", "CentreMap"}
    ours = more.table.method == "BrightnessMap"
    assert (
        more.table[ours]
        .reset_index(drop=True)
        .equals(first.table[first.table.method == "BrightnessMap"].reset_index(drop=True))
    )
    assert run(cheap(), tmp_path).table.equals(first.table)


def test_more_maps_are_kept_when_the_plan_wants_more(tmp_path):
    run(cheap(), tmp_path)
    run(cheap(keep_maps=4), tmp_path)
    rows = [Store(tmp_path).loaded(f"maps/{path.stem}")["rows"].tolist() for path in tmp_path.glob("maps/*")]
    assert sorted(rows) == [[0, 1, 2], [0, 1, 2], [3], [3]]


@pytest.mark.parametrize("harm", ["truncated", "flipped", "empty", "another"])
def test_a_broken_shard_is_put_aside_and_measured_again(tmp_path, harm):
    first = run(cheap(), tmp_path)
    file, other = sorted(tmp_path.glob("shards/*"))[:2]
    content = file.read_bytes()
    middle = len(content) // 4
    broken = {
        "truncated": content[: len(content) // 2],
        "flipped": content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :],
        "empty": b"",
        "another": other.read_bytes(),
    }[harm]
    file.write_bytes(broken)
    assert Results.read(tmp_path).missing == 1
    again = run(cheap(), tmp_path)
    assert again.compared.equals(first.compared) and again.missing == 0
    assert file.with_suffix(".broken").read_bytes() == broken, "nothing is thrown away"


def test_lost_or_broken_maps_are_made_again(tmp_path):
    run(cheap(), tmp_path)
    one, other = sorted(tmp_path.glob("maps/*"))
    before = one.read_bytes(), other.read_bytes()
    one.unlink()
    other.write_bytes(b"x")
    run(cheap(), tmp_path)
    assert (one.read_bytes(), other.read_bytes()) == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_full_disk_or_a_closed_folder_loses_nothing(tmp_path, monkeypatch, number):
    replace, count = os.replace, []

    def failing(source, target):
        count.append(target)
        if len(count) > 5:
            raise OSError(number, os.strerror(number))
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(RunError, match=r"cannot be written.*goes on"):
        run(cheap(), tmp_path)
    monkeypatch.setattr(os, "replace", replace)
    assert not list(tmp_path.rglob("*.part"))
    done = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("shards/*")}
    assert done
    found = run(cheap(), tmp_path)
    assert (
        found.missing == 0 and done.items() <= {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("shards/*")}.items()
    )


def test_a_folder_that_cannot_be_made_is_said_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="cannot be written"):
        run(cheap(), tmp_path / "file" / "run")
    with pytest.raises(RunError, match="no folder of a run"):
        Results.read(tmp_path)


def test_what_fails_on_an_image_is_a_row_and_stops_nothing(tmp_path):
    methods = ["RandomMap", "own.py:Raises", "own.py:Shape", "own.py:Broken"]
    found = run(plan(methods=methods, metrics=["pointing", "gini"]), tmp_path)
    bright = digit_scenes("report", 6).images.sum((1, 2, 3)) > 100
    assert 0 < int(bright.sum()) < 6
    raised = of(found, "Raises", "pointing")
    assert [bool(e) for e in raised.error.notna()] == bright.tolist()
    assert set(raised.error.dropna()) == {"RuntimeError: too bright to see"}
    assert raised.value.isna().tolist() == bright.tolist()
    assert of(found, "Shape", "gini").error.str.contains("expected maps").all()
    broken = of(found, "Broken", "gini")
    assert broken.error.notna().tolist() == [True, False, True] * 2, "the first image of each call"
    assert of(found, "RandomMap", "gini").error.isna().all()
    board = found.leaderboard().set_index(["method", "metric"])
    assert board.loc[("Raises", "pointing"), "errors"] == int(bright.sum())
    assert board.loc[("Raises", "pointing"), "n"] == 6 - int(bright.sum())
    # An image that failed does not change what others get.
    alone = run(plan(methods=["BrightnessMap"], metrics=["pointing", "gini"]), tmp_path / "alone")
    there = ~bright.numpy()
    assert raised.value[there].tolist() == of(alone, "BrightnessMap", "pointing").value[there].tolist()


def test_metrics_of_a_users_own_and_what_fails_in_them(tmp_path):
    metrics = [
        {"use": "own.py:mean_value", "scale": 2.0},
        "own.py:bad_metric",
        {"use": "own.py:half_metric", "higher_is_better": False},
    ]
    found = run(plan(methods=[{"use": "own.py:Own", "factor": 3.0, "power": 2}], metrics=metrics), tmp_path)
    scenes = digit_scenes("report", 6)
    masks = cell_masks(scenes.cells)
    wanted = 6 * (scenes.images**2 * masks).sum((1, 2, 3)) / masks.sum((1, 2, 3))
    assert np.allclose(of(found, "Own", "mean_value").value, wanted)
    assert of(found, "Own", "bad_metric").error.str.contains("one value for each image").all()
    half = of(found, "Own", "half_metric")
    assert half.error.notna().tolist() == (half.target == 2).tolist() and 0 < half.error.notna().sum() < 6
    directions = {name: metric["higher_is_better"] for name, metric in found.metrics.items()}
    assert directions == {"mean_value": True, "bad_metric": None, "half_metric": False}


def test_what_takes_too_long_is_ended(tmp_path):
    found = run(plan(methods=["own.py:Hangs", "RandomMap"], time_limit=0.05, metrics="gini"), tmp_path)
    assert of(found, "Hangs", "gini").error.str.startswith("OverTime").all()
    assert of(found, "RandomMap", "gini").error.isna().all()


def test_a_method_that_leaves_its_hooks_spoils_nothing_after_it(tmp_path):
    clean = run(plan(methods=["GradSkip"]), tmp_path / "clean")
    found = run(plan(methods=["own.py:Hooks", "GradSkip"]), tmp_path / "hooks")
    assert of(found, "Hooks", "pointing").error.str.contains("hook").all()
    assert np.array_equal(
        of(found, "GradSkip", "insertion_deletion").value, of(clean, "GradSkip", "insertion_deletion").value
    )


def test_retry_measures_again_what_failed_alone(tmp_path, monkeypatch):
    from . import own

    monkeypatch.setattr(own, "LIMIT", 0)
    both = plan(methods=[own.Raises, "RandomMap"], metrics="gini")
    assert of(run(both, tmp_path), "Raises", "gini").error.notna().all()
    monkeypatch.setattr(own, "LIMIT", 1e9)
    monkeypatch.setattr(RandomMap, "attribute", lambda *_, **__: pytest.fail("measured again"))
    assert of(run(both, tmp_path), "Raises", "gini").error.notna().all()
    assert of(run(both, tmp_path, retry=True), "Raises", "gini").error.isna().all()


def test_seeds_decide_what_is_drawn_and_are_averaged(tmp_path):
    state = torch.get_rng_state(), random.getstate()
    both = plan(methods=["own.py:Noise"], metrics="gini", seeds=(0, 1))
    found, again = run(both, tmp_path / "a"), run(both, tmp_path / "b")
    assert torch.equal(state[0], torch.get_rng_state()) and state[1] == random.getstate()
    assert found.compared.equals(again.compared)
    by_seed = [of(found, "Noise", "gini").query(f"seed == {seed}").value.to_numpy() for seed in (0, 1)]
    assert not np.allclose(*by_seed)
    assert np.allclose(found.values("class-token", "scenes")["gini"]["Noise"], np.mean(by_seed, 0))
    assert found.leaderboard().n.tolist() == [6]


def test_objects_in_a_plan(tmp_path):
    from . import own

    model = embedded_model("class-token")
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    live = plan(models=[model], methods=[own.Own, "GradSkip"], metrics=[own.mean_value])
    found = run(live, tmp_path)
    assert found.table.error.isna().all() and model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    loaded = run(
        plan(models=[Loaded(model, None, None, "mine")], methods=[own.Own], metrics=[own.mean_value]), tmp_path
    )
    assert set(loaded.table.model) == {"mine"}
    with pytest.raises(PlanError, match="workers=0"):
        run(live, tmp_path, workers=2)


def test_a_head_over_layers(tmp_path):
    from xattr.heads import LayaModel

    torch.manual_seed(0)
    model = LayaModel(embedded_model("class-token"), num_classes=10, pool="cls")
    methods = [
        "xattr.attr.LayaLayerAttribution",
        {"use": "xattr.attr.LayaLayerAttribution", "name": "exact", "scores": "contribution"},
    ]
    found = run(plan(models=[model], methods=methods, metrics=["leave_one_out", {"use": "pointing"}]), tmp_path)
    loo = of(found, "exact", "leave_one_out")
    assert loo.error.isna().all() and loo.value.notna().any()
    assert of(found, "exact", "pointing").error.str.contains("layers").all()
    (profile,) = [found.layers[key]["attention"] for key in found.layers if key[2] == "LayaLayerAttribution"]
    assert len(profile) == 8 and abs(sum(profile) - 1) < 1e-5


def test_no_pickle_in_any_file(finished):
    kinds = {path.suffix for path in finished.folder.rglob("*") if path.is_file()}
    assert kinds <= {".parquet", ".safetensors", ".json"}
    json.loads((finished.folder / "run.json").read_text())


def test_polars_reads_the_same_files(finished):
    polars = pytest.importorskip("polars")
    found = polars.read_parquet(finished.folder / "shards" / "*.parquet")
    assert len(found) == len(finished.table)
    assert np.isclose(found["value"].drop_nans().sum(), finished.table.value.sum())


def test_limits_leave_the_users_alarm_alone():
    import signal

    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        with pytest.raises(OverTime), Watch().limit(0.05):
            time.sleep(60)
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN and signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_random_numbers_follow_the_seed():
    draws = lambda: (float(torch.rand(1)), random.random(), np.random.rand())
    with seeded(1):
        one = draws()
    with seeded(2):
        other = draws()
    with seeded(1):
        assert draws() == one != other


def test_relative_paths_start_from_the_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run(plan(models=["own.py:build"], methods=["own.py:Own"], metrics="gini"), Path("run"))
    assert found.table.error.isna().all() and HERE != tmp_path


def test_a_job_of_one_image(tmp_path):
    found = run(cheap(data=[{"use": "scenes", "n": 4}]), tmp_path)
    assert found.table.error.isna().all() and found.table.row.max() == 3 and found.missing == 0
    assert found.compared.value.equals(run(cheap(data=[{"use": "scenes", "n": 4}], shard=2), tmp_path).compared.value)


def test_parts_of_the_same_content_are_told_apart_by_their_names(tmp_path):
    methods = ["BrightnessMap", {"use": "BrightnessMap", "name": "again"}]
    data = [{"use": "scenes", "n": 6}, {"use": "scenes", "n": 3, "name": "fewer"}]
    models = ["embedded/class-token", {"use": "embedded/class-token", "name": "twin"}]
    found = run(cheap(models=models, methods=methods, data=data), tmp_path)
    counts = found.leaderboard().set_index(["model", "data", "method"]).n
    assert counts.to_dict() == {
        (m, d, name): n
        for m in ("class-token", "twin")
        for d, n in (("scenes", 6), ("fewer", 3))
        for name in ("BrightnessMap", "again")
    }


def test_a_metric_that_works_in_place_spoils_nothing(tmp_path):
    alone = run(cheap(metrics=["gini", "pointing"]), tmp_path / "alone")
    found = run(cheap(metrics=["own.py:in_place", "gini", "pointing"]), tmp_path / "both")
    for metric in ("gini", "pointing"):
        for method in ("BrightnessMap", "RandomMap"):
            assert of(found, method, metric).value.tolist() == of(alone, method, metric).value.tolist()
    assert of(found, "RandomMap", "gini").target.tolist() == of(alone, "RandomMap", "gini").target.tolist()


def test_an_infinite_value_is_an_error(tmp_path):
    found = run(cheap(metrics=["own.py:infinite"]), tmp_path)
    assert of(found, "RandomMap", "infinite").error.notna().tolist() == [True, False, False] * 2
    assert set(found.table.error.dropna()) == {"ValueError: the value is infinite"}
    assert found.leaderboard().n.tolist() == [4, 4]


def test_the_class_goes_by_keyword_or_not_at_all(tmp_path):
    found = run(cheap(methods=["own.py:Keywords"], metrics=["own.py:in_place"], target="label"), tmp_path)
    scenes = digit_scenes("report", 6)
    wanted = scenes.images.sum((1, 2, 3)) * scenes.labels
    assert np.allclose(of(found, "Keywords", "in_place").value, wanted)
    with pytest.raises(PlanError, match="takes no `target`"):
        run(cheap(methods=["own.py:NoTarget"]), tmp_path)
