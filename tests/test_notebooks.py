"""The notebooks run from top to bottom, and their outputs are those that are committed."""

import pathlib

import nbformat
import pytest
from nbconvert.preprocessors import ExecutePreprocessor

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def printed(notebook):
    return [o["text"] for cell in notebook.cells for o in cell.get("outputs", []) if o["output_type"] == "stream"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path):
    committed = nbformat.read(path, as_version=4)
    fresh = nbformat.from_dict(committed)
    ExecutePreprocessor(timeout=300, kernel_name="python3").preprocess(fresh, {"metadata": {"path": str(path.parent)}})
    text = "".join(printed(fresh))
    assert "our Integrated Gradients are Captum's: True" in text
    assert "blocks walked: blocks.0.attn ... blocks.7.attn" in text
    pictures = [o for cell in fresh.cells for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
    assert len(pictures) == 1
    lines = ["".join(printed(notebook)).count("\n") for notebook in (committed, fresh)]
    assert lines[0] == lines[1], "commit the notebook executed"
