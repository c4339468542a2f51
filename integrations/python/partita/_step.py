"""The program's own unit of work."""

import ctypes
from typing import Callable


def _nothing() -> None:
    pass


def _find() -> Callable[[], None]:
    # The library of the tenant is in the process from its start, or never.
    found = getattr(ctypes.PyDLL(None), "partita_step", None)
    if found is None:
        return _nothing
    found.argtypes, found.restype = (), None
    return found


_step = _find()


def step() -> None:
    """Ends a step of this program, and begins the next one: a batch, a request, a frame.

    The time since the call before, of any thread, is counted for the tenant; ``partita ps NAME`` and
    the metrics show it. Outside of tenants, and before the process uses CUDA, nothing happens.
    """
    _step()
