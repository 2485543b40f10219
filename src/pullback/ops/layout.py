"""Arrays turned, put on diagonals and joined in blocks; values on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.core.dtypes import as_dtype, default_float
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array, scalar
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.arrangement import flip, moveaxis, swapaxes
from pullback.ops.exponential import exp, log
from pullback.ops.exponential import pow as pow_
from pullback.ops.families import composite, normalise_axis
from pullback.ops.movement import common_dtype, concat, embed, reshape
from pullback.ops.parts import astype
from pullback.ops.promotion import same_dtype
from pullback.ops.ranges import linspace

__all__ = [
    "block", "column_stack", "diag_embed", "dstack", "fliplr", "flipud", "geomspace", "hstack",
    "logspace", "rot90", "vstack",
]  # fmt: skip


# -- turned ----------------------------------------------------------------------------------------


@composite(
    oracle="numpy.rot90",
    samples=lambda d: [
        *[Sample((d.real(2, 3), k)) for k in (0, 1, 2, 3, -1, 6)],
        Sample((d.real(2, 3, 4),), {"axes": (1, 2)}),
        Sample((d.real(2, 3, 4),), {"axes": (-1, 0)}),
    ],
    errors=lambda d: [
        Bad((d.real(3),), {}, ShapeError, "out of range"),
        Bad((d.real(2, 2),), {"axes": (0, 0)}, ShapeError, "two different axes"),
        Bad((d.real(2, 2), 0.5), {}, DTypeError, "k must be an integer"),
    ],
)
def rot90(x: Any, /, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Any:
    """The array turned k times by 90 degrees, from the first of the axes towards the second.

    >>> pb.rot90(pb.tensor([[1, 2], [3, 4]]))
    tensor([[2, 4],
            [1, 3]], int64, cpu)
    """
    x = as_array(x, "rot90")
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise DTypeError(f"rot90: k must be an integer, got {k!r}.")
    first, second = (normalise_axis("rot90", a, x._aval.ndim) for a in axes)
    if first == second:
        raise ShapeError(f"rot90: needs two different axes, got {axes}.")
    turns = int(k) % 4
    if turns == 0:
        return x
    if turns == 2:
        return flip(x, axis=(first, second))
    if turns == 1:
        return swapaxes(flip(x, axis=second), first, second)
    return flip(swapaxes(x, first, second), axis=second)


def _flip_errors(d: Draw) -> list[Bad]:
    return [Bad((d.real(),), {}, ShapeError, "out of range")]


@composite(
    oracle="numpy.fliplr",
    samples=lambda d: [Sample((d.real(2, 3),)), Sample((d.real(2, 3, 2),))],
    errors=_flip_errors,
)
def fliplr(x: Any, /) -> Any:
    """The array with its second axis backwards.

    >>> pb.fliplr(pb.tensor([[1, 2], [3, 4]]))
    tensor([[2, 1],
            [4, 3]], int64, cpu)
    """
    x = as_array(x, "fliplr")
    return flip(x, axis=normalise_axis("fliplr", 1, x._aval.ndim))


@composite(
    oracle="numpy.flipud",
    samples=lambda d: [Sample((d.real(2, 3),)), Sample((d.real(4),))],
    errors=_flip_errors,
)
def flipud(x: Any, /) -> Any:
    """The array with its first axis backwards.

    >>> pb.flipud(pb.tensor([1, 2, 3]))
    tensor([3, 2, 1], int64, cpu)
    """
    x = as_array(x, "flipud")
    return flip(x, axis=normalise_axis("flipud", 0, x._aval.ndim))


# -- diagonals -------------------------------------------------------------------------------------


def _diag_oracle(x: np.ndarray, offset: int = 0, dim1: int = -2, dim2: int = -1) -> np.ndarray:
    n = x.shape[-1] + abs(offset)
    out = np.zeros((*x.shape[:-1], n, n), x.dtype)
    i = np.arange(x.shape[-1])
    out[..., i + max(-offset, 0), i + max(offset, 0)] = x
    return np.moveaxis(out, (-2, -1), (dim1, dim2))


@composite(
    oracle=_diag_oracle,
    samples=lambda d: [
        Sample((d.real(3),)),
        Sample((d.real(2, 3),), {"offset": 1}),
        Sample((d.real(2, 3),), {"offset": -2, "dim1": 0, "dim2": 2}),
        Sample((d.real(2, 1),), {"dim1": 2, "dim2": 0}),
        Sample((d.real(0),)),
    ],
    errors=lambda d: [
        Bad((d.real(),), {}, ShapeError, "at least one axis"),
        Bad((d.real(3),), {"dim1": 2}, ShapeError, "out of range"),
        Bad((d.real(3),), {"dim1": 0, "dim2": 0}, ShapeError, "two different axes"),
        Bad((d.real(3),), {"offset": 0.5}, DTypeError, "offset must be an integer"),
    ],
)
def diag_embed(x: Any, /, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Matrices with the rows of `x` on a diagonal, `offset` above the main one.

    >>> pb.diag_embed(pb.tensor([1, 2]))
    tensor([[1, 0],
            [0, 2]], int64, cpu)

    `dim1` and `dim2` are the axes of the result that hold a matrix.
    """
    x = as_array(x, "diag_embed")
    if isinstance(offset, bool) or not isinstance(offset, (int, np.integer)):
        raise DTypeError(f"diag_embed: offset must be an integer, got {offset!r}.")
    if x._aval.ndim == 0:
        raise ShapeError("diag_embed: needs at least one axis, got a 0-d array.")
    ndim = x._aval.ndim + 1
    first, second = (normalise_axis("diag_embed", a, ndim) for a in (dim1, dim2))
    if first == second:
        raise ShapeError(f"diag_embed: needs two different axes, got {dim1} and {dim2}.")
    *lead, n = x._aval.shape
    size = n + abs(int(offset))
    start = max(offset, 0) + max(-offset, 0) * size
    # on the flat matrix a diagonal is every (size + 1)-th element
    zero = scalar(0, x._aval.dtype, x._aval.device)
    flat = bind(
        embed.op,
        zero,
        x,
        shape=(*lead, size * size),
        starts=(*[0] * len(lead), start),
        steps=(*[1] * len(lead), size + 1),
    )
    found = reshape(flat, (*lead, size, size))
    return moveaxis(found, (-2, -1), (first, second))


