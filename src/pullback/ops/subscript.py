"""`x[key]` and `x[key] = value`, with NumPy's rules, as slices, gathers and scatters.

A key is first read into a `Selection`: the box that its integers and slices cut out, and the index
arrays that pick from the box. Keys without arrays are views; the arrays of a key become one gather.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from pullback.core.avals import Aval
from pullback.core.dtypes import bool_, int64
from pullback.core.errors import DTypeError, IndexOutOfRange, ShapeError
from pullback.ir.array import Array
from pullback.ir.convert import SCALARS, as_array, from_numpy, scalar, to_numpy
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.creation import constant
from pullback.ops.families import broadcast_shapes, composite
from pullback.ops.gather_scatter import gather, scatter_set
from pullback.ops.movement import broadcast_to, embed, permute_dims, reshape, slice
from pullback.ops.parts import astype
from pullback.ops.selection import where

__all__ = ["BadIndex", "getitem", "setitem"]

Shape = tuple[int, ...]


class BadIndex(DTypeError, IndexError):
    """An index of a kind that can't be one, such as a float."""


class Box(NamedTuple):
    """The part of an array that integers and slices select."""

    starts: Shape
    shape: Shape
    steps: Shape
    whole: bool  # whether it is everything, in order


class Selection(NamedTuple):
    """What a key selects: a box, seen with shape `inner`, and from it what `indices` pick."""

    box: Box
    inner: Shape  # of the box without the axes of integers; each mask's axes joined into one
    order: Shape  # axes of `inner`: those that are picked from, then the rest
    indices: tuple[Any, ...]
    picked: Shape  # the shape that the indices broadcast to
    place: int  # how many of the rest come before `picked` in the result
    shape: Shape  # of the result


def _samples(d: Draw) -> list[tuple[np.ndarray, Any]]:
    x = d.real(3, 4, 2)
    return [
        (x, 1),
        (x, np.s_[1:, ::-2, None, ..., -1]),
        (x, np.array([2, 0, 2, -1])),
        (x, (np.s_[:], np.array([[1, 1], [3, 0]]))),
        (x, (np.array([0, 2]), np.s_[:], np.array([[1], [0]]))),
        (x, (np.s_[:], [1, 3, 1], 0)),
        (x, np.s_[..., np.array([True, False])]),
        (d.real(3), np.array([True, False, True])),
        (d.real(), ()),
        (d.real(2), True),
    ]


def _errors(*value: Any) -> Callable[[Draw], list[Bad]]:
    return lambda d: [
        Bad((d.real(3), 3, *value), {}, IndexError, "out of range"),
        Bad((d.real(3), (0, 0), *value), {}, IndexError, "too many"),
        Bad((d.real(3), 0.5, *value), {}, IndexError, "must be an integer"),
        Bad((d.real(3), np.array([0, 3]), *value), {}, IndexError, "out of range"),
        Bad((d.real(3), np.array([True]), *value), {}, IndexError, "shape"),
        Bad((d.real(3, 3), ([0, 1], [0, 1, 2]), *value), {}, IndexError, "broadcast"),
    ]


@composite(
    oracle=lambda x, key: x[key],
    samples=lambda d: [Sample((x, key)) for x, key in _samples(d)],
    errors=_errors(),
    namespace="primitive",
)
def getitem(x: Any, key: Any, /) -> Any:
    """The part of `x` that a key selects, by NumPy's rules.

    >>> pb.primitive.getitem(pb.tensor([5, 6, 7]), [2, 0])
    tensor([7, 5], int64, cpu)
    """
    av = x._aval
    sel = selection("getitem", av, key)
    if not sel.indices:
        box = sel.box
        if sel.shape == box.shape:
            return bind(slice.op, x, starts=box.starts, shape=box.shape, steps=box.steps)
        if not box.whole:
            x = bind(slice.op, x, starts=box.starts, shape=box.shape, steps=box.steps)
        return bind(reshape.op, x, shape=sel.shape)
    source = _front(_boxed(x, sel), sel)
    try:
        return _arranged(bind(gather.op, source, *_aligned(sel)), sel)
    except IndexOutOfRange as error:
        raise IndexOutOfRange(str(error).replace("gather:", "getitem:", 1)) from None


