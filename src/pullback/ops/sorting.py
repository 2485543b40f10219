"""Sorting, searching in sorted arrays, and the distinct elements of an array."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.creation import zeros_like
from pullback.ops.cumulative import cumsum
from pullback.ops.extrema import ordered
from pullback.ops.families import composite, normalise_axis, primitive
from pullback.ops.gather_scatter import gather
from pullback.ops.indexing import take_along_axis
from pullback.ops.movement import concat, permute_dims, repeated, reshape
from pullback.ops.parts import imag, real
from pullback.ops.promotion import promoted
from pullback.ops.ranges import arange, positions
from pullback.ops.selection import where

__all__ = [
    "argsort", "isin", "searchsorted", "sort", "topk", "unique_all",
    "unique_counts", "unique_inverse", "unique_values",
]  # fmt: skip


# -- sorting -------------------------------------------------------------------------------------


def _descending(x: np.ndarray, axis: int) -> np.ndarray:
    """NumPy's positions of a stable descending sort: equal elements stay in order."""
    back = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - back, axis)


def _argsort_oracle(
    x: Any, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Any:
    return _descending(x, axis) if descending else np.argsort(x, axis=axis, kind="stable")


def _order_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.distinct(6),)),
        Sample((d.distinct(3, 4),), {"axis": 0}),
        Sample((d.distinct(2, 3, 4),), {"axis": -2, "descending": True}),
        Sample((d.integers(4, 9, high=4),), {"descending": True}),
        Sample((d.integers(12, high=4, dtype=np.uint8),)),
        Sample((np.asarray([1.0, np.nan, -np.inf, 0.0, np.nan, -1.0]),), order=0),
        Sample((d.mask(7),)),
        Sample((d.distinct(0, 3),)),
        Sample((d.distinct(3, 0),)),
        Sample((d.distinct(130),), order=1),
    ]


def _order_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(2, 3),), {"axis": 2}, ShapeError, "axis 2 is out of range"),
        Bad((d.real(),), {}, ShapeError, "out of range"),
        Bad((np.ones(2, np.complex64),), {}, DTypeError, "no order"),
        Bad((object(),), {}, DTypeError, "expected an array"),
    ]


