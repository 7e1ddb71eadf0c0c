"""The errors that a user meets; each message says what was found, what was expected and what to do."""


class XattrError(Exception):
    """Base of every error that this package raises on purpose."""


class InputError(XattrError, ValueError):
    """The images handed over cannot be explained (empty, not finite, not floating point, ...)."""


class TargetError(XattrError, ValueError, AssertionError):
    """The target names no output of the model.

    It is an `AssertionError` too, because that is what Captum raises in its place.
    """


class OutputError(XattrError, TypeError):
    """The model's output is not a tensor of scores and does not hold one under a known name."""


class UnseenError(XattrError, RuntimeError):
    """A part of the forward pass ran where it could not be observed, so its explanation would be wrong."""


class UnsupportedModelError(XattrError, ValueError):
    """The method has no meaning on this model (no attention, windows, ...)."""


class PreprocessingError(XattrError, ValueError):
    """The model, or what was handed over in its place, does not say how it wants its images."""


class LoadError(XattrError, ValueError):
    """A model cannot be had: no such name, no weights, or a missing package."""


class MethodError(XattrError, ValueError):
    """There is no method of that name, or none of those asked for could explain the model."""


class PlanError(XattrError, ValueError):
    """A plan for a benchmark names something that does not exist, or settings that do not fit."""


class RunError(XattrError, OSError):
    """A benchmark could not write or read its results."""
