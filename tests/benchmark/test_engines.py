"""The same plan gives the same table and the same maps, whoever does the work and whatever dies meanwhile."""

import hashlib
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from xattr.benchmark import Results, run

from .plans import HERE, cheap

# One method draws, and one kills its process, once.
PLAN = """
shard = 3
batch = 2
keep_maps = 2
models = ["embedded/class-token"]
methods = ["GradSkip", "own.py:Noise", "own.py:DiesOnce"]
metrics = ["pointing", { use = "insertion_deletion", steps = 4 }]
data = [{ use = "scenes", n = 6 }]
"""


def maps(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "maps").glob("*")}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    (folder / "own.py").write_text((HERE / "own.py").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "plan.toml").write_text(PLAN, encoding="utf-8")
    return folder / "plan.toml"


@pytest.fixture(scope="module")
def here(file):
    """The run that all others have to equal, in this process, where nothing dies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XATTR_TEST_FLAG", str(file))
        return run(file, file.parent / "here")


@pytest.fixture
def flag(tmp_path, monkeypatch):
    """Appears when the process has died."""
    monkeypatch.setenv("XATTR_TEST_FLAG", str(tmp_path / "flag"))
    return tmp_path / "flag"


def same(found, here):
    assert found.missing == 0
    assert found.compared.equals(here.compared)
    assert maps(found.folder) == maps(here.folder) and maps(found.folder)


def command(file, out, *more):
    return [sys.executable, "-m", "xattr", "benchmark", str(file), "--out", str(out), *more]


def test_two_workers_one_of_which_dies(file, here, flag, tmp_path):
    same(run(file, tmp_path / "run", workers=2), here)
    assert flag.exists()


def test_a_run_that_is_killed_goes_on(file, here, tmp_path, monkeypatch):
    monkeypatch.setenv("XATTR_TEST_FLAG", str(file))
    process = subprocess.Popen(command(file, tmp_path, "--workers", "0"), start_new_session=True)
    done = lambda: list((tmp_path / "shards").glob("*.parquet"))
    until = time.monotonic() + 120
    while not done() and time.monotonic() < until:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = {path: path.stat().st_mtime_ns for path in done()}
    assert 0 < len(before) < 6, "killed in the middle"
    same(run(file, tmp_path), here)
    assert before.items() <= {path: path.stat().st_mtime_ns for path in done()}.items()


def test_what_kills_its_process_or_never_returns_is_given_up(tmp_path):
    methods = ["own.py:Dies", "own.py:NeverReturns", "RandomMap"]
    found = run(
        cheap(methods=methods, time_limit=1.0, threads=2, data=[{"use": "scenes", "n": 3}]), tmp_path, workers=2
    )
    errors = found.table.groupby("method").error.first()
    assert errors["Dies"] == "the process died 2 times: exit code 1"
    assert errors["NeverReturns"].startswith("OverTime") and "not to be stopped" in errors["NeverReturns"]
    assert pd.isna(errors["RandomMap"]) and found.table.row.nunique() == 3
    assert found.provenance["threads of torch in each process"] == "2"


def test_two_ranks_of_torchrun_one_of_which_dies(file, here, flag, tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "-m"]
    run_ = [*launch, *command(file, tmp_path / "run")[2:]]
    done = subprocess.run(run_, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    same(Results.read(tmp_path / "run"), here)
    assert done.stdout.count("insertion_deletion ↑") == 1, "one rank reports"
    assert flag.exists()


def test_two_ray_actors_one_of_which_dies(file, here, flag, tmp_path):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        same(run(file, tmp_path / "run", workers=2, engine="ray"), here)
    finally:
        ray.shutdown()
    assert flag.exists()
