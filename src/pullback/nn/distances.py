"""Distances and similarities of vectors, safe to differentiate where they are zero."""

from __future__ import annotations

import builtins
from math import inf, prod
from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import from_numpy
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import LARGE, broadcast_check, floating, inexact, option
from pullback.nn.fused import fused
from pullback.ops.arithmetic import abs as abs_
from pullback.ops.arrangement import expand_dims
from pullback.ops.exponential import sqrt
from pullback.ops.extrema import max
from pullback.ops.families import broadcast_shapes, composite, normalise_axis
from pullback.ops.indexing import take
from pullback.ops.movement import broadcast_to, reshape
from pullback.ops.parts import astype, conj, real
from pullback.ops.products import matmul, matrix_transpose
from pullback.ops.reductions import sum
from pullback.ops.selection import clip, where
from pullback.ops.statistics import powers
from pullback.standard import make_finfo

__all__ = ["cdist", "cosine_similarity", "normalize", "pairwise_distance", "pdist"]

MODES = (
    "use_mm_for_euclid_dist_if_necessary",
    "use_mm_for_euclid_dist",
    "donot_use_mm_for_euclid_dist",
)
# Elements of a vector from which on distances are made of products of matrices. The number of rows
# does not count, though it does in PyTorch: a row has the same bits in any batch.
LONG = 25  # as many as PyTorch asks of rows


# -- norms -----------------------------------------------------------------------------------------


def _root(x: Any, p: float) -> Any:
    """`x ** (1 / p)`, whose derivatives at 0 are 0."""
    zero = x <= 0.0
    safe = where(zero, 1.0, x)
    return where(zero, 0.0, sqrt(safe) if p == 2 else safe ** (1.0 / p))


def norm(name: str, x: Any, p: float, axis: int, keepdims: bool = False) -> Any:
    """The p-norm along an axis: any p from 0 (how many are not 0) to infinity (the largest)."""
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not p >= 0:
        raise ShapeError(f"{name}: p must be a number that is not negative, got {p!r}.")
    if p == 0:
        return astype(sum(x != 0.0, axis=axis, keepdims=keepdims), x._aval.dtype.real)
    if p == 2:
        squares = real(x * conj(x)) if x._aval.dtype.is_complex else x * x
        return _root(sum(squares, axis=axis, keepdims=keepdims), 2)
    if p == inf and x._aval.shape[axis] == 0:
        return sum(abs_(x), axis=axis, keepdims=keepdims)
    if p == inf:
        return max(abs_(x), axis=axis, keepdims=keepdims)
    if p == 1:
        return sum(abs_(x), axis=axis, keepdims=keepdims)
    return _root(sum(powers(abs_(x), p), axis=axis, keepdims=keepdims), p)


def _at_least(size: Any, eps: float) -> Any:
    """A divisor that is not 0, even where the dtype is too narrow for `eps`."""
    return clip(size, builtins.max(eps, make_finfo(size._aval.dtype).smallest_normal))


def _numpy_norm(row: np.ndarray, p: float) -> Any:
    size = np.abs(row)
    if p == 0:
        return (size != 0).sum().astype(size.dtype)
    if p == inf:
        return size.max(initial=0.0)
    return (size**p).sum() ** (1.0 / p)


P_VALUES = (2.0, 1.0, 0.0, inf, 3.0, 1.5)
_BAD_P = {"p": -1.0}


