"""A process of its own: what an import loads, and that every warning may be an error."""

import subprocess
import sys
from pathlib import Path

import xattr

ROOT = str(Path(xattr.__file__).parent.parent)

LIGHT = """
import sys
import xattr.visualization as v
loaded = {"torch", "matplotlib", "PIL", "scipy"} & set(sys.modules)
assert not loaded, loaded
assert sorted(v.__all__) == ["colour", "comparison", "depth_profile", "heatmap", "overlay", "to_image"]
import numpy as np
v.overlay(np.eye(4), np.zeros((3, 8, 8)))
assert "matplotlib" not in sys.modules
"""

STRICT = """
import sys
sys.modules["tkinter"] = None
import numpy as np
from xattr.visualization import comparison, heatmap
rng = np.random.default_rng(0)
img, heat = rng.random((2, 3, 24, 24)), rng.standard_normal((2, 1, 24, 24))
heatmap(heat, img, colorbar=True, title="a $ b", save="one.png")
heatmap(heat[0], img[0], cmap="coolwarm", percentile=99, save="two.png")
comparison(img, {"own": heat, "other": heat[:, 0, ::4, ::4]}, masks=heat > 1, labels=["x", "y"], save="three.png")
assert "matplotlib.pyplot" not in sys.modules
import matplotlib
assert matplotlib.rcParams._get("backend") is matplotlib.rcsetup._auto_backend_sentinel
"""


def run(code, folder):
    path = {"PYTHONPATH": ROOT, "HOME": str(folder), "MPLCONFIGDIR": str(folder), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=folder, env=path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout == done.stderr.replace("Matplotlib is building the font cache; this may take a moment.\n", "") == ""
    )


def test_the_import_is_light(tmp_path):
    run(LIGHT, tmp_path)


def test_no_warning_no_display_no_pyplot(tmp_path):
    run(STRICT, tmp_path)
    assert sorted(p.name for p in tmp_path.glob("*.png")) == ["one.png", "three.png", "two.png"]
