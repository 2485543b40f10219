"""What a function captured: its contents, and what the user calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from pullback.core import pytrees
from pullback.core.avals import Aval
from pullback.ir.array import Array

__all__ = ["WeightNames", "memory_of"]

MOST_VISITED = 2000  # objects: what is further away is not looked at
MOST_DEPTH = 6  # of functions and attributes: names are for readers


class WeightNames:
    """Names and shapes of the arrays that a function can reach, by their buffer."""

    def __init__(self, function: Callable[..., Any]):
        self._known: dict[int, tuple[str, Aval]] = {}
        self._seen: dict[int, Any] = {}
        self._taken: set[str] = set()
        for name, value in _parts(function):
            self._visit(name, value, 0)

    def has(self, buffer: Any) -> bool:
        """Whether the user has a name for an array."""
        return id(buffer) in self._known

    def of(self, buffer: Any, shape: tuple[int, ...], default: str) -> tuple[str, tuple[int, ...]]:
        """A name that no other array has had, and the shape in which the user knows an array
        that was captured in this one, perhaps as a view.
        """
        base, known = self._known.get(id(buffer), (default, None))
        name, again = base, 1
        while name in self._taken:
            again += 1
            name = f"{base}_{again}"
        self._taken.add(name)
        if known is not None and known.dense and known.size == prod(shape):
            shape = known.shape
        return name, shape

    def _visit(self, path: str, x: Any, depth: int) -> None:
        if isinstance(x, Array):
            self._known.setdefault(id(x._buf), (path or "value", x._aval))
            return
        if id(x) in self._seen or len(self._seen) >= MOST_VISITED or depth > MOST_DEPTH:
            return
        self._seen[id(x)] = x
        start = "" if _is_code(x) else path
        for name, value in _parts(x):
            self._visit(f"{start}.{name}" if start and name else start or name, value, depth + 1)


def _is_code(x: Any) -> bool:
    """Whether what an object holds has names of its own."""
    return isinstance(x, (FunctionType, MethodType, partial)) or hasattr(type(x), "wraps_function")


def _is_foreign(module: str | None) -> bool:
    """Whether a module holds no state of the user's."""
    return (module or "").partition(".")[0] in ("pullback", "numpy", "builtins")


def _parts(x: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, by name; what a function reaches has the name that it uses."""
    if isinstance(x, FunctionType):
        if _is_foreign(x.__module__):
            return
        for name, cell in zip(x.__code__.co_freevars, x.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        for name in _names(x.__code__):
            if name in x.__globals__:
                yield name, x.__globals__[name]
        for default in (*(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()):
            yield "", default
    elif isinstance(x, MethodType):
        yield "", x.__self__
        yield "", x.__func__
    elif isinstance(x, partial):
        yield from (("", part) for part in (x.func, *x.args, *x.keywords.values()))
    elif hasattr(type(x), "wraps_function"):
        yield "", getattr(x, type(x).wraps_function)
    elif pytrees.children(x) is not None:
        leaves, structure = pytrees.flatten(x)
        yield from zip(pytrees.leaf_names(structure), leaves, strict=True)
    elif not isinstance(x, type) and not _is_foreign(type(x).__module__):
        yield from getattr(x, "__dict__", {}).items()


def _names(code: CodeType) -> Iterator[str]:
    """The names that a code object, or one inside of it, looks up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def memory_of(buf: Any, av: Aval) -> tuple[np.ndarray, int]:
    """The elements of a buffer that an array has, as they lie in memory, and the number of the
    first one of the array: a dense array as it is, another one without its shape.
    """
    array: np.ndarray = av.device.runtime.to_numpy(buf, av)  # type: ignore[attr-defined]
    if array.flags.c_contiguous:
        return array, 0
    size, first = array.itemsize, 0
    for d, (n, step) in enumerate(zip(array.shape, array.strides, strict=True)):
        if step < 0:
            array = np.flip(array, d)
            first -= (n - 1) * step
    span = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True))
    flat = np.lib.stride_tricks.as_strided(array, (1 + span // size,), (size,))
    return np.array(flat), first // size
