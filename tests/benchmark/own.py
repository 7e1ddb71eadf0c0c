"""Methods, metrics and models of a user's own, as a plan names them: `own.py:Name`."""

import os
import time

import timm
import torch

from xattr.trace import Preprocessing


class Own:
    """Brightness, with a factor."""

    def __init__(self, forward_func, factor=1.0):
        self.factor = factor

    def attribute(self, inputs, target=None, power=1):
        return self.factor * inputs.sum(1, keepdim=True) ** power


class Noise(Own):
    """Draws from every global generator that there is."""

    def attribute(self, inputs, target=None):
        return torch.rand(len(inputs), 1, 6, 6)


class Raises(Own):
    """On images whose first digit scene is bright; the others are explained."""

    def attribute(self, inputs, target=None):
        if bool((inputs.sum((1, 2, 3)) > LIMIT).any()):
            raise RuntimeError("too bright\nto see")
        return inputs


LIMIT = 100.0


class Shape(Own):
    def attribute(self, inputs, target=None):
        return inputs[:, 0, 0]


class Broken(Own):
    def attribute(self, inputs, target=None):
        return inputs.clone().index_fill(0, torch.tensor([0]), float("nan"))


class Hangs(Own):
    def attribute(self, inputs, target=None):
        try:
            time.sleep(60)
        except Exception:  # the time limit is none
            return inputs


class NeverReturns(Own):
    """Where a signal is not heard: in a call that does not come back to Python."""

    def attribute(self, inputs, target=None):
        import signal

        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        time.sleep(600)


class Dies(Own):
    def attribute(self, inputs, target=None):
        os._exit(1)


class DiesOnce(Own):
    def attribute(self, inputs, target=None):
        flag = os.environ["XATTR_TEST_FLAG"]
        if not os.path.exists(flag):
            open(flag, "w").close()
            os._exit(1)
        return inputs


class Hooks(Own):
    """Leaves the model another one when it fails."""

    def __init__(self, forward_func):
        self.model = forward_func

    def attribute(self, inputs, target=None):
        self.model.register_forward_hook(lambda module, args, output: output * 0)
        raise RuntimeError("left its hook behind")


def mean_value(maps, masks, scale=1.0):
    """Mean of the map inside the mask."""
    return scale * (maps * masks).sum((1, 2, 3)) / masks.sum((1, 2, 3))


mean_value.higher_is_better = True


def bad_metric(maps):
    return maps.sum()


def half_metric(maps, target):
    if len(maps) > 1 or int(target[0]) == 2:
        raise ValueError("not this one")
    return maps.sum((1, 2, 3))


def build():
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=24,
        patch_size=4,
        in_chans=1,
        num_classes=10,
        embed_dim=24,
        depth=2,
        num_heads=2,
    )
    return model, Preprocessing(lambda image: torch.zeros(1, 24, 24), (0.0,), (1.0,), (24, 24))


class Keywords(Own):
    """The class comes by keyword."""

    def attribute(self, inputs, **keywords):
        return inputs * keywords["target"].view(-1, 1, 1, 1)


class NoTarget(Own):
    def attribute(self, inputs, wanted=None):
        return inputs


def in_place(maps, inputs, masks, target):
    """Spoils all that it is given."""
    value = maps.sum((1, 2, 3))
    maps.zero_(), inputs.zero_(), masks.zero_(), target.zero_()
    return value


def infinite(maps):
    return maps.flatten(1).sum(1).index_fill(0, torch.tensor([0]), float("inf"))
