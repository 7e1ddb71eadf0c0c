"""The paper's experiments with LAYA: ``python -m xattr.heads.reproduce fashion-mnist``.

Also ``fashion-mnist-6`` (six hidden layers), ``cifar-10`` and ``frozen`` (heads on frozen backbones), or ``all``. One
run is one result file, `<experiment>/<head>-<seed>.json`; runs that have one are left out, and one that was killed goes
on at its last epoch. ``--verify`` makes one run of each experiment again from scratch and compares. Tables and pictures
are written at the end; ``--tables`` writes them alone.
"""

from .data import Split
from .experiments import EXPERIMENTS, GROUPS, Experiment
from .runner import run

__all__ = ["EXPERIMENTS", "GROUPS", "Experiment", "Split", "run"]