def _setitem_oracle(x: np.ndarray, key: Any, value: Any) -> np.ndarray:
    out = np.array(x)
    out[key] = value
    return out


@composite(
    oracle=_setitem_oracle,
    samples=lambda d: [
        *[Sample((x, key, d.real(*x[key].shape))) for x, key in _samples(d)],
        *[Sample((x, key, d.real())) for x, key in _samples(d)],
    ],
    errors=lambda d: [
        *_errors(0.0)(d),
        Bad((d.real(3), np.s_[1:], d.real(3)), {}, ShapeError, "does not broadcast"),
        Bad((np.ones(3), 0, 1j), {}, DTypeError, "complex"),
    ],
    namespace="primitive",
)
def setitem(x: Any, key: Any, value: Any, /) -> Any:
    """`x` with the selected part replaced by `value`; of several writes to a place the last stays.

    >>> pb.primitive.setitem(pb.tensor([5, 6, 7]), [2, 0], 1)
    tensor([1, 6, 1], int64, cpu)
    """
    av = x._aval
    value = _as_value(av, value)
    mask = _as_mask(key)
    if mask is not None and value._aval.ndim <= av.ndim - mask.ndim:
        return _masked(x, mask, value)
    sel = selection("setitem", av, key)
    value = _spread(value, sel.shape)
    box = sel.box
    if sel.indices:
        inside = _front(_boxed(x, sel), sel)
        updates = _rows(value, sel)
        try:
            inside = bind(scatter_set.op, inside, updates, *_aligned(sel))
        except IndexOutOfRange as error:
            message = str(error).partition(":")[2]
            raise IndexOutOfRange(f"setitem:{message}") from None
        value = bind(permute_dims.op, inside, axes=_inverse(sel.order))
    if value._aval.shape != box.shape:
        value = bind(reshape.op, value, shape=box.shape)
    if box.whole:
        return value
    return bind(embed.op, x, value, shape=av.shape, starts=box.starts, steps=box.steps)


# -- reading a key ---------------------------------------------------------------------------------

_kept: dict[tuple, Selection] = {}  # selections of keys without arrays
MAX_KEPT = 4096
_PLAIN = {int, type(None)}
bounds = attrgetter("start", "stop", "step")


def selection(name: str, av: Aval, key: Any) -> Selection:
    """What `key` selects from an array; remembered where the key holds no arrays."""
    items = key if type(key) is tuple else (key,)
    parts: list[Any] = [av]
    for item in items:
        kind = type(item)
        if kind is int or item is None or item is Ellipsis:
            parts.append(item)
        elif kind is builtins.slice and _PLAIN.issuperset(map(type, bounds(item))):
            parts += ("slice", *bounds(item))
        else:
            return _Reader(name, av, items).read()
    plain = tuple(parts)
    found = _kept.get(plain)
    if found is None:
        found = _Reader(name, av, items).read()
        if len(_kept) >= MAX_KEPT:
            _kept.clear()
        _kept[plain] = found
    return found