def _normalize_oracle(input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> np.ndarray:
    out = np.moveaxis(np.array(input), dim, -1)
    for place in np.ndindex(out.shape[:-1]):
        out[place] /= np.maximum(_numpy_norm(out[place], p), eps)
    return np.moveaxis(out, -1, dim)


@composite(
    oracle=_normalize_oracle,
    samples=lambda d: [
        Sample((d.real(2, 3),)),
        Sample((d.distinct(2, 2, 2),), {"p": inf, "dim": -1}),
        Sample((d.real(3, 2),), {"p": 3, "dim": 0}),
        Sample((d.real(3),), {"p": 1.5, "dim": -1, "eps": 100.0}),
        Sample((np.zeros((2, 3), d.dtype),), order=0),
        Sample((d.real(0, 3),)),
    ],
    errors=lambda d: [
        Bad((d.real(3),), {}, ShapeError, "axis 1 is out of range"),
        Bad((d.real(2, 3),), _BAD_P, ShapeError, "p must be"),
    ],
    namespace="nn",
)
def normalize(input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:
    """`x / max(norm(x), eps)` with the p-norm along the axis `dim`; zeros stay zeros.

    >>> pb.nn.normalize(pb.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6, 0.8],
            [0. , 0. ]], float32, cpu)
    """
    (x,) = inexact("normalize", input)
    axis = normalise_axis("normalize", dim, x._aval.ndim)
    return x / _at_least(norm("normalize", x, p, axis, keepdims=True), eps)


# -- pairs of vectors ------------------------------------------------------------------------------


def _repeated(x: Any, axis: int, size: int) -> Any:
    """The array with `size` elements along an axis, along which it may have one."""
    shape = x._aval.shape
    return broadcast_to(x, (*shape[:axis], size, *shape[axis + 1 :]))


def _cosine_oracle(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> np.ndarray:
    x, y = (np.moveaxis(a, dim, -1) for a in np.broadcast_arrays(x1, x2))
    out = np.zeros(x.shape[:-1], x.dtype)
    for place in np.ndindex(out.shape):
        sizes = [np.maximum(np.sqrt((a[place] ** 2).sum()), eps) for a in (x, y)]
        out[place] = (x[place] * y[place]).sum() / (sizes[0] * sizes[1])
    return out


@composite(
    oracle=_cosine_oracle,
    samples=lambda d: [
        Sample((d.real(2, 3), d.real(2, 3))),
        Sample((d.real(2, 1, 2), d.real(3, 2)), {"dim": -1}),
        Sample((d.real(3, 2), d.real(3, 2)), {"dim": 0, "eps": 10.0}),
        Sample((d.real(2, 1), d.real(2, 3)), order=0),
        Sample((d.real(4), d.real(2, 3, 1)), {"dim": 2, "eps": 10.0}),
        Sample((np.zeros((2, 3), d.dtype), d.real(2, 3)), order=0),
        Sample((d.real(0, 3), d.real(0, 3))),
    ],
    errors=lambda d: [
        Bad((d.real(2, 3), d.real(2, 2)), {}, ShapeError, "do not broadcast"),
        Bad((d.real(2), d.real(2)), {}, ShapeError, "axis 1 is out of range"),
        Bad((d.real(2, 3), np.ones((2, 3), complex)), {}, DTypeError, "got complex128"),
    ],
    namespace="nn",
)
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """`sum(x1 * x2) / (max(norm(x1), eps) * max(norm(x2), eps))` along the axis `dim`.

    >>> pb.nn.cosine_similarity(pb.tensor([[1.0, 0.0]]), pb.tensor([[1.0, 1.0]]))
    tensor([0.70710677], float32, cpu)
    """
    name = "cosine_similarity"
    x, y = floating(name, x1, x2)
    shape = broadcast_check(name, x, y)
    ndim = len(shape)
    axis = normalise_axis(name, dim, ndim)
    x, y = (expand_dims(a, tuple(range(ndim - a._aval.ndim))) for a in (x, y))
    x, y = (_repeated(a, axis, shape[axis]) for a in (x, y))
    units = [a / _at_least(norm(name, a, 2, axis, keepdims=True), eps) for a in (x, y)]
    return sum(units[0] * units[1], axis=axis)


def _pairwise_oracle(
    x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> np.ndarray:
    d = x1 - x2 + eps
    out = np.zeros(d.shape[:-1], d.real.dtype)
    for place in np.ndindex(out.shape):
        out[place] = _numpy_norm(d[place], p)
    return out[..., None] if keepdim else out


@composite(
    oracle=_pairwise_oracle,
    samples=lambda d: [
        Sample((d.real(2, 3), d.real(2, 3))),
        Sample((d.real(2, 3), d.real(3)), {"p": 1.5, "keepdim": True}),
        Sample((d.distinct(2, 4), np.zeros(4, d.dtype)), {"p": inf}),
        Sample((d.distinct(3), np.zeros(3, d.dtype)), {"p": 1, "eps": 1e-3}),
        Sample((d.real(0, 3), d.real(0, 3))),
    ],
    errors=lambda d: [
        Bad((d.real(2, 3), d.real(2, 2)), {}, ShapeError, "do not broadcast"),
        Bad((d.real(), d.real()), {}, ShapeError, "at least one dimension"),
        Bad((d.real(2), d.real(2)), _BAD_P, ShapeError, "p must be"),
    ],
    namespace="nn",
)
def pairwise_distance(
    x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Any:
    """The p-norm of `x1 - x2 + eps` along the last axis.

    >>> pb.nn.pairwise_distance(pb.tensor([[3.0, 4.0]]), pb.tensor([[0.0, 0.0]]))
    tensor([5.0000014], float32, cpu)
    """
    x, y = inexact("pairwise_distance", x1, x2)
    if not broadcast_check("pairwise_distance", x, y):
        raise ShapeError("pairwise_distance: vectors have at least one dimension, got 0-d arrays.")
    return norm("pairwise_distance", x - y + eps, p, -1, keepdim)


# -- all pairs -------------------------------------------------------------------------------------


def _cdist_oracle(x1: Any, x2: Any, p: float = 2.0, compute_mode: str = "") -> np.ndarray:
    lead = np.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    x = np.broadcast_to(x1, lead + x1.shape[-2:])
    y = np.broadcast_to(x2, lead + x2.shape[-2:])
    out = np.zeros((*lead, x.shape[-2], y.shape[-2]), x.dtype)
    for place in np.ndindex(out.shape):
        *batch, i, j = place
        out[place] = _numpy_norm(x[(*batch, i)] - y[(*batch, j)], p)
    return out


def _cdist_samples(d: Draw) -> list[Sample]:
    x, y = d.distinct(9, 2), d.dtype.type(0.4)
    found = [Sample((x[:2], x[2:5] + y), {"p": p}, 3 if p else 0) for p in P_VALUES]
    equal = d.distinct(2, 3)
    return [
        *found,
        Sample((d.real(2, 1, 2, 2), d.real(2, 3, 2))),
        Sample((d.real(2, 3), d.real(3, 3)), {"compute_mode": MODES[1]}),
        Sample((d.real(3, 26), d.real(2, 26)), {}, 2),
        Sample((equal, equal.copy()), order=0),
        Sample((d.real(0, 3), d.real(2, 3))),
        Sample((d.real(2, 0), d.real(2, 0))),
    ]


@composite(
    oracle=_cdist_oracle,
    samples=_cdist_samples,
    errors=lambda d: [
        Bad((d.real(3), d.real(2, 3)), {}, ShapeError, "at least 2 dimensions"),
        Bad((d.real(2, 3), d.real(2, 2)), {}, ShapeError, "vectors of one length"),
        Bad((d.real(2, 1, 3), d.real(3, 1, 3)), {}, ShapeError, "do not broadcast"),
        Bad((d.real(2, 3), d.real(2, 3)), _BAD_P, ShapeError, "p must be"),
        Bad((d.real(2, 3), d.real(2, 3)), {"compute_mode": "fast"}, DTypeError, "compute_mode"),
        Bad((d.real(2, 3), np.ones((2, 3), complex)), {}, DTypeError, "got complex128"),
    ],
    namespace="nn",
    tolerance=8.0,  # distances made of products lose a few digits to cancellation
)
def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: str = MODES[0]) -> Any:
    """The p-norms of the differences of all pairs of rows, (..., P, M) and (..., R, M).

    With p = 2 and rows of more than 25 elements, distances are made of matrix products, which is
    quicker and loses digits where rows are close; `compute_mode` decides otherwise. The derivatives
    of a distance of 0 are 0; those of equally far components with p = inf are shared by these.

    >>> pb.nn.cdist(pb.tensor([[0.0, 0.0]]), pb.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[5., 1.]], float32, cpu)
    """
    x, y = floating("cdist", x1, x2)
    option("cdist", "compute_mode", compute_mode, MODES)
    a, b = x._aval.shape, y._aval.shape
    if len(a) < 2 or len(b) < 2:
        raise ShapeError(f"cdist: arrays need at least 2 dimensions, got shapes {a} and {b}.")
    if a[-1] != b[-1]:
        raise ShapeError(f"cdist: rows must be vectors of one length, got shapes {a} and {b}.")
    lead = broadcast_shapes("cdist", a[:-2], b[:-2])
    is_long = compute_mode == MODES[0] and a[-1] > LONG
    if p == 2 and (is_long or compute_mode == MODES[1]):
        return _by_products(x, y)
    return _all_pairs("cdist", x, y, p, lead)


def _differences(name: str, x: Any, y: Any, p: float) -> Any:
    return norm(name, expand_dims(x, -2) - expand_dims(y, -3), p, -1)


_fused_differences = fused(_differences)


def _all_pairs(name: str, x: Any, y: Any, p: float, lead: tuple[int, ...] = ()) -> Any:
    """The norms of all differences of rows; where these are many they are not stored."""
    many = prod(lead) * prod(x._aval.shape[-2:]) * y._aval.shape[-2]
    return (_fused_differences if many >= LARGE else _differences)(name, x, y, p)


def _by_products(x: Any, y: Any) -> Any:
    """Euclidean distances from `|x|**2 + |y|**2 - 2 * x @ y`, never below 0."""
    products = matmul(x, matrix_transpose(y))
    own = sum(x * x, axis=-1, keepdims=True), expand_dims(sum(y * y, axis=-1), -2)
    return _root(own[0] + own[1] - products * 2.0, 2)


def _pdist_oracle(input: Any, p: float = 2.0) -> np.ndarray:
    n = len(input)
    found = [_numpy_norm(input[i] - input[j], p) for i in range(n) for j in range(i + 1, n)]
    return np.asarray(found, input.dtype)


@composite(
    oracle=_pdist_oracle,
    samples=lambda d: [
        *[Sample((d.distinct(3, 2),), {"p": p}, 3 if p else 0) for p in P_VALUES],
        Sample((np.ones((3, 2), d.dtype),), order=0),
        Sample((d.real(1, 2),)),
        Sample((d.real(0, 2),)),
    ],
    errors=lambda d: [
        Bad((d.real(3),), {}, ShapeError, "a matrix"),
        Bad((d.real(3, 2),), _BAD_P, ShapeError, "p must be"),
        Bad((np.ones((2, 3), complex),), {}, DTypeError, "got complex128"),
    ],
    namespace="nn",
)
def pdist(input: Any, p: float = 2.0) -> Any:
    """The distances of all pairs of rows of a matrix, each once: (0, 1), (0, 2), ..., (1, 2), ...

    >>> pb.nn.pdist(pb.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]))
    tensor([5.       , 1.       , 4.2426405], float32, cpu)
    """
    (x,) = floating("pdist", input)
    if x._aval.ndim != 2:
        raise ShapeError(f"pdist: expected a matrix, got shape {x._aval.shape}.")
    n = x._aval.shape[0]
    above = np.flatnonzero(np.triu(np.ones((n, n), bool), 1))
    distances = reshape(_all_pairs("pdist", x, x, p), (n * n,))
    return take(distances, from_numpy(above, x._aval.device), axis=0)
