"""Training a head, or a whole model, with early stopping; it can be killed and goes on where it was."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm import tqdm

from .._nested import replace_tensors
from ..trace import InputError
from .cache import Data, batches, cached_features, examples
from .collect import evaluated
from .model import LayaModel


@dataclass(frozen=True)
class Fitted:
    """What a training did. The module holds the weights of the best epoch.

    Attributes:
        accuracy: validation accuracy of the best epoch.
        best_epoch: its number, counted from 0.
        losses: mean training loss of each epoch.
        accuracies: validation accuracy behind each epoch.
    """

    accuracy: float
    best_epoch: int
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]


def fit(
    module: nn.Module,
    train: Data,
    validation: Data,
    *,
    epochs: int = 50,
    batch_size: int = 128,
    lr: float = 1e-3,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
    patience: int = 5,
    seed: int = 0,
    device: str | torch.device | None = None,
    checkpoint: str | Path | None = None,
    cache: str | Path | None = None,
    show_progress: bool = False,
) -> Fitted:
    """Train with cross-entropy until the validation accuracy has not risen for some epochs; keep the best weights.

    Of a `LayaModel` with a frozen backbone the features are computed once, and the head alone is trained on them. Any
    other module is trained as a whole; a head takes a list of features as inputs. The same seed gives the same weights,
    also if the training was killed and started again with the same checkpoint.

    Args:
        module: a `LayaModel`, a head, or any module that returns logits `[B, C]`.
        train: inputs and labels, or a data set of pairs.
        validation: likewise.
        epochs: how many at most.
        batch_size: examples in a step.
        lr: learning rate of Adam.
        optimizer: makes another optimiser of the parameters.
        patience: epochs without a rise before it stops.
        seed: of the order of the examples and of dropout; torch's global generator is left as it was.
        device: where to train; `None` for where the module is. The module stays there.
        checkpoint: a file that holds the state behind each epoch.
        cache: a folder for the features of a frozen backbone; `None` for in memory.
        show_progress: whether to draw a progress bar.

    Raises:
        InputError: data of unequal length, or a checkpoint of another training.
        ValueError: a size is no positive number.

    Example:
        >>> import torch
        >>> from xattr.heads import LayaHead, fit
        >>> x, y = [torch.randn(64, 4), torch.randn(64, 4)], torch.arange(64) % 2
        >>> x[1][:, 0] += 4 * y
        >>> fit(LayaHead([4, 4], 2, width=8), (x, y), (x, y), epochs=20, lr=0.03).accuracy > 0.9
        True
    """
    for name, value in (("epochs", epochs), ("batch_size", batch_size), ("patience", patience)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r}; expected a positive whole number.")
    if device is not None:
        module.to(device)
    trained: Any = module
    if isinstance(module, LayaModel) and module.freeze:
        train, validation = (
            cached_features(module, data, cache, show_progress=show_progress) for data in (train, validation)
        )
        trained = module.head
    parameters = [p for p in trained.parameters() if p.requires_grad]
    made = torch.optim.Adam(parameters, lr=lr) if optimizer is None else optimizer(parameters)
    settings = [examples(train), examples(validation), batch_size, lr, patience, seed, type(trained).__name__]
    run = _Run(trained, made, None if checkpoint is None else Path(checkpoint), settings)
    with tqdm(total=epochs, initial=run.epoch, disable=None if show_progress else True, leave=False) as bar:
        while run.epoch < epochs and run.epoch - run.best_epoch <= patience:
            loss = _epoch(trained, made, train, batch_size, seed, run.epoch)
            run.step(loss, accuracy(trained, validation, batch_size))
            bar.update()
            bar.set_postfix(accuracy=f"{run.accuracies[-1]:.3f}")
    trained.load_state_dict(run.best)
    best = run.best_epoch
    return Fitted(run.accuracies[best], best, tuple(run.losses), tuple(run.accuracies))


def accuracy(module: nn.Module, data: Data, batch_size: int = 256) -> float:
    """Share of examples whose highest logit is their label."""
    right = 0
    like = next(module.parameters())
    with torch.inference_mode(), evaluated(module):
        for inputs, labels in batches(data, batch_size):
            right += int((module(_to(inputs, like)).argmax(1) == labels.to(like.device)).sum())
    return right / examples(data)


def _epoch(module: nn.Module, made: Optimizer, data: Data, batch_size: int, seed: int, epoch: int) -> float:
    like = next(module.parameters())
    modes = {part: part.training for part in module.modules()}
    module.train()
    total = torch.zeros((), device=like.device)
    order = torch.randperm(examples(data), generator=torch.Generator().manual_seed(1_000_003 * seed + epoch))
    devices = [like.device] if like.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(1_000_003 * seed + epoch)
            for inputs, labels in batches(data, batch_size, order):
                loss = F.cross_entropy(module(_to(inputs, like)), labels.to(like.device))
                made.zero_grad()
                loss.backward()
                made.step()
                total += loss.detach() * len(labels)
    finally:
        for part, mode in modes.items():
            part.training = mode
    return float(total) / examples(data)


def _to(inputs: Any, like: Tensor) -> Any:
    return replace_tensors(inputs, lambda t: t.to(like.device, like.dtype if t.is_floating_point() else t.dtype))


class _Run:
    """The state of a training, in a file behind each epoch."""

    def __init__(self, module: nn.Module, made: Optimizer, path: Path | None, settings: list[Any]) -> None:
        self._module, self._made, self._path = module, made, path
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.best: dict[str, Any] = copy.deepcopy(module.state_dict())
        # A training begins somewhere: another start is another training.
        begun = [float(p.detach().double().sum()) for p in module.parameters()]
        self._key = hashlib.sha256(json.dumps([settings, begun]).encode()).hexdigest()
        if path is not None and path.is_file():
            state = torch.load(path, weights_only=True)
            if state["key"] != self._key:
                raise InputError(
                    f"{str(path)!r} is the checkpoint of another training; name another file, or delete it."
                )
            module.load_state_dict(state["module"])
            made.load_state_dict(state["optimizer"])
            self.losses, self.accuracies, self.best = state["losses"], state["accuracies"], state["best"]

    @property
    def epoch(self) -> int:
        return len(self.accuracies)

    @property
    def best_epoch(self) -> int:
        return max(range(self.epoch), key=lambda i: (self.accuracies[i], -i)) if self.epoch else 0

    def step(self, loss: float, found: float) -> None:
        self.losses.append(loss)
        self.accuracies.append(found)
        if self.best_epoch == self.epoch - 1:
            self.best = copy.deepcopy(self._module.state_dict())
        if self._path is None:
            return
        state = {
            "key": self._key,
            "module": self._module.state_dict(),
            "optimizer": self._made.state_dict(),
            "losses": self.losses,
            "accuracies": self.accuracies,
            "best": self.best,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self._path)