class _Reader:
    """Reads a key from left to right; `axis` is the next axis of the array."""

    def __init__(self, name: str, av: Aval, items: tuple):
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
        self.runs: list[
            tuple[int, int]
        ] = []  # where arrays stand side by side: result, rest before

    def read(self) -> Selection:
        self._expand()
        advanced = any(isinstance(i, (Array, np.ndarray, bool)) for i in self.items)
        in_run = False
        for item in self.items:
            is_advanced = advanced and isinstance(item, (int, Array, np.ndarray))
            if is_advanced and not in_run:
                self.runs.append((len(self.result), len(self.rest)))
            in_run = is_advanced
            self._take(item)
        return self._finished()

    def _item(self, item: Any) -> Any:
        """An item of the key as int, slice, None, Ellipsis, bool, NumPy mask or integer array."""
        if item is None or item is Ellipsis or isinstance(item, (int, builtins.slice)):
            return item
        if isinstance(item, np.generic):
            item = item.item() if item.dtype.kind in "iub" else item
            if isinstance(item, int):
                return item
        if isinstance(item, (Array, np.ndarray, list, tuple)):
            array = as_array(item, self.name, dev=self.av.device)
            if isinstance(item, (list, tuple)) and array._aval.size == 0:
                array = astype(array, int64)  # an empty list selects nothing
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
        missing = [builtins.slice(None)] * (self.av.ndim - used)
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
        elif isinstance(item, builtins.slice):
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

    def _slice(self, item: builtins.slice) -> None:
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
        self.indices.append(item)
        self.axis += 1

    def _mask(self, mask: np.ndarray) -> None:
        axes = range(self.axis, self.axis + mask.ndim)
        own = tuple(self.av.shape[a] for a in axes)
        if mask.shape != own:
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
        starts, shape, steps = (
            (tuple(c) for c in zip(*self.box, strict=True)) if self.box else ((),) * 3
        )
        whole = shape == self.av.shape and all(s == 1 for s in steps)
        box = Box(starts, shape, steps, whole)
        if self.bools and not self.indices:  # an axis of size 1 to pick from
            self.from_axes.append(len(self.inner))
            self.inner.append(1)
            self.indices.append(from_numpy(np.zeros(min(self.bools), np.int64), self.av.device))
        picked: Shape = ()
        if self.indices:
            shapes = [i._aval.shape for i in self.indices] + [(b,) for b in self.bools]
            try:
                picked = broadcast_shapes(self.name, *shapes)
            except ShapeError as error:
                raise IndexMismatch(str(error)) from None
        before, place = self.runs[0] if len(self.runs) == 1 else (0, 0)
        result = (*self.result[:before], *picked, *self.result[before:])
        order = (*self.from_axes, *self.rest)
        return Selection(box, tuple(self.inner), order, tuple(self.indices), picked, place, result)


class IndexMismatch(ShapeError, IndexError):
    """Index arrays that do not broadcast together."""


