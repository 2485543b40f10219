"""NumPy's keys, read into what they select: a box that integers and slices cut out, and arrays.

Apart from boolean arrays, only shapes matter here, so that what a key selects is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from pullback.core.avals import Aval
from pullback.core.dtypes import int64
from pullback.core.errors import DTypeError, IndexOutOfRange, ShapeError
from pullback.ir.array import Array
from pullback.ir.convert import as_array, from_numpy, to_numpy
from pullback.ops.families import broadcast_shapes
from pullback.ops.index_plans import as_indices, scatter_plan
from pullback.ops.parts import astype

__all__ = ["BadIndex", "Box", "IndexMismatch", "Selection", "selection"]

Shape = tuple[int, ...]


class BadIndex(DTypeError, IndexError):
    """An index of a kind that can't be one, such as a float."""


class IndexMismatch(ShapeError, IndexError):
    """Index arrays that do not broadcast together."""


class Box(NamedTuple):
    """The part of an array that integers and slices select."""

    starts: Shape
    shape: Shape
    steps: Shape
    whole: bool  # whether it is everything, in order


class Selection(NamedTuple):
    """What a key selects: a box, and where the key has arrays, what these pick from it.

    The box is seen with the axes that are picked from first, then the rest; so are the values that
    are written. An order of axes is None where nothing has to move.
    """

    box: Box
    shape: Shape  # of the result
    inner: Shape = ()  # of the box without the axes of integers; a mask's axes joined into one
    order: Shape | None = None  # axes of `inner`: those that are picked from, then the rest
    aligned: tuple[Shape, ...] = ()  # the shapes that the index arrays are seen with
    spread: Shape | None = None  # what the first one is broadcast to, where a 0-d boolean is larger
    middle: Shape = ()  # the shape of the result without new axes
    gathered: Shape | None = None  # from (picked, rest) to the order of the result
    scattered: Shape | None = None  # and back
    sizes: Shape = ()  # of the axes that are picked from


_kept: dict[tuple, Selection] = {}
MAX_KEPT = 4096  # selections; before another one all are forgotten
_PLAIN = {int, type(None)}
_ARRAYS = (Array, np.ndarray, scatter_plan)
bounds = attrgetter("start", "stop", "step")


def selection(name: str, av: Aval, key: Any) -> tuple[Selection, Sequence[Any]]:
    """What `key` selects from an array, and the key's index arrays."""
    items = list(key) if type(key) is tuple else [key]
    parts: list[Any] = [av]
    indices: list[Any] = []
    for k, item in enumerate(items):
        kind = type(item)
        if kind is list or kind is tuple or kind is np.ndarray:
            items[k] = item = _array(name, av, item)
        if kind is int or item is None or item is Ellipsis:
            parts.append(item)
        elif kind is slice and _PLAIN.issuperset(map(type, bounds(item))):
            parts += ("slice", *bounds(item))
        elif isinstance(item, Array) and item._aval.dtype.is_integer:
            parts.append(item._aval)
            indices.append(item)
        elif isinstance(item, scatter_plan):
            parts += ("plan", item.size, item.indices._aval)
            indices.append(item.indices)
        else:
            return Reader(name, av, items).read()
    plain = tuple(parts)
    found = _kept.get(plain)
    if found is None:
        found, _ = Reader(name, av, items).read()
        if len(_kept) >= MAX_KEPT:
            _kept.clear()
        _kept[plain] = found
    return found, indices


def _array(name: str, av: Aval, item: Any) -> Any:
    """An array of the key; an empty list selects nothing."""
    array = as_array(item, name, dev=av.device)
    return (
        array if array._aval.size or not isinstance(item, (list, tuple)) else astype(array, int64)
    )


