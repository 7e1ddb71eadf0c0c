"""How often a table without any true difference shows one: 2,000 simulated tables for each test and number of images.

``python benchmarks/false_positives.py`` simulates what is missing under ``docs/evidence/metrics`` and writes the table
there. A table has five methods; `paired_differences` compares four of them with the first, corrected by Holm, and the
table counts as false if it calls any of them different, which should happen in 5 % of tables or fewer. About ten CPU
minutes in all, on one thread; a run resumes at the last hundred tables.

Values lie in 0 to 1, an image that is hard for one method is hard for all, and two methods are near copies. All methods
have the same distribution on an image, so that none differs. Only the last kind of table has means alike and spreads
not: there differences are not symmetric, which both tests take for granted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy
import scipy.stats
import torch
from _versions import versions

from xattr.metrics import paired_differences

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "metrics" / "false_positives"
TABLES, CHUNK, METHODS, LEVEL = 2000, 100, 5, 0.95
IMAGES, TESTS = (20, 100), ("permutation", "wilcoxon")

Array = npt.NDArray[np.float64]


def shares(random: np.random.RandomState, images: int) -> Array:
    """Numbers in 0 to 1, alike in distribution, that go along with each other: the first two methods most."""
    together = np.full((METHODS, METHODS), 0.5) + 0.5 * np.eye(METHODS)
    together[0, 1] = together[1, 0] = 0.95
    normal = random.multivariate_normal(np.zeros(METHODS), together, images)
    return np.asarray(scipy.stats.norm.cdf(normal), np.float64)


def skewed(random: np.random.RandomState, images: int) -> Array:
    """Energy in a small object, or the area below a deletion curve: most values low, a few near 1."""
    return np.asarray(scipy.stats.beta.ppf(shares(random, images), 0.6, 3.0), np.float64)


def tied(random: np.random.RandomState, images: int) -> Array:
    """The same in steps of 0.05, a fifth of them 0: many pairs do not differ, and many differ by as much."""
    return np.round(skewed(random, images) * 20) / 20


def hits(random: np.random.RandomState, images: int) -> Array:
    """0 or 1, as the pointing game: seven images of ten are hits."""
    return (shares(random, images) < 0.7).astype(np.float64)


def asymmetric(random: np.random.RandomState, images: int) -> Array:
    """Means alike, 0.25, but the reference has a long tail and the others have none."""
    ranks = shares(random, images)
    others = scipy.stats.beta.ppf(ranks[:, 1:], 10.0, 30.0)
    return np.hstack([scipy.stats.beta.ppf(ranks[:, :1], 0.6, 1.8), others])


KINDS: dict[str, Callable[[np.random.RandomState, int], Array]] = {
    "skewed": skewed,
    "tied": tied,
    "hits": hits,
    "asymmetric": asymmetric,
}


def measure(kind: str, images: int, test: Any) -> None:
    path = FOLDER / f"{kind}-{images}-{test}.json"
    result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"tables": 0, "false": 0, "seconds": 0}
    while result["tables"] < TABLES:
        began = time.process_time()
        for seed in range(result["tables"], result["tables"] + CHUNK):
            values = KINDS[kind](np.random.RandomState(seed), images)
            table = {str(i): torch.from_numpy(column.copy()) for i, column in enumerate(values.T)}
            found = paired_differences(table, "0", level=LEVEL, seed=seed, test=test)
            result["false"] += any(difference.different for difference in found)
        result["tables"] += CHUNK
        result["seconds"] = round(result["seconds"] + time.process_time() - began, 1)
        path.write_text(json.dumps(_described(result, kind, images, test), indent=2) + "\n", encoding="utf-8")
    print(f"{path.stem}: {result['false']} of {result['tables']}", flush=True)


def _described(result: dict[str, Any], kind: str, images: int, test: str) -> dict[str, Any]:
    interval = scipy.stats.binomtest(result["false"], result["tables"]).proportion_ci(0.95, "exact")
    return {
        "kind": kind,
        "images": images,
        "methods": METHODS,
        "test": test,
        "tables": result["tables"],
        "false": result["false"],
        "share": result["false"] / result["tables"],
        "interval": [interval.low, interval.high],
        "seconds": result["seconds"],
        "seeds": f"0 to {result['tables'] - 1}, one a table, for its values and for its flips",
        "command": "python benchmarks/false_positives.py",
        "versions": versions("torch", "numpy", "scipy"),
    }


def table() -> str:
    """Share of false tables in percent, and its exact interval."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))]
    lines = [
        "# Tables without a true difference in which one is called different",
        "",
        f"{TABLES} tables a cell, {METHODS} methods, four compared with the first by `paired_differences`, Holm's "
        "correction, level .95: percent of tables with any method called different [exact binomial 95 % interval]. 5 "
        "or less is right. Made by `python benchmarks/false_positives.py`; seeds 0 to 1999, one a table; versions in "
        "the files.",
        "",
        "| values | images | " + " | ".join(TESTS) + " |",
        "|---" * (2 + len(TESTS)) + "|",
    ]
    for kind in KINDS:
        for images in IMAGES:
            found = [next(r for r in runs if (r["kind"], r["images"], r["test"]) == (kind, images, t)) for t in TESTS]
            cells = [
                f"{100 * r['share']:.2f} [{100 * r['interval'][0]:.2f}, {100 * r['interval'][1]:.2f}]" for r in found
            ]
            lines.append(f"| {kind} | {images} | {' | '.join(cells)} |")
    lines += [
        "",
        "* *skewed*: most values low, a few near 1; an image hard for one method is hard for all (rank correlations of "
        "about .5, .95 between the first two).",
        "* *tied*: the same in steps of .05, so that many pairs do not differ.",
        "* *hits*: 0 or 1, as the pointing game. Few pairs differ, and their test is coarse: far below 5 %.",
        "* *asymmetric*: **outside what the tests promise.** Means are alike (.25), but the reference has a long tail: "
        "differences are not symmetric about 0, and their median is not 0. The signed ranks see that, the more images "
        "the more often; read as a statement about means it would be wrong.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        for images in IMAGES:
            for test in TESTS:
                measure(kind, images, test)
    (FOLDER / "README.md").write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    main()
