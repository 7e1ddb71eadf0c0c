"""A wrong plan fails before the first forward, with the line and the choices."""

import dataclasses

import pytest
import torch

from xattr.benchmark import Part, Plan
from xattr.benchmark.bench import Bench
from xattr.trace.errors import PlanError

from .plans import HERE, plan

GOOD = """
title = "A try"
seeds = [0, 1]
shard = 3
models = ["embedded/class-token"]
metrics = [
    "insertion_deletion",
    "pointing",
]

[[methods]]
use = "GradSkip"
alpha = 0.3

[[methods]]
use = "own.py:Own"
factor = 2.0

[[data]]
use = "scenes"
n = 4
"""


def written(tmp_path, text):
    file = tmp_path / "plan.toml"
    file.write_text(text, encoding="utf-8")
    (tmp_path / "own.py").write_text((HERE / "own.py").read_text(encoding="utf-8"), encoding="utf-8")
    return file


def test_a_file_and_python_say_the_same(tmp_path):
    found = Plan.read(written(tmp_path, GOOD))
    same = Plan(
        title="A try",
        seeds=(0, 1),
        shard=3,
        models=["embedded/class-token"],
        methods=[{"use": "GradSkip", "alpha": 0.3}, Part("own.py:Own", settings={"factor": 2.0})],
        data=[{"use": "scenes", "n": 4}],
        metrics=["insertion_deletion", "pointing"],
        base=tmp_path,
    )
    assert found == same and found.base == tmp_path
    assert Plan(**found.as_dict(), base=tmp_path) == same and found.portable
    assert [part.name for part in found.methods] == ["GradSkip", "Own"]
    assert [j.key for j in Bench(found).jobs()] == [j.key for j in Bench(same).jobs()]


@pytest.mark.parametrize(
    ("change", "line", "says"),
    [
        (("GradSkip", "GradSkp"), 11, "GradientXToken"),
        (('"pointing"', '"pointng"'), 8, "average_precision"),
        (("alpha = 0.3", "alfa = 0.3"), 11, "alpha"),
        (("factor = 2.0", "power = 2\nfaktor = 1"), 15, "factor, power"),
        (("own.py:Own", "own.py:Other"), 15, "NeverReturns"),
        (("own.py:Own", "no.py:Own"), 15, "no file"),
        (("n = 4", "m = 4"), 19, "split"),
        (('use = "scenes"', 'use = "scene"'), 19, "folder"),
        (("shard = 3", "shard = 0"), 4, "1 or more"),
        (("shard = 3", "shart = 3"), 4, "time_limit"),
        (("seeds = [0, 1]", "seeds = [0, 0]"), 3, "each once"),
        (('"embedded/class-token"', '"embedded/class"'), 5, "mean-pool"),
        (('"embedded/class-token"', '"timm/vit_tny"'), 5, "vit_tiny"),
        (('use = "own.py:Own"', 'name = "GradSkip"\nuse = "own.py:Own"'), 15, "two methods"),
        (('use = "GradSkip"', 'name = "GradSkip"'), 11, "`use`"),
        (('use = "GradSkip"', 'use = "LRP:gama"'), 11, "gamma"),
        (("alpha = 0.3", 'settings = "PAPR"'), 11, "PAPER"),
    ],
)
def test_a_mistake_is_found_with_its_line(tmp_path, monkeypatch, change, line, says):
    monkeypatch.setattr(torch.nn.Module, "__call__", lambda *_, **__: pytest.fail("a model ran"))
    assert change[0] in GOOD
    file = written(tmp_path, GOOD.replace(*change))
    with pytest.raises(PlanError) as error:
        list(Bench(Plan.read(file)).jobs())
    assert f"line {line}" in str(error.value) and says in str(error.value), str(error.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"metrics": ["class_sensitivity"]}, "maps_a, maps_b, mask_a"),
        ({"data": ["cifar-photographs"]}, "masks"),
        ({"metrics": [{"use": "own.py:mean_value", "size": 1}]}, "scale"),
        ({"methods": ["Occlusion"]}, "sliding_window_shapes"),
        ({"methods": ["torch.nn.Linear"]}, "attribute"),
        ({"methods": [3]}, "int"),
        ({"methods": []}, "at least one"),
        ({"device": "abacus"}, "device"),
        ({"target": "best"}, "predicted"),
        ({"reference": "LRP"}, "RandomMap"),
        ({"time_limit": 0}, "above 0"),
        ({"metrics": [{"use": "pointing", "higher_is_better": "yes"}]}, "true or false"),
        ({"models": [{"use": "embedded/class-token", "seed": 1}]}, "settings"),
    ],
)
def test_mistakes_in_python(changes, says):
    with pytest.raises(PlanError, match=says):
        list(Bench(plan(**changes)).jobs())


def test_what_is_not_toml_is_said(tmp_path):
    file = tmp_path / "plan.toml"
    for text, says in (("models = [", "plan.toml"), ("title = 'x'", "no models"), (None, "missing.toml")):
        target = tmp_path / "missing.toml" if text is None else file
        if text is not None:
            file.write_text(text)
        with pytest.raises(PlanError, match=says):
            Plan.read(target)


def test_the_name_of_a_job_is_that_of_all_that_decides_it(tmp_path):
    written(tmp_path, GOOD)
    base = plan(methods=["own.py:Own"], base=tmp_path)
    keys = lambda p: [job.key for job in Bench(p).jobs()]
    before = keys(base)
    assert before == keys(dataclasses.replace(base, title="Other", keep_maps=9)), "what decides no number"
    others = [
        {"methods": [{"use": "own.py:Own", "factor": 3.0}]},
        {"methods": [{"use": "own.py:Own", "power": 3}]},
        {"metrics": ["pointing"]},
        {"metrics": ["insertion_deletion", {"use": "pointing", "tolerance": 1}]},
        {"data": [{"use": "scenes", "n": 6, "seed": 5}]},
        {"data": [{"use": "scenes", "n": 6, "mask": "ink"}]},
        {"models": ["embedded/class-token:1"]},
        {"seeds": (1,)},
        {"target": "label"},
        {"batch": 3},
        {"threads": 2},
        {"upsample": "nearest"},
        {"time_limit": 9},
    ]
    for change in others:
        assert not set(before) & set(keys(plan(**{"methods": ["own.py:Own"], "base": tmp_path, **change}))), change
    file = tmp_path / "own.py"
    file.write_text(file.read_text() + "\n# another version\n")
    assert not set(before) & set(keys(base)), "code of a user's own"
    model = lambda: keys(plan(models=["own.py:build"], methods=["GradSkip"], base=tmp_path))
    before_model, base_keys = model(), keys(base)
    file.write_text(file.read_text() + "\n# a model whose forward may be another now\n")
    assert not set(before_model) & set(model()) and not set(base_keys) & set(keys(base))
    more = plan(methods=["own.py:Own", "GradSkip"], base=tmp_path)
    assert set(keys(base)) < set(keys(more)), "a further method changes no other"