class Reader:
    """Reads a key from left to right; `axis` is the next axis of the array."""

    def __init__(self, name: str, av: Aval, items: Sequence[Any]):
        self.name, self.av = name, av
        self.items = [self._item(i) for i in items]
        self.axis = 0
        self.box: list[tuple[int, int, int]] = []  # start, size, step for each axis
        self.inner: list[int] = []
        self.from_axes: list[int] = []  # of inner, that are picked from
        self.rest: list[int] = []
        self.result: list[int] = []  # sizes of the rest and of new axes
        self.indices: list[Any] = []
        self.bools: list[int] = []  # lengths that 0-d booleans stand for: 0 or 1
        # where arrays stand side by side: how many axes of the result, and of the rest, come before
        self.runs: list[tuple[int, int]] = []

    def read(self) -> tuple[Selection, list[Any]]:
        self._expand()
        advanced = any(isinstance(i, (*_ARRAYS, bool)) for i in self.items)
        in_run = False
        for item in self.items:
            is_advanced = advanced and isinstance(item, (int, *_ARRAYS))
            if is_advanced and not in_run:
                self.runs.append((len(self.result), len(self.rest)))
            in_run = is_advanced
            self._take(item)
        return self._finished(), self.indices

    def _item(self, item: Any) -> Any:
        """An item of the key, with arrays as NumPy masks, booleans or integer arrays."""
        if item is None or item is Ellipsis or isinstance(item, (int, slice, scatter_plan)):
            return item
        if isinstance(item, np.generic):
            item = item.item() if item.dtype.kind in "iub" else item
            if isinstance(item, int):
                return item
        if isinstance(item, (Array, np.ndarray, list, tuple)):
            array = _array(self.name, self.av, item)
            kind = array._aval.dtype.kind
            if kind == "b":
                mask = self._host(array)
                return mask if mask.ndim else bool(mask)
            if kind in "iu":
                return array
            what = f"an array of dtype {array._aval.dtype.name}"
        else:
            what = repr(item)
        raise BadIndex(
            f"{self.name}: an index must be an integer, a slice, `...`, None,"
            f" or an array of integers or booleans, got {what}."
        )

    def _host(self, mask: Any) -> np.ndarray:
        if mask._aval.is_symbolic:
            raise DTypeError(
                f"{self.name}: a traced mask has no values yet, and the shape of the result depends"
                " on them. Use where, or write a value that does not vary with the mask."
            )
        return to_numpy(mask)

    def _expand(self) -> None:
        """Replace the Ellipsis, or the end of the key, by full slices."""
        used = sum(_consumed(i) for i in self.items)
        if used > self.av.ndim:
            raise IndexOutOfRange(
                f"{self.name}: too many indices, got {used} for an array with"
                f" {self.av.ndim} dimensions."
            )
        at = [k for k, i in enumerate(self.items) if i is Ellipsis]
        if len(at) > 1:
            raise IndexOutOfRange(f"{self.name}: an index can only have a single ellipsis, `...`.")
        missing = [slice(None)] * (self.av.ndim - used)
        where_to = at[0] if at else len(self.items)
        # a marker stays in place of `...`: even when it stands for no axis it separates
        self.items[where_to : where_to + len(at)] = [Ellipsis, *missing]

    def _take(self, item: Any) -> None:
        if item is None:
            self.result.append(1)
        elif item is Ellipsis:
            pass
        elif isinstance(item, bool):
            self.bools.append(int(item))
        elif isinstance(item, int):
            self._integer(item)
        elif isinstance(item, slice):
            self._slice(item)
        elif isinstance(item, np.ndarray) and item.dtype == bool:
            self._mask(item)
        else:
            self._array(item)

    def _integer(self, i: int) -> None:
        n = self.av.shape[self.axis]
        if not -n <= i < n:
            raise IndexOutOfRange(
                f"{self.name}: index {i} is out of range for axis {self.axis} of size {n}."
            )
        self.box.append((i % n, 1, 1))
        self.axis += 1

    def _slice(self, item: slice) -> None:
        n = self.av.shape[self.axis]
        try:
            start, stop, step = item.indices(n)
        except (TypeError, ValueError) as error:
            raise BadIndex(f"{self.name}: {error}, got {item}.") from None
        size = len(range(start, stop, step))
        self.box.append((start if size else 0, size, step if size > 1 else 1))
        self.rest.append(len(self.inner))
        self.inner.append(size)
        self.result.append(size)
        self.axis += 1

    def _array(self, item: Any) -> None:
        n = self.av.shape[self.axis]
        self.box.append((0, n, 1))
        self.from_axes.append(len(self.inner))
        self.inner.append(n)
        self.indices.append(as_indices(self.name, item, self.av.device, n))
        self.axis += 1

    def _mask(self, mask: np.ndarray) -> None:
        axes = range(self.axis, self.axis + mask.ndim)
        own = tuple(self.av.shape[a] for a in axes)
        # The standard lets a mask of no elements stand for one that is false everywhere.
        if not all(n in (0, m) for n, m in zip(mask.shape, own, strict=True)):
            raise IndexOutOfRange(
                f"{self.name}: a boolean index must have the shape of the axes it selects from,"
                f" {own}, got {mask.shape}."
            )
        self.box += [(0, n, 1) for n in own]
        self.from_axes.append(len(self.inner))
        self.inner.append(prod(own))
        self.indices.append(from_numpy(np.flatnonzero(mask), self.av.device, copy=False))
        self.axis += mask.ndim

    def _finished(self) -> Selection:
        columns = zip(*self.box, strict=True) if self.box else ((), (), ())
        starts, shape, steps = map(tuple, columns)
        box = Box(starts, shape, steps, shape == self.av.shape and all(s == 1 for s in steps))
        if self.bools and not self.indices:  # an axis of size 1 to pick from
            self.from_axes.append(len(self.inner))
            self.inner.append(1)
            self.indices.append(from_numpy(np.zeros(min(self.bools), np.int64), self.av.device))
        if not self.indices:
            return Selection(box, tuple(self.result))
        shapes = [i._aval.shape for i in self.indices]
        try:
            picked = broadcast_shapes(self.name, *shapes, *[(b,) for b in self.bools])
        except ShapeError as error:
            raise IndexMismatch(str(error)) from None
        before, place = self.runs[0] if len(self.runs) == 1 else (0, 0)
        result = (*self.result[:before], *picked, *self.result[before:])
        return self._picking(box, result, picked, place)

    def _picking(self, box: Box, result: Shape, picked: Shape, place: int) -> Selection:
        """The selection by arrays; `place` axes of the rest come before `picked` in the result."""
        shapes = [i._aval.shape for i in self.indices]
        count, rest = len(picked), len(self.rest)
        sizes = [self.inner[a] for a in self.rest]
        ones = (1,) * rest
        gathered = (
            *range(count, count + place),
            *range(count),
            *range(count + place, count + rest),
        )
        own = broadcast_shapes(self.name, *shapes)
        return Selection(
            box=box,
            shape=result,
            inner=tuple(self.inner),
            order=_moved((*self.from_axes, *self.rest)),
            aligned=tuple((1,) * (count - len(s)) + s + ones for s in shapes),
            spread=None if (1,) * (count - len(own)) + own == picked else picked + ones,
            middle=(*sizes[:place], *picked, *sizes[place:]),
            gathered=_moved(gathered),
            scattered=_moved(inverse(gathered)),
            sizes=tuple(self.inner[a] for a in self.from_axes),
        )


def _moved(order: Shape) -> Shape | None:
    return None if order == tuple(range(len(order))) else order


def inverse(order: Shape) -> Shape:
    """The order of axes that undoes another."""
    result = [0] * len(order)
    for position, axis in enumerate(order):
        result[axis] = position
    return tuple(result)


def _consumed(item: Any) -> int:
    """How many axes an item of a key uses up."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.ndim if isinstance(item, np.ndarray) and item.dtype == bool else 1
