"""The import name is shared with two unrelated distributions: a mixture must end in one plain sentence."""

import importlib.metadata
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import pytest

import xattr

PACKAGE = pathlib.Path(xattr.__file__).parent
THEIRS = ("xattr/lib.py", "xattr/tool.py", "xattr/pyxattr_compat.py", "xattr/_lib.abi3.so")
SINGLE = ("xattr" + sysconfig.get_config_var("EXT_SUFFIX"),)


@pytest.fixture
def mixed(tmp_path):
    """Our package copied among the files of another one; returns a function that runs code there."""

    def build(foreign=(), their_init=False):
        shutil.copytree(PACKAGE, tmp_path / "xattr", ignore=shutil.ignore_patterns("weights"))
        for name in foreign:
            (tmp_path / name).touch()
        if their_init:
            (tmp_path / "xattr/__init__.py").write_text("def listxattr(path): return []\n")
        return lambda code: subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)

    return build


def test_clean_import_prints_nothing(mixed):
    done = mixed()("import xattr")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("foreign", "owner"), [(THEIRS, "'xattr'"), (SINGLE, "'pyxattr'")])
def test_foreign_files_end_the_import_before_anything_heavy(mixed, foreign, owner):
    done = mixed(foreign)(
        "import sys\ntry:\n import xattr\nexcept ImportError as e:\n print(e, 'torch' in sys.modules)"
    )
    assert owner in done.stdout
    assert "separate" in done.stdout
    assert "pip install captum-xattr" in done.stdout
    assert pathlib.Path(foreign[0]).name in done.stdout
    assert done.stdout.strip().endswith("False")
    assert len(done.stdout.strip().splitlines()) == 1


def test_with_their_init_our_methods_still_import(mixed):
    done = mixed(THEIRS, their_init=True)("from xattr.attr import GradSkip; print(GradSkip.__name__)")
    assert done.stdout.strip() == "GradSkip" or "separate" in done.stderr.splitlines()[-1], done.stderr


def test_with_their_init_the_command_still_answers(mixed):
    done = mixed(THEIRS, their_init=True)("import sys; sys.argv = ['x', '--help']; from xattr.cli import main; main()")
    assert "demo" in done.stdout, done.stderr


def test_distribution_and_its_one_command():
    files = importlib.metadata.distribution("captum-xattr")
    commands = [entry.name for entry in files.entry_points if entry.group == "console_scripts"]
    assert commands == ["xattr-explain"]
    assert set(importlib.metadata.packages_distributions()["xattr"]) == {"captum-xattr"}


def test_import_is_light():
    code = (
        "import sys, xattr; heavy = {'torch', 'captum', 'matplotlib', 'timm', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "import captum.attr, time; before = set(sys.modules); t = time.perf_counter(); import xattr.attr\n"
        "new = {n.split('.')[0] for n in set(sys.modules) - before}\n"
        "assert not {'timm', 'transformers', 'torchvision', 'pandas', 'ray'} & new, new"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