# -- blocks ----------------------------------------------------------------------------------------


def _arrays(name: str, arrays: Any) -> list[Any]:
    if not isinstance(arrays, (list, tuple)) or not arrays:
        raise ShapeError(f"{name}: takes a sequence of arrays, got {arrays!r}.")
    return common_dtype(name, arrays)


def _raised(x: Any, ndim: int) -> Any:
    """With axes of size 1 in front."""
    missing = ndim - x._aval.ndim
    return reshape(x, (*[1] * missing, *x._aval.shape)) if missing > 0 else x


def _joined(name: str, arrays: list[Any], axis: int) -> Any:
    first = arrays[0]._aval.shape
    for a in arrays[1:]:
        own = a._aval.shape
        same = len(own) == len(first) and all(
            n == m for d, (n, m) in enumerate(zip(own, first, strict=True)) if d != axis % len(own)
        )
        if not same:
            raise ShapeError(f"{name}: shapes do not fit, got {first} and {own}.")
    return concat(arrays, axis=axis)


def _stack_errors(d: Draw) -> list[Bad]:
    return [
        Bad(((d.real(2, 3), d.real(3, 2, 4)),), {}, ShapeError, "do not fit"),
        Bad(((),), {}, ShapeError, "a sequence of arrays"),
    ]


@composite(
    oracle="numpy.vstack",
    samples=lambda d: [
        Sample(((d.real(3), d.real(3)),)),
        Sample(((d.real(2, 3), d.real(3)),)),
        Sample(((d.real(), d.real()),)),
    ],
    errors=_stack_errors,
)
def vstack(arrays: Any, /) -> Any:
    """The arrays one below the other; those with one axis are rows.

    >>> pb.vstack([pb.tensor([1, 2]), pb.tensor([3, 4])])
    tensor([[1, 2],
            [3, 4]], int64, cpu)
    """
    return _joined("vstack", [_raised(a, 2) for a in _arrays("vstack", arrays)], 0)


@composite(
    oracle="numpy.hstack",
    samples=lambda d: [
        Sample(((d.real(3), d.real(2)),)),
        Sample(((d.real(2, 3), d.real(2, 1)),)),
        Sample(((d.real(), d.real()),)),
    ],
    errors=_stack_errors,
)
def hstack(arrays: Any, /) -> Any:
    """The arrays side by side: along the second axis, or the only one.

    >>> pb.hstack([pb.tensor([1, 2]), pb.tensor([3])])
    tensor([1, 2, 3], int64, cpu)
    """
    found = [_raised(a, 1) for a in _arrays("hstack", arrays)]
    return _joined("hstack", found, 0 if found[0]._aval.ndim == 1 else 1)


