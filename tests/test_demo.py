"""The demo, from Python and as a command."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import xattr.attr
from xattr import demo
from xattr.cli import app
from xattr.demo import photographs

from .models import needs_more


@pytest.fixture(scope="module")
def small():
    return demo.run(scenes=12, pairs=6, shown=1)


def test_every_row_is_a_method_or_control(small):
    assert {kind for kind, _ in demo.ROWS.values()} <= set(xattr.attr.METHODS)
    assert [(r.model, r.method) for r in small.rows] == [(m, name) for m in demo.MODELS for name in demo.ROWS]
    for name in demo.ROWS:
        assert small.table.count(name) == len(demo.MODELS)


def test_rows_say_what_was_measured(small):
    rows = {(r.model, r.method): r for r in small.rows}
    for model in demo.MODELS:
        best, random = rows[model, "GradSkip, DEFAULT"], rows[model, "RandomMap (control)"]
        assert best.cell > 0.6
        assert best.pointing > 0.9
        assert best.sensitivity > 0.3
        assert 1.7 < best.cost < 2.0
        assert random.cell == pytest.approx(1 / 9, abs=0.03)
        assert random.cost == 0
        assert random.sensitivity == 0
        assert rows[model, "AttentionRollout"].sensitivity == pytest.approx(0, abs=1e-6)
        assert rows[model, "AttentionRollout"].cost < 1.1
        assert rows[model, "IntegratedGradients, 25 steps"].cost > 50


def test_picture(small, tmp_path):
    path = small.save(tmp_path)
    assert path == tmp_path / "xattr-demo.png"
    from matplotlib.image import imread

    picture = imread(path)
    assert min(picture.shape[:2]) > 300
    assert len(np.unique(picture.reshape(-1, picture.shape[-1]), axis=0)) > 500
    with pytest.raises(FileNotFoundError, match="nowhere"):
        small.save(tmp_path / "nowhere")


def test_run_is_silent_and_repeatable(small, capfd):
    threads = torch.get_num_threads()
    again = demo.run(scenes=12, pairs=6, shown=1)
    assert again.rows == small.rows
    assert capfd.readouterr() == ("", "")
    assert torch.get_num_threads() == threads


def test_command(small, tmp_path, monkeypatch):
    def absent():
        raise ModuleNotFoundError("this needs a package")

    there = demo.Photographs("there", small.figure, "what is there")
    monkeypatch.setattr(demo, "run", lambda show_progress: small)
    monkeypatch.setattr(demo, "PHOTOGRAPHS", {"there": lambda: there, "absent": absent})
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 0
    assert small.table in result.output
    assert (tmp_path / "xattr-demo.png").exists()
    assert (tmp_path / "xattr-there.png").exists()
    assert "what is there" in result.output
    assert "Not shown: absent; this needs a package" in result.output
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "nowhere")])
    assert result.exit_code == 2
    assert "nowhere" in result.output


def test_photographs(monkeypatch, tmp_path):
    monkeypatch.setitem(photographs.CNN_ROWS, "IntegratedGradients", ("IntegratedGradients", {"n_steps": 2}))
    result = photographs.imagenet(("coffee",))
    assert "coffee: espresso, 95%" in result.table
    titles = {axes.get_title() for axes in result.figure.axes}
    assert {"image", *photographs.CNN_ROWS} <= titles
    assert result.save(tmp_path) == tmp_path / "xattr-photographs.png"


@needs_more
def test_quokka():
    result = photographs.salient_quokka()
    energies = {line[:16].strip(): float(line.split()[-1]) for line in result.table.splitlines()[2:]}
    assert energies.keys() == photographs.VIT_ROWS.keys()
    assert energies["GradCam"] > 0.8
    assert energies["GradientXToken"] > 0.5 > energies["RandomMap"]


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert xattr.__version__ in result.output


def test_command_says_what_it_can():
    done = subprocess.run([sys.executable, "-m", "xattr", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "demo" in done.stdout