@primitive(
    "x",
    infer=lambda x, descending: (x.shape, dt.int64),
    lowering=Intrinsic("argsort"),
    batch="rows",
    no_gradient="positions are integers",
    oracle=_argsort_oracle,
    samples=_order_samples,
    errors=_order_errors,
    methods=("argsort",),
    front=1,
)
def argsort(x: Any, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Any:
    """The positions that sort the array along `axis`; always stable, NaN after all numbers.

    >>> pb.argsort(pb.tensor([3.0, 1.0, 2.0]))
    tensor([1, 2, 0], int64, cpu)
    """
    x = ordered("argsort", x)
    axis = normalise_axis("argsort", axis, x._aval.ndim)
    last = x._aval.ndim - 1
    if axis == last:
        return bind(argsort.op, x, descending=bool(descending))
    order = (*range(axis), *range(axis + 1, last + 1), axis)
    back = (*range(axis), last, *range(axis, last))
    found = bind(argsort.op, permute_dims(x, order), descending=bool(descending))
    return permute_dims(found, back)


@composite(
    oracle=lambda x, **options: np.take_along_axis(
        x, _argsort_oracle(x, **options), options.get("axis", -1)
    ),
    samples=_order_samples,
    errors=_order_errors,
    methods=("sort",),
)
def sort(x: Any, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Any:
    """The elements in order along `axis`, NaN after all numbers (first when descending).

    >>> pb.sort(pb.tensor([3.0, 1.0, 2.0]), descending=True)
    tensor([3., 2., 1.], float32, cpu)
    """
    x = ordered("sort", x)
    axis = normalise_axis("sort", axis, x._aval.ndim)
    return take_along_axis(x, argsort(x, axis=axis, descending=descending), axis=axis)


class TopK(NamedTuple):
    """The k largest (or smallest) elements, and where they were."""

    values: Any
    indices: Any


def _topk_oracle(
    x: Any, k: int, *, axis: int = -1, largest: bool = True, sorted: bool = True
) -> tuple:
    order = _argsort_oracle(x, axis=axis, descending=largest)
    first = np.take(order, np.arange(k), axis=axis)
    return np.take_along_axis(x, first, axis), first


@composite(
    oracle=_topk_oracle,
    samples=lambda d: [
        Sample((d.distinct(6), 2)),
        Sample((d.distinct(3, 5), 2), {"axis": 0, "largest": False}),
        Sample((d.distinct(2, 4), 4)),
        Sample((d.distinct(2, 4), 0)),
        Sample((d.integers(9, high=3), 5)),
    ],
    errors=lambda d: [
        Bad((d.real(3), 4), {}, ShapeError, "k must be between 0 and 3"),
        Bad((d.real(3), 1), {"axis": 1}, ShapeError, "out of range"),
        Bad((np.ones(2, np.complex64), 1), {}, DTypeError, "no order"),
    ],
)
def topk(x: Any, /, k: int, axis: int = -1, *, largest: bool = True, sorted: bool = True) -> TopK:
    """The `k` largest (or smallest) elements along `axis`, in order, and their positions.

    Of equal elements the first are kept.

    >>> pb.topk(pb.tensor([3.0, 1.0, 2.0]), 2)
    TopK(values=tensor([3., 2.], float32, cpu), indices=tensor([0, 2], int64, cpu))
    """
    x = ordered("topk", x)
    axis = normalise_axis("topk", axis, x._aval.ndim)
    size = x._aval.shape[axis]
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 0 <= k <= size:
        raise ShapeError(f"topk: k must be between 0 and {size}, the size of the axis, got {k!r}.")
    order = argsort(x, axis=axis, descending=largest)
    first = order[(slice(None),) * axis + (slice(0, int(k)),)]
    return TopK(take_along_axis(x, first, axis=axis), first)


# -- searching -----------------------------------------------------------------------------------


def _search_oracle(x: Any, values: Any, *, side: Any = "left", sorter: Any = None) -> Any:
    return np.searchsorted(x, values, side=side, sorter=sorter)


def _search_batch(x: Any, values: Any, side: str, examples: int) -> Any:
    if x._aval.shape[0] == 1:
        return bind(searchsorted.op, reshape(x, x._aval.shape[1:]), values, side=side)
    return _bisected(x, repeated(values, examples), side)


def _bisected(x: Any, values: Any, side: str) -> Any:
    """`searchsorted` in rows, all of them at once: the positions are found bit by bit."""
    examples, size = x._aval.shape
    flat = reshape(values, (examples, math.prod(values._aval.shape[1:])))
    row = reshape(positions(examples, x._aval.device), (examples, 1))
    low = zeros_like(flat, dtype=dt.int64)
    for bit in reversed(range(size.bit_length())):
        # as many elements as `further` come before the position if the last of them does
        further = low + (1 << bit)
        inside = further <= size
        last = bind(gather.op, x, row, where(inside, further - 1, 0))
        before = last < flat if side == "left" else last <= flat
        if x._aval.dtype.is_inexact:  # NaN comes after all numbers
            known = last == last
            before = before | ((flat != flat) & (known if side == "left" else True))
        low = where(inside & before, further, low)
    return reshape(low, values._aval.shape)


@primitive(
    "x values",
    infer=lambda x, values, side: (values.shape, dt.int64),
    lowering=Intrinsic("searchsorted"),
    batch=_search_batch,
    no_gradient="positions are integers",
    oracle=_search_oracle,
    samples=lambda d: [
        Sample((np.sort(d.real(7)), d.real(3, 4))),
        Sample((np.sort(d.integers(9, high=5)), d.integers(8, high=6)), {"side": "right"}),
        Sample((np.sort(d.integers(9, high=5)), d.integers(8, high=6)), {"side": "left"}),
        Sample((np.zeros(0), d.real(3))),
        Sample((np.asarray([0.0, 1.0, np.inf, np.nan]), np.asarray([np.nan, np.inf, -1.0]))),
        Sample((np.asarray([3.0, 1.0, 2.0]), d.real(4)), {"sorter": np.asarray([1, 2, 0])}),
    ],
    errors=lambda d: [
        Bad((d.real(3), d.real(2)), {"side": "middle"}, DTypeError, "side must be"),
        Bad((d.real(3, 2), d.real(2)), {}, ShapeError, "one dimension"),
        Bad((np.ones(2, np.complex64), d.real(2)), {}, DTypeError, "no order"),
    ],
    front=2,
)
def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Any:
    """The positions in the sorted array `x1` at which the elements of `x2` would keep it sorted.

    With side "left" that is before equal elements, with "right" after them; `sorter` are the
    positions that sort `x1`, if it is not sorted.

    >>> pb.searchsorted(pb.tensor([1.0, 2.0, 2.0, 3.0]), pb.tensor([2.0, 2.5]))
    tensor([1, 3], int64, cpu)
    """
    x1, x2 = promoted("searchsorted", "biufc", ("x1", "x2"), (), (x1, x2))
    ordered("searchsorted", x1)
    if side not in ("left", "right"):
        raise DTypeError(f"searchsorted: side must be 'left' or 'right', got {side!r}.")
    if x1._aval.ndim != 1:
        raise ShapeError(
            f"searchsorted: the sorted array has one dimension, got shape {x1._aval.shape}."
        )
    if sorter is not None:
        x1 = take_along_axis(x1, as_array(sorter, "searchsorted"), axis=0)
    return bind(searchsorted.op, x1, x2, side=side)


@composite(
    oracle=lambda x, test, *, invert=False: np.isin(x, test, invert=invert),
    samples=lambda d: [
        Sample((d.integers(3, 5), d.integers(4))),
        Sample((d.integers(6), d.integers(0))),
        Sample((d.integers(6), d.integers(4)), {"invert": True}),
        Sample((d.integers(2, 3), 2)),
        Sample((2, d.integers(4))),
        Sample((np.asarray([np.nan, 1.0, -0.0]), np.asarray([0.0, np.nan, 2.0]))),
        Sample((_complex_values(), np.asarray([1 + 1j, complex(np.nan, 1), 2.0]))),
    ],
    errors=lambda d: [Bad((object(), d.real(2)), {}, DTypeError, "expected an array")],
    differentiable=False,
)
def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Any:
    """Whether each element of `x1` is one of those of `x2`; NaN equals nothing.

    >>> pb.isin(pb.tensor([1, 2, 3]), pb.tensor([3, 1]))
    tensor([ True, False,  True], bool, cpu)
    """
    x1, x2 = promoted("isin", "biufc", ("x1", "x2"), (), (x1, x2))
    wanted, among = (reshape(x, (x._aval.size,)) for x in (x1, x2))
    if x1._aval.dtype.is_complex:
        groups = _grouped(concat([wanted, among])).inverse
        wanted, among = groups[: x1._aval.size], groups[x1._aval.size :]
    among = sort(among)
    last = searchsorted(among, wanted, side="right")
    found = (last > searchsorted(among, wanted, side="left")) & (wanted == wanted)
    return reshape(~found if invert else found, x1._aval.shape)


# -- distinct elements ---------------------------------------------------------------------------


class UniqueAll(NamedTuple):
    """The distinct elements, where each is first, which one each element is, and how often."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCounts(NamedTuple):
    """The distinct elements in order, and how often each occurs."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """The distinct elements in order, and which one each element is."""

    values: Any
    inverse_indices: Any


class Groups(NamedTuple):
    """A 1-D array in order, with equal elements as groups."""

    order: Any  # the positions that sort it
    ranked: Any  # it, sorted
    begins: Any  # whether a group begins there
    inverse: Any  # the number of the group that each element is in


def _total_order(flat: Any) -> Any:
    """The positions that sort a 1-D array; complex numbers by their real parts, then imaginary."""
    if not flat._aval.dtype.is_complex:
        return argsort(flat)
    order = argsort(imag(flat))
    return take_along_axis(order, argsort(take_along_axis(real(flat), order, axis=0)), axis=0)


def _grouped(flat: Any) -> Groups:
    """The groups of equal elements; every NaN is one of its own."""
    order = _total_order(flat)
    ranked = take_along_axis(flat, order, axis=0)
    first = arange(flat._aval.size, device=flat._aval.device)[:1] == 0
    begins = concat([first, ranked[1:] != ranked[:-1]])
    group = cumsum(begins) - 1
    # the positions are unique, so sorting them by `order` inverts the permutation
    return Groups(order, ranked, begins, take_along_axis(group, argsort(order), axis=0))


def _distinct(name: str, x: Any) -> UniqueAll:
    """Everything about the distinct elements; every NaN is distinct, as the standard asks."""
    x = as_array(x, name)
    if x._aval.is_symbolic:
        raise DTypeError(
            f"{name}: the size of the result depends on values, which a traced array has not."
            " Call it outside the traced function."
        )
    n = x._aval.size
    order, ranked, begins, inverse = _grouped(reshape(x, (n,)))
    starts = _positions_of(begins)
    ends = concat([starts[1:], arange(n, n + 1, device=x._aval.device)[: starts._aval.size]])
    return UniqueAll(
        take_along_axis(ranked, starts, axis=0),
        take_along_axis(order, starts, axis=0),
        reshape(inverse, x._aval.shape),
        ends - starts,
    )


def _positions_of(mask: Any) -> Any:
    """The positions of the true elements of a 1-D mask: a stable sort brings them to the front."""
    count = int(cumsum(mask)[-1:].sum())
    return argsort(mask, descending=True)[:count]


def _distinct_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.integers(12, high=5),)),
        Sample((d.integers(3, 4, high=3),)),
        Sample((np.asarray([1.5, 0.5, 1.5, -0.0, 0.0]),), order=0),
        Sample((d.mask(6),)),
        Sample((d.integers(0),)),
        Sample((_complex_values(),), order=0),
    ]


def _distinct_errors(d: Draw) -> list[Bad]:
    return [Bad((object(),), {}, DTypeError, "expected an array")]


def _complex_values() -> np.ndarray:
    """Repeated, of equal parts, with a NaN and zeros of both signs."""
    values = [1 + 1j, 2 - 1j, 1 + 1j, 1 - 1j, complex(np.nan, 1), complex(0.0, -0.0), 2 - 1j, 0j]
    return np.asarray(values)


def _unique_oracle(x: Any) -> tuple:
    values, first, inverse, counts = np.unique(x, True, True, True, equal_nan=False)
    return values, first, inverse.reshape(x.shape), counts


@composite(
    oracle=_unique_oracle,
    samples=_distinct_samples,
    errors=_distinct_errors,
)
def unique_all(x: Any, /) -> UniqueAll:
    """The distinct elements, sorted, where each is first, which one each element is, and how often.

    >>> pb.unique_all(pb.tensor([3, 1, 3])).counts
    tensor([1, 2], int64, cpu)
    """
    return _distinct("unique_all", x)


@composite(
    oracle=lambda x: (_unique_oracle(x)[0], _unique_oracle(x)[3]),
    samples=_distinct_samples,
    errors=_distinct_errors,
)
def unique_counts(x: Any, /) -> UniqueCounts:
    """The distinct elements in order, and how often each occurs.

    >>> pb.unique_counts(pb.tensor([3, 1, 3]))
    UniqueCounts(values=tensor([1, 3], int64, cpu), counts=tensor([1, 2], int64, cpu))
    """
    found = _distinct("unique_counts", x)
    return UniqueCounts(found.values, found.counts)


@composite(
    oracle=lambda x: (_unique_oracle(x)[0], _unique_oracle(x)[2]),
    samples=_distinct_samples,
    errors=_distinct_errors,
)
def unique_inverse(x: Any, /) -> UniqueInverse:
    """The distinct elements in order, and which one each element is.

    >>> pb.unique_inverse(pb.tensor([3, 1, 3]))
    UniqueInverse(values=tensor([1, 3], int64, cpu), inverse_indices=tensor([1, 0, 1], int64, cpu))
    """
    found = _distinct("unique_inverse", x)
    return UniqueInverse(found.values, found.inverse_indices)


@composite(
    oracle=lambda x: _unique_oracle(x)[0],
    samples=_distinct_samples,
    errors=_distinct_errors,
)
def unique_values(x: Any, /) -> Any:
    """The distinct elements in order.

    >>> pb.unique_values(pb.tensor([3, 1, 3]))
    tensor([1, 3], int64, cpu)
    """
    return _distinct("unique_values", x).values
