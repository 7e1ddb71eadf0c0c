"""Small plans for the tests."""

from pathlib import Path

from xattr.benchmark import Plan

HERE = Path(__file__).parent


def plan(**changes):
    parts = {
        "models": ["embedded/class-token"],
        "methods": ["GradSkip", "RandomMap"],
        "data": [{"use": "scenes", "n": 6}],
        "metrics": [{"use": "insertion_deletion", "steps": 4}, "pointing"],
        "shard": 3,
        "batch": 2,
        "keep_maps": 2,
        "base": HERE,
    }
    return Plan(**{**parts, **changes})


def cheap(**changes):
    return plan(**{"methods": ["BrightnessMap", "RandomMap"], "metrics": ["pointing"], **changes})