@composite(
    oracle="numpy.dstack",
    samples=lambda d: [
        Sample(((d.real(3), d.real(3)),)),
        Sample(((d.real(2, 3), d.real(2, 3)),)),
        Sample(((d.real(2, 3, 1), d.real(2, 3, 2)),)),
    ],
    errors=lambda d: [
        Bad(((d.real(2, 3), d.real(3, 2)),), {}, ShapeError, "do not fit"),
        Bad(((),), {}, ShapeError, "a sequence of arrays"),
    ],
)
def dstack(arrays: Any, /) -> Any:
    """The arrays one behind the other, along the third axis.

    >>> pb.dstack([pb.tensor([1, 2]), pb.tensor([3, 4])])
    tensor([[[1, 3],
             [2, 4]]], int64, cpu)
    """

    def deep(a: Any) -> Any:
        flat = _raised(a, 2)
        shape = flat._aval.shape
        return reshape(flat, (*shape, 1)) if len(shape) == 2 else flat

    return _joined("dstack", [deep(a) for a in _arrays("dstack", arrays)], 2)


@composite(
    oracle="numpy.column_stack",
    samples=lambda d: [
        Sample(((d.real(3), d.real(3)),)),
        Sample(((d.real(3), d.real(3, 2)),)),
    ],
    errors=lambda d: [
        Bad(((d.real(2), d.real(3)),), {}, ShapeError, "do not fit"),
        Bad(((),), {}, ShapeError, "a sequence of arrays"),
    ],
)
def column_stack(arrays: Any, /) -> Any:
    """The arrays side by side; those with one axis are columns.

    >>> pb.column_stack([pb.tensor([1, 2]), pb.tensor([3, 4])])
    tensor([[1, 3],
            [2, 4]], int64, cpu)
    """

    def column(a: Any) -> Any:
        return reshape(a, (-1, 1)) if a._aval.ndim < 2 else a

    return _joined("column_stack", [column(a) for a in _arrays("column_stack", arrays)], 1)


@composite(
    oracle="numpy.block",
    samples=lambda d: [
        Sample(([[d.real(2, 2), d.real(2, 1)], [d.real(1, 2), d.real(1, 1)]],)),
        Sample(([d.real(2), d.real(3)],)),
        Sample((d.real(3),)),
        Sample(([[d.real(2, 2), d.real(2, 3)]],)),
    ],
    errors=lambda d: [
        Bad(([[d.real(2, 2), d.real(3, 1)]],), {}, ShapeError, "do not fit"),
        Bad(([d.real(2), [d.real(2)]],), {}, ShapeError, "equally deep"),
        Bad(([],), {}, ShapeError, "must not be empty"),
    ],
)
def block(arrays: Any, /) -> Any:
    """An array of blocks in nested lists: the innermost lists are joined along the last axis.

    >>> pb.block([[pb.ones((1, 2)), pb.zeros((1, 1))], [pb.zeros((1, 3))]])
    tensor([[1., 1., 0.],
            [0., 0., 0.]], float32, cpu)
    """
    depth = _depth(arrays)
    flat: list[Any] = []
    _collect(arrays, flat)
    found = common_dtype("block", flat)
    ndim = max(depth, *[a._aval.ndim for a in found])
    return _assembled(arrays, depth, iter([_raised(a, ndim) for a in found]))


def _depth(arrays: Any) -> int:
    """How deep the lists are nested."""
    if not isinstance(arrays, list):
        return 0
    if not arrays:
        raise ShapeError("block: lists must not be empty, got [].")
    depths = {_depth(a) for a in arrays}
    if len(depths) > 1:
        raise ShapeError(f"block: lists must be equally deep, got depths {sorted(depths)}.")
    return 1 + depths.pop()


def _collect(arrays: Any, found: list[Any]) -> None:
    if isinstance(arrays, list):
        for a in arrays:
            _collect(a, found)
    else:
        found.append(arrays)


def _assembled(arrays: Any, depth: int, blocks: Any) -> Any:
    if depth == 0:
        return next(blocks)
    return _joined("block", [_assembled(a, depth - 1, blocks) for a in arrays], -depth)