def _consumed(item: Any) -> int:
    """How many axes an item of a key uses up."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.ndim if isinstance(item, np.ndarray) and item.dtype == bool else 1


# -- between an array and the rows that are picked -------------------------------------------------


def _boxed(x: Any, sel: Selection) -> Any:
    """The box, with shape `inner`."""
    if not sel.box.whole:
        x = bind(slice.op, x, starts=sel.box.starts, shape=sel.box.shape, steps=sel.box.steps)
    return x if x._aval.shape == sel.inner else bind(reshape.op, x, shape=sel.inner)


def _front(inside: Any, sel: Selection) -> Any:
    """The axes that are picked from first."""
    if sel.order == tuple(range(len(sel.order))):
        return inside
    return bind(permute_dims.op, inside, axes=sel.order)


def _aligned(sel: Selection) -> list[Any]:
    """The index arrays with one rank, spread over `picked` and followed by axes for the rest."""
    rest = len(sel.inner) - len(sel.indices)
    shape = sel.picked
    aligned = []
    for i in sel.indices:
        own = i._aval.shape
        full = (1,) * (len(shape) - len(own)) + own + (1,) * rest
        aligned.append(i if full == own else bind(reshape.op, i, shape=full))
    if broadcast_shapes("getitem", *[i._aval.shape[: len(shape)] for i in aligned]) != shape:
        # only a 0-d boolean makes the result larger than the arrays
        aligned[0] = bind(broadcast_to.op, aligned[0], shape=shape + (1,) * rest)
    if 0 in sel.shape and 0 not in shape:
        _check_range(sel, aligned)
    return aligned


def _check_range(sel: Selection, aligned: list[Any]) -> None:
    """Read a stand-in where nothing will be read from the array itself, which has no rows."""
    count = len(aligned)
    sizes = tuple(sel.inner[a] for a in sel.order[:count])
    rest = (1,) * (len(sel.inner) - count)
    av = aligned[0]._aval
    bind(gather.op, constant(0, sizes + rest, bool_, av.device), *aligned)


def _arranged(rows: Any, sel: Selection) -> Any:
    """From (picked, rest) to the order and shape of the result."""
    count, rest = len(sel.picked), len(sel.inner) - len(sel.indices)
    if sel.place and count:
        order = (
            *range(count, count + sel.place),
            *range(count),
            *range(count + sel.place, count + rest),
        )
        rows = bind(permute_dims.op, rows, axes=order)
    return rows if rows._aval.shape == sel.shape else bind(reshape.op, rows, shape=sel.shape)


def _rows(value: Any, sel: Selection) -> Any:
    """From the shape of the result to (picked, rest)."""
    count, rest = len(sel.picked), len(sel.inner) - len(sel.indices)
    sizes = [sel.inner[a] for a in sel.order[len(sel.indices) :]]
    shape = (*sizes[: sel.place], *sel.picked, *sizes[sel.place :])
    if value._aval.shape != shape:
        value = bind(reshape.op, value, shape=shape)
    if not sel.place or not count:
        return value
    order = (
        *range(sel.place, sel.place + count),
        *range(sel.place),
        *range(sel.place + count, count + rest),
    )
    return bind(permute_dims.op, value, axes=order)


def _inverse(order: Shape) -> Shape:
    inverse = [0] * len(order)
    for position, axis in enumerate(order):
        inverse[axis] = position
    return tuple(inverse)


# -- values to write -------------------------------------------------------------------------------


def _as_value(av: Aval, value: Any) -> Any:
    """The value as an array of the dtype of the array it is written to."""
    if isinstance(value, SCALARS) and not isinstance(value, np.generic):
        if isinstance(value, complex) and not av.dtype.is_complex:
            raise DTypeError(f"setitem: a complex number can't be written to {av.dtype.name}.")
        return scalar(value, av.dtype, av.device)
    value = as_array(value, "setitem", dev=av.device)
    if value._aval.dtype.is_complex and not av.dtype.is_complex:
        raise DTypeError(f"setitem: complex values can't be written to {av.dtype.name}.")
    return astype(value, av.dtype)


def _spread(value: Any, shape: Shape) -> Any:
    """The value broadcast to the selected part; surplus leading axes of size 1 are dropped."""
    own = value._aval.shape
    surplus = len(own) - len(shape)
    if surplus > 0 and all(n == 1 for n in own[:surplus]):
        own = own[surplus:]
        value = bind(reshape.op, value, shape=own)
    if own == shape:
        return value
    lead = len(shape) - len(own)
    if lead < 0 or any(n not in (1, m) for n, m in zip(own, shape[lead:], strict=True)):
        raise ShapeError(
            f"setitem: a value of shape {value._aval.shape} does not broadcast"
            f" to the selected part, {shape}."
        )
    return bind(broadcast_to.op, value, shape=shape)


def _as_mask(key: Any) -> Any:
    """The key if it is one boolean array, as a NumPy array or as a tensor (which may be traced)."""
    if isinstance(key, Array) and key._aval.dtype.kind == "b":
        return key
    return key if isinstance(key, np.ndarray) and key.dtype == bool else None


def _masked(x: Any, mask: Any, value: Any) -> Any:
    """A value that does not vary with the mask is written without looking at the mask's values."""
    mask = as_array(mask, "setitem", dev=x._aval.device)
    shape, own = mask._aval.shape, x._aval.shape[: mask._aval.ndim]
    if shape != own:
        raise IndexOutOfRange(
            "setitem: a boolean index must have the shape of the axes it selects from,"
            f" {own}, got {shape}."
        )
    rest = x._aval.shape[len(shape) :]
    value = _spread(value, rest)
    mask = bind(reshape.op, mask, shape=shape + (1,) * len(rest))
    return where(mask, value, x)
