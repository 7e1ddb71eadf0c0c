"""Training a head, or a whole model, with early stopping; it can be killed and goes on where it was."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset
from tqdm import tqdm

from .._nested import replace_tensors
from ..trace import InputError
from ..trace.modules import in_evaluation_mode
from .cache import Data, batches, cached_features, content, examples
from .model import LayaModel, fingerprint


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
        >>> x[1][:, 0] += 9 * y
        >>> fit(LayaHead([4, 4], 2, width=8), (x, y), (x, y), epochs=40, batch_size=16, lr=0.03).accuracy > 0.8
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
    if not examples(validation):
        raise InputError("the validation data hold no example; without them no epoch is the best.")
    path = None if checkpoint is None else Path(checkpoint)
    key = "" if path is None else _key(trained, made, train, validation, [batch_size, patience, seed])
    run = _Run(trained, made, path, key)
    with tqdm(total=epochs, initial=run.epoch, disable=not show_progress, leave=False) as bar:
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
    with torch.no_grad(), in_evaluation_mode(module):
        for inputs, labels in batches(data, batch_size):
            right += int((_logits(module, _to(inputs, like)).argmax(1) == labels.to(like.device)).sum())
    return right / examples(data)


def _logits(module: nn.Module, inputs: Any) -> Tensor:
    """A head takes a list of features; any other module what is in a list by position, or in a mapping by name."""
    if isinstance(inputs, dict):
        logits: Tensor = module(**inputs)
    elif isinstance(inputs, (list, tuple)) and not hasattr(module, "widths"):
        logits = module(*inputs)
    else:
        logits = module(inputs)
    return logits


def _epoch(module: nn.Module, made: Optimizer, data: Data, batch_size: int, seed: int, epoch: int) -> float:
    like = next(module.parameters())
    modes = {part: part.training for part in module.modules()}
    module.train()
    total = torch.zeros((), device=like.device)
    order = torch.randperm(examples(data), generator=torch.Generator().manual_seed(1_000_003 * seed + epoch))
    devices = [like.device] if like.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices), torch.inference_mode(False), torch.enable_grad():
            torch.manual_seed(1_000_003 * seed + epoch)
            for inputs, labels in batches(data, batch_size, order):
                if len(labels) == 1 and len(order) > 1:
                    continue  # batch norm cannot take one example; the order is another in the next epoch
                loss = F.cross_entropy(_logits(module, _to(inputs, like)), labels.to(like.device).long())
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


def _key(module: nn.Module, made: Optimizer, train: Data, validation: Data, settings: list[Any]) -> str:
    """What makes a training what it is: module and weights at its start, optimiser, data, settings.

    Of a data set that is no pair of tensors a few examples stand for all.
    """
    groups = [{k: v for k, v in group.items() if k != "params"} for group in made.param_groups]
    digest = hashlib.sha256(f"{fingerprint(module)} {type(made).__name__} {groups} {settings}".encode())
    for data in (train, validation):
        count = examples(data)
        some = torch.linspace(0, count - 1, min(count, 64)).long()
        parts = batches(data, 64, some) if isinstance(data, Dataset) else [data]
        digest.update(f"{count}".encode())
        for part in parts:
            digest.update(content(part))
    return digest.hexdigest()


class _Run:
    """The state of a training, in a file behind each epoch."""

    def __init__(self, module: nn.Module, made: Optimizer, path: Path | None, key: str) -> None:
        self._module, self._made, self._path, self._key = module, made, path, key
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.best: dict[str, Any] = copy.deepcopy(module.state_dict())
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
        partial = self._path.with_name(f"{self._path.name}.partial")
        torch.save(state, partial)
        partial.replace(self._path)
