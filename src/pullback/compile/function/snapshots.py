"""Memory that a traced function read and that others may write to, as it was then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np

from pullback.ir.array import Array
from pullback.ir.convert import to_numpy

__all__ = ["Snapshot", "is_shared"]


def is_shared(buf: Any, av: Any) -> bool:
    """Whether the memory of a buffer belongs to somebody who may write to it."""
    return not av.is_symbolic and av.device.runtime.shares(buf)


class Snapshot:
    """The contents of a NumPy array, of what NumPy reads as one, or of a tensor in shared memory.

    What nobody else has cannot change. A view may look at memory that somebody else has, so it is
    kept; other arrays are not kept alive.
    """

    def __init__(self, source: Any):
        self._source = _reference(source)
        self._then = _contents(source)

    @staticmethod
    def of(source: Any) -> Snapshot | None:
        """The snapshot of an object; None if its contents are no numbers."""
        return None if np.asarray(_array(source)).dtype.hasobject else Snapshot(source)

    def changed(self) -> bool:
        """Whether other numbers are there now."""
        source = self._source()
        if source is None:
            return False
        shape, dtype, data = self._then
        now = _array(source)
        if now.shape != shape or now.dtype != dtype:
            return True
        return not np.array_equal(_bytes(now), data)


def _reference(source: Any) -> Callable[[], Any]:
    if isinstance(source, np.ndarray) and source.base is not None:
        return lambda: source
    try:
        return ref(source)
    except TypeError:  # its type has no weak references
        return lambda: source


def _array(source: Any) -> np.ndarray:
    return to_numpy(source) if isinstance(source, Array) else np.asarray(source)


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _contents(source: Any) -> tuple[tuple[int, ...], np.dtype, np.ndarray]:
    array = _array(source)
    return array.shape, array.dtype, np.array(_bytes(array))
