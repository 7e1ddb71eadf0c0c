"""Whether a server answers, so that a machine without network hears so in seconds and not after a row of retries."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from .trace.errors import LoadError

T = TypeVar("T")
_PATIENCE = 4.0


def reachable(url: str) -> bool:
    """Whether a server answers at all, whatever it answers; proxies of the environment are used."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_PATIENCE).close()
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        # Python without certificates of its own: the client that downloads brings them.
        return isinstance(error.reason, ssl.SSLError)
    except (OSError, ValueError):
        return False
    return True


def cached_or_downloaded(load: Callable[[bool], T], source: str, name: str) -> T:
    """Loads from a folder or the cache of the Hugging Face hub, else from the hub if it answers.

    The hub's own client asks a server first, five times for each file, even for what is in the cache.

    Args:
        load: called with whether it must do without network (`local_files_only`).
        source: the folder, or the name on the hub.
        name: what errors call it.

    Raises:
        LoadError: neither in the cache nor downloadable, or not what was expected.
    """
    try:
        try:
            return load(True)
        except OSError:
            if Path(source).is_dir():
                raise
        require(hub(), name)
        return load(False)
    except LoadError:
        raise
    except (OSError, ValueError, ImportError) as error:
        raise LoadError(f"{name} could not be loaded: {one_line(error)}") from error


def require(url: str, name: str) -> None:
    """Raises a `LoadError` that says what to do if the server does not answer."""
    if not reachable(url):
        host = "/".join(url.split("/")[:3])
        raise LoadError(
            f"the weights of {name} are not in the cache and {host} cannot be reached to download them. Load the model "
            f"once with network (the cache can be copied), or hand over a model of your own as FILE.py:factory."
        )


def hub() -> str:
    """Address of the Hugging Face hub, or of the mirror that the environment names."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def one_line(error: BaseException) -> str:
    """Kind and message of an error, without line breaks."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