# -- logarithmic scales ----------------------------------------------------------------------------


def _scale_oracle(function: Callable[..., Any]) -> Callable[..., Any]:
    def oracle(start: Any, stop: Any, num: int, dtype: Any = None, **options: Any) -> np.ndarray:
        found = function(start, stop, num, **options)
        if dtype is not None:
            return found.astype(as_dtype(dtype).numpy)
        return found if isinstance(start, np.ndarray) else found.astype(np.float32)

    return oracle


def _scale_errors(d: Draw) -> list[Bad]:
    return [Bad((1.0, 2.0, -1), {}, ShapeError, "negative")]


@composite(
    oracle=_scale_oracle(np.logspace),
    samples=lambda d: [
        Sample((0.0, 2.0, 5)),
        Sample((d.real(), d.real(), 4)),
        Sample((0.0, 3.0, 4), {"base": 2.0, "endpoint": False}),
        Sample((0.0, 3.0, 4), {"dtype": "float64"}),
    ],
    errors=_scale_errors,
    creates=True,
    tolerance=8.0,  # a power enlarges the rounding of its exponent
)
def logspace(
    start: Any,
    stop: Any,
    /,
    num: int = 50,
    *,
    endpoint: bool = True,
    base: float = 10.0,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """`num` numbers from `base**start` to `base**stop`, whose logarithms are evenly spaced.

    >>> pb.logspace(0.0, 2.0, 3)
    tensor([  1.,  10., 100.], float32, cpu)
    """
    _checked_number("logspace", num)
    exponents = linspace(start, stop, num, endpoint=endpoint, device=device, dtype=_wider(dtype))
    return _narrowed(pow_(float(base), exponents), dtype)


@composite(
    oracle=_scale_oracle(np.geomspace),
    samples=lambda d: [
        Sample((1.0, 100.0, 5)),
        Sample((d.positive(), d.positive(), 4)) if d.dtype.kind == "f" else Sample((1.0, 2.0, 3)),
        Sample((1.0, 8.0, 3), {"endpoint": False}),
        Sample((-1.0, -8.0, 4)),
        Sample((1.0, 8.0, 4), {"dtype": "float64"}),
    ],
    errors=lambda d: [
        *_scale_errors(d),
        Bad((0.0, 2.0, 3), {}, DTypeError, "other than 0"),
        Bad((-1.0, 2.0, 3), {}, DTypeError, "the same sign"),
    ],
    tolerance=8.0,
    creates=True,
)
def geomspace(
    start: Any,
    stop: Any,
    /,
    num: int = 50,
    *,
    endpoint: bool = True,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """`num` numbers from `start` to `stop`, each the same multiple of the one before it.

    >>> pb.geomspace(1.0, 8.0, 4)
    tensor([1., 2., 4., 8.], float32, cpu)
    """
    _checked_number("geomspace", num)
    sign = 1.0
    if isinstance(start, (int, float)) and isinstance(stop, (int, float)):
        if start == 0 or stop == 0:
            raise DTypeError(f"geomspace: ends are numbers other than 0, got {start} and {stop}.")
        if (start < 0) != (stop < 0):
            raise DTypeError(f"geomspace: ends have the same sign, got {start} and {stop}.")
        sign = -1.0 if start < 0 else 1.0
        ends: tuple[Any, Any] = (math.log(abs(start)), math.log(abs(stop)))
    else:
        first, last = same_dtype("geomspace", start, stop)
        ends = (log(first), log(last))
    values = linspace(*ends, num, endpoint=endpoint, device=device, dtype=_wider(dtype))
    return _narrowed(exp(values) * sign, dtype)


def _checked_number(name: str, num: Any) -> None:
    if isinstance(num, bool) or not isinstance(num, (int, np.integer)):
        raise DTypeError(f"{name}: num must be an integer, got {num!r}.")
    if num < 0:
        raise ShapeError(f"{name}: num must not be negative, got {num}.")


def _wider(dtype: Any) -> Any:
    """The dtype to compute in."""
    if dtype is None:
        return None
    chosen = as_dtype(dtype)
    return chosen if chosen.is_inexact else default_float()


def _narrowed(x: Any, dtype: Any) -> Any:
    return x if dtype is None else astype(x, as_dtype(dtype), copy=False)
