"""Masks for the launches of one stream, through ``libsmctrl.so``."""

import ctypes
import threading
from typing import Any, Dict, Iterable, List, Optional, SupportsIndex, Tuple, Union

from ._error import Error
from ._install import library
from ._tenant import TPCS_MAX, numbers, tpc

_Words = ctypes.c_uint64 * (TPCS_MAX // 64)
_lock = threading.Lock()
_loaded: Dict[str, ctypes.CDLL] = {}
# The masks of each stream, innermost last.
_stacks: Dict[Optional[int], List["mask"]] = {}


def _smctrl() -> ctypes.CDLL:
    path = library("libsmctrl.so")
    if path not in _loaded:
        loaded = ctypes.CDLL(path)
        stream, mask_words = ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)
        loaded.libsmctrl_set_stream_mask_wide.argtypes = [stream, mask_words]
        loaded.libsmctrl_clear_stream_mask.argtypes = [stream]
        loaded.libsmctrl_set_global_mask_wide.argtypes = [mask_words]
        loaded.libsmctrl_error_string.restype = ctypes.c_char_p
        _loaded[path] = loaded
    return _loaded[path]


def _handle(stream: Any) -> Optional[int]:
    """The ``CUstream`` of a stream of some library; None for all streams."""
    if stream is None:
        return None
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    if isinstance(stream, int):
        return stream
    raise TypeError(
        f"{type(stream).__name__} is no stream: give a torch.cuda.Stream, a cupy.cuda.Stream, an object "
        "with __cuda_stream__, the CUstream as an int, or None for all launches of this process"
    )


def _tpcs(tpcs: Union[str, Iterable[int]]) -> Tuple[int, ...]:
    given: Any = tpcs
    if isinstance(tpcs, str):
        given = numbers(tpcs) if tpcs else ()
    if not isinstance(given, Iterable):
        raise TypeError(f"tpcs is {given!r}; give numbers, as [0, 1], or a text, as '0-9,12'")
    found = set()
    for number in given:
        if not isinstance(number, SupportsIndex):
            raise TypeError(f"tpcs has {number!r}, which is no number; write [0, 1] or '0-9,12'")
        found.add(tpc(number.__index__()))
    if not found:
        raise ValueError("tpcs is empty: a launch without a TPC would never end; name at least one")
    return tuple(sorted(found))


class mask:
    """Keeps the launches of a stream on some TPCs, within a ``with`` block.

    `stream` is a ``torch.cuda.Stream``, a ``cupy.cuda.Stream``, an object with ``__cuda_stream__``, a
    ``CUstream`` as an int, or None for all launches of this process. `tpcs` are numbers or a text as
    ``0-9,12``, in the numbering of :attr:`partita.Tenant.tpcs`::

        stream = torch.cuda.Stream()
        with partita.mask(stream, tpcs="0-9"), torch.cuda.stream(stream):
            model(batch)

    Work that was launched in the block keeps its mask after it. Blocks for one stream may nest; the
    innermost counts. In a tenant a mask can narrow the tenant's partition, but not leave it; if the
    two have no TPC in common, the tenant's partition counts alone.

    A default stream has no mask of its own. JAX does not show its streams: use None there.

    :raises Error: at the begin of the block, if this GPU, driver or stream cannot be masked.
    :raises ValueError: if `tpcs` names no TPC.
    """

    def __init__(self, stream: Any, *, tpcs: Union[str, Iterable[int]]) -> None:
        self._stream = stream
        self._handle = _handle(stream)
        self.tpcs = _tpcs(tpcs)

    def __enter__(self) -> "mask":
        with _lock:
            stack = _stacks.setdefault(self._handle, [])
            if self in stack:
                raise RuntimeError("this mask is in use; make another one with partita.mask(...)")
            self._apply()
            stack.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            stack = _stacks[self._handle]
            is_innermost = stack[-1] is self
            stack.remove(self)
            if is_innermost and stack:
                stack[-1]._apply()
            elif is_innermost:
                del _stacks[self._handle]
                self._clear()

    def _apply(self) -> None:
        words = _Words(*[2**64 - 1] * len(_Words()))
        for tpc in self.tpcs:
            words[tpc // 64] &= ~(1 << tpc % 64)
        smctrl = _smctrl()
        if self._handle is None:
            self._check(smctrl.libsmctrl_set_global_mask_wide(words))
        else:
            self._check(smctrl.libsmctrl_set_stream_mask_wide(self._handle, words))

    def _clear(self) -> None:
        smctrl = _smctrl()
        if self._handle is None:
            self._check(smctrl.libsmctrl_clear_global_mask())
        else:
            self._check(smctrl.libsmctrl_clear_stream_mask(self._handle))

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise Error(_smctrl().libsmctrl_error_string().decode(errors="replace"))
