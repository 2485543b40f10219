"""Singular values and singular vectors.

With `dP = U^H dA V`, Hermitian part H and skew part K, the vectors turn by `H / (s[j] - s[i])`
together and by `K / (s[i] + s[j])` against each other. As with eigenvectors, where such a
denominator is 0 (but for rounding) the rules take the factor 0, and raise where that would leave
something out: at equal singular values, and at several that are 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pullback.core.avals import Aval
from pullback.core.dtypes import int64
from pullback.core.errors import DTypeError
from pullback.ir.cost import matrix_work
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.linalg.arguments import (
    adjoint,
    detached,
    diagonal_of,
    given,
    largest,
    matrices,
    matrix_errors,
    on_diagonal,
    skew_part,
    spacing,
    zero_rule,
)
from pullback.linalg.checks import vanishing
from pullback.linalg.hermitian import apart, real_part, within
from pullback.ops.arithmetic import abs as abs_
from pullback.ops.arrangement import expand_dims
from pullback.ops.creation import eye, zeros
from pullback.ops.families import primitive
from pullback.ops.logic import logical_and, logical_not, logical_or
from pullback.ops.movement import broadcast_to, concat, reshape
from pullback.ops.parts import astype, imag
from pullback.ops.products import matmul
from pullback.ops.reductions import any as any_
from pullback.ops.reductions import sum as sum_
from pullback.ops.requirements import require
from pullback.ops.selection import where

__all__ = ["svd", "svdvals"]


class SVDResult(NamedTuple):
    """Left singular vectors as columns, singular values, right singular vectors as rows."""

    U: Any
    S: Any
    Vh: Any


# `svd` binds singular values, then U and V^H row after row, in one row.


def _sizes(x: Aval, full: bool) -> tuple[int, int, int, int, int]:
    """m, n, k, columns of U, rows of V^H."""
    m, n = x.shape[-2:]
    k = min(m, n)
    return m, n, k, m if full else k, n if full else k


def _infer(x: Aval, full_matrices: bool) -> tuple:
    m, n, k, left, right = _sizes(x, full_matrices)
    return (*x.shape[:-2], k + m * left + right * n), x.dtype


def parts(flat: Any, x: Aval, full: bool) -> tuple[Any, Any, Any]:
    """U, the singular values in the dtype of the matrix, V^H."""
    m, n, k, left, right = _sizes(x, full)
    batch, end = x.shape[:-2], k + m * left
    u = reshape(flat[..., k:end], (*batch, m, left))
    return u, flat[..., :k], reshape(flat[..., end:], (*batch, right, n))


def packed(x: Any) -> Any:
    """The packed factors, of thin matrices."""
    return bind(svd.op, x, full_matrices=False)


def _packed(u: Any, s: Any, vh: Any) -> Any:
    batch = s._aval.shape[:-1]
    flat = [s, *[reshape(x, (*batch, -1)) for x in (u, vh)]]
    return concat(flat, axis=-1)


class _Factors(NamedTuple):
    """What the rules divide by, as factors that are 0 where there is nothing to divide by."""

    equal: Any  # pairs of equal singular values
    difference: Any  # 1 / (s[j] - s[i])
    total: Any  # 1 / (s[i] + s[j])
    inverse: Any  # 1 / s[j], as a row
    null: Any  # which s[j] are 0, as a row


def _factors(s: Any) -> _Factors:
    """The factors for real singular values."""
    n = s._aval.shape[-1]
    equal, difference = apart(s)
    rows = reshape(s, (*s._aval.shape, 1))
    columns = reshape(s, (*s._aval.shape[:-1], 1, n))
    bound = reshape(largest(s, -1) * (n * spacing(s)), (*s._aval.shape[:-1], 1, 1))
    total = rows + columns
    zero = detached(total) <= bound
    null = detached(columns) <= bound
    return _Factors(
        equal,
        difference,
        where(zero, 0.0, 1.0 / where(zero, 1.0, total)),
        where(null, 0.0, 1.0 / where(null, 1.0, columns)),
        null,
    )


_EQUAL = (
    "has equal singular values, and the function depends on what their vectors are: its derivative"
    " is not determined by singular values and vectors."
)
_NULL = (
    "has singular values that are 0, and the function depends on them: its derivative is not"
    " determined by singular values and vectors. For sums of singular values use linalg.svdvals."
)
_PHASE = (
    "has singular vectors that are free up to a phase, and the function depends on it: it has no"
    " derivative."
)
_FREE = (
    "has singular vectors beyond those of its singular values, which are free up to a rotation, and"
    " the function depends on it: it has no derivative."
)


def _ambiguous(null: Any, seen: Any, square: bool) -> Any:
    """Whether what is `seen` of null vectors (a row for each matrix) is free up to a rotation."""
    there = logical_and(null, seen)
    if square:
        several = sum_(astype(null, int64), axis=-1, keepdims=True) > 1
        there = logical_and(there, several)
    return any_(there, axis=(-2, -1))


def _vjp(g: Any, out: Any, x_aval: Aval, full_matrices: bool) -> Any:
    m, n, k, *_ = _sizes(x_aval, full_matrices)
    if k == 0:
        return zeros(x_aval.shape, dtype=x_aval.dtype, device=x_aval.device)
    u, s, vh = parts(out, x_aval, full_matrices)
    gu, gs, gvh = parts(g, x_aval, full_matrices)
    gs = real_part(gs)
    v, gv = adjoint(vh), adjoint(gvh)
    u1, v1, gu1, gv1 = u[..., :k], v[..., :k], gu[..., :k], gv[..., :k]
    f = _factors(real_part(s))
    p, q = matmul(adjoint(u1), gu1), matmul(adjoint(v1), gv1)
    both = largest(gu1, (-2, -1), keepdims=True) + largest(gv1, (-2, -1), keepdims=True)
    if p._aval.dtype.is_complex:
        phases = reshape(imag(detached(diagonal_of(p + q))), (*s._aval.shape, 1))
        p = require(p, vanishing(phases, both), "svd", _PHASE)
    p = require(p, vanishing(within(p + q, f.equal), both), "svd", _EQUAL)
    touched = [largest(z, -2, keepdims=True) > 0 for z in (gu1, gv1)]
    touched.append(reshape(abs_(detached(gs)) > 0, (*s._aval.shape[:-1], 1, k)))
    seen = logical_or(logical_or(touched[0], touched[1]), touched[2])
    p = require(p, logical_not(_ambiguous(f.null, seen, m == n)), "svd", _NULL)
    together, against = skew_part(p + q), skew_part(p - q)
    inner = on_diagonal(astype(gs, p._aval.dtype))
    inner = inner + (together * f.difference + against * f.total) * 0.5
    left = matmul(u1, inner)
    if m > k:
        left = left + (gu1 - matmul(u1, p)) * f.inverse
        if full_matrices:
            left = left - _beyond(u[..., k:], gu[..., k:], u1) * f.inverse
    found = matmul(left, adjoint(v1))
    if n > k:
        right = (gv1 - matmul(v1, q)) * f.inverse
        if full_matrices:
            right = right - _beyond(v[..., k:], gv[..., k:], v1) * f.inverse
        found = found + matmul(u1, adjoint(right))
    return found


def _beyond(rest: Any, g: Any, own: Any) -> Any:
    """What a function of the columns that complete a basis asks of its first columns."""
    flags = vanishing(skew_part(matmul(adjoint(rest), g)), g)
    return require(matmul(rest, matmul(adjoint(g), own)), flags, "svd", _FREE)


def _jvp(t: Any, out: Any, x_aval: Aval, full_matrices: bool) -> Any:
    m, n, k, *_ = _sizes(x_aval, full_matrices)
    u, s, vh = parts(out, x_aval, full_matrices)
    if k == 0:
        return detached(out) * 0.0
    v = adjoint(vh)
    u1, v1 = u[..., :k], v[..., :k]
    f = _factors(real_part(s))
    p = matmul(matmul(adjoint(u1), t), v1)
    symmetric, skew = (p + adjoint(p)) * 0.5, skew_part(p) * 0.5
    symmetric = require(symmetric, vanishing(within(symmetric, f.equal), t), "svd", _EQUAL)
    tv, tu = matmul(t, v1), matmul(adjoint(t), u1)
    seen = logical_or(*[_above(z, t) for z in (tv, tu)])
    symmetric = require(symmetric, logical_not(_ambiguous(f.null, seen, m == n)), "svd", _NULL)
    together, against = symmetric * f.difference, skew * f.total
    du, dv = matmul(u1, together + against), matmul(v1, together - against)
    if m > k:
        du = du + (tv - matmul(u1, p)) * f.inverse
    if n > k:
        dv = dv + (tu - matmul(v1, adjoint(p))) * f.inverse
    if full_matrices and m > k:
        du = concat([du, -_turned(u1, u[..., k:], tv * f.inverse)], axis=-1)
    if full_matrices and n > k:
        dv = concat([dv, -_turned(v1, v[..., k:], tu * f.inverse)], axis=-1)
    return _packed(du, diagonal_of(symmetric), adjoint(dv))


def _above(x: Any, scale: Any) -> Any:
    """Which columns are not 0 beside the largest element of `scale`, as a row."""
    bound = largest(scale, (-2, -1), keepdims=True) * spacing(x) ** 0.5
    return largest(x, -2, keepdims=True) > bound


def _turned(own: Any, rest: Any, moved: Any) -> Any:
    """How far the columns `rest` that complete a basis turn towards its first columns."""
    return matmul(own, adjoint(matmul(adjoint(rest), moved)))


def _determined(xp: Any, outs: list) -> list:
    """The singular values, u v^H of each pair, and the projectors on what is beyond."""
    u, s, vh = outs
    k = s.shape[-1]
    pairs = xp.einsum("...ij,...jk->...jik", u[..., :k], vh[..., :k, :])
    rest = [
        xp.einsum("...ij,...kj->...ik", u[..., k:], xp.conj(u[..., k:])),
        xp.einsum("...ji,...jk->...ik", xp.conj(vh[..., k:, :]), vh[..., k:, :]),
    ]
    return [s, pairs, *rest]


def spread_values(d: Draw, *shape: int) -> np.ndarray:
    """Matrices with singular values that are far apart and not near 0."""
    x = d.real(*shape) * d.dtype.type(0.4)
    n = min(shape[-2:])
    x[..., np.arange(n), np.arange(n)] += np.asarray(3 + np.arange(n) * 4.0, d.dtype)
    return x


def _samples(d: Draw) -> list[Sample]:
    return [
        Sample((spread_values(d, 3, 3),)),
        Sample((spread_values(d, 4, 2),), {"full_matrices": False}),
        Sample((spread_values(d, 2, 2, 4),), {"full_matrices": False}),
        Sample((spread_values(d, 4, 2),), order=2),
        Sample((spread_values(d, 2, 3),), order=2),
        Sample((d.real(0, 3),), {"full_matrices": False}),
        Sample((d.real(3, 0),)),
        Sample((spread_values(d, 30, 40),), {"full_matrices": False}, order=0),
    ]


@primitive(
    "x",
    infer=_infer,
    lowering=Intrinsic("svd", raises=True, work=matrix_work),
    vjp={"x": _vjp},
    jvp={"x": _jvp},
    batch="rows",
    oracle=lambda x, *, full_matrices=True: tuple(np.linalg.svd(x, full_matrices=full_matrices)),
    samples=_samples,
    errors=lambda d: [
        *matrix_errors(d),
        Bad((d.real(2, 2),), {"full_matrices": "no"}, DTypeError, "full_matrices is a bool"),
    ],
    namespace="linalg",
    tolerance=16,
    determined=_determined,
)
def svd(x: Any, /, *, full_matrices: bool = True) -> SVDResult:
    """The factors of `x = U[:, :k] @ diag(S) @ Vh[:k, :]`: orthonormal columns, decreasing singular
    values, orthonormal rows; k = min(m, n).

    With `full_matrices` U and Vh are square, else k columns and k rows. Signs and phases are those
    of LAPACK. A derivative that depends on them, or on which vectors stand for equal singular
    values or complete the basis, does not exist: that raises.

    >>> pb.linalg.svd(pb.tensor([[0.0, 2.0], [3.0, 0.0]])).S
    tensor([3., 2.], float32, cpu)
    """
    if not isinstance(full_matrices, bool):
        raise DTypeError(f"svd: full_matrices is a bool, got {full_matrices!r}.")
    x = matrices("svd", x)
    av = x._aval
    if min(av.shape[-2:]) == 0:
        return _empty(x, full_matrices)
    u, s, vh = parts(bind(svd.op, x, full_matrices=full_matrices), av, full_matrices)
    return SVDResult(u, real_part(s), vh)


def _empty(x: Any, full: bool) -> SVDResult:
    """The factors of a matrix without rows or columns."""
    av = x._aval
    m, n, _, left, right = _sizes(av, full)
    batch = av.shape[:-2]
    u, vh = (
        broadcast_to(eye(*shape, dtype=av.dtype, device=av.device), (*batch, *shape))
        for shape in ((m, left), (right, n))
    )
    return SVDResult(u, zeros((*batch, 0), dtype=av.dtype.real, device=av.device), vh)


def _values_vjp(g: Any, x: Any) -> Any:
    u, _, vh = _thin(x)
    return matmul(u * astype(expand_dims(g, -2), x._aval.dtype), vh)


def _values_jvp(t: Any, x: Any) -> Any:
    u, _, vh = _thin(x)
    return real_part(diagonal_of(matmul(matmul(adjoint(u), t), adjoint(vh))))


def _thin(x: Any) -> tuple[Any, Any, Any]:
    return parts(packed(x), x._aval, False)


@primitive(
    "x",
    infer=lambda x: ((*x.shape[:-2], min(x.shape[-2:])), x.dtype.real),
    lowering=Intrinsic("svdvals", raises=True, work=matrix_work),
    vjp={"x": _values_vjp},
    jvp={"x": _values_jvp},
    batch="rows",
    oracle=lambda x: np.linalg.svd(x, compute_uv=False),
    samples=lambda d: [Sample(s.args, {}, s.order) for s in _samples(d)],
    errors=matrix_errors,
    namespace="linalg",
    tolerance=16,
)
def svdvals(x: Any, /) -> Any:
    """The singular values of matrices, in decreasing order.

    The first derivative has no division: it is right where singular values are equal too, for
    functions in which these count alike, and a subgradient where they are 0.

    >>> pb.linalg.svdvals(pb.tensor([[0.0, 2.0], [3.0, 0.0]]))
    tensor([3., 2.], float32, cpu)
    """
    return bind(svdvals.op, matrices("svdvals", x))


@primitive(
    "x v",
    infer=lambda x, v: (v.shape, v.dtype),
    lowering=given(1),
    vjp={"x": _values_vjp, "v": zero_rule},
    jvp={"x": _values_jvp},
    batch="rows",
    oracle=lambda x: np.linalg.svd(x, compute_uv=False),
    samples=lambda d: [Sample((spread_values(d, 3, 2),))],
    errors=matrix_errors,
    namespace="primitive",
    tolerance=16,
)
def known_svdvals(x: Any, /) -> Any:
    """The singular values, taken from factors that are there for something else.

    >>> pb.primitive.known_svdvals(pb.tensor([[0.0, 2.0], [3.0, 0.0]]))
    tensor([3., 2.], float32, cpu)
    """
    x = matrices("known_svdvals", x)
    return known_values(x, packed(detached(x)))


def known_values(x: Any, f: Any) -> Any:
    """The singular values from the packed factors."""
    return bind(known_svdvals.op, x, real_part(parts(detached(f), x._aval, False)[1]))
