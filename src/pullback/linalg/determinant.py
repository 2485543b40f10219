"""Determinants, with derivatives that are right at singular matrices too.

The derivative of the determinant is the adjugate. `det(A) A^-1` is of no use where A is singular,
so small pivots are lifted first: with `A = P L U`, `B = A + P L D` for a diagonal D that makes the
pivots as large as their columns, and `A = B (I - Y E)` where Y holds the few columns of
`B^-1 P L D` that are not 0, E the rows of the identity that belong to them. Then

    adj(A) = det(B) (det(I - E Y) B^-1 + Y adj(I - E Y) E B^-1)

has no division by anything small, and so have its derivatives: `B - A` is constant, and the small
determinant and adjugate are polynomials. For a few rows so is the whole adjugate, by its minors.

The cofactors of small real matrices are an operation of their own, made in one pass: by minors, or
of the factors, of which `adj(U) L^-1 P^T` is a polynomial. Its derivatives are those of the
formulas above.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pullback.autodiff.reverse import cotangents, enable_grad, fresh
from pullback.compile.kernel.factor_order import MINORS, SMALL, minors
from pullback.ir.cost import matrix_work
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import bind
from pullback.ir.samples import Draw, Sample
from pullback.linalg.arguments import (
    adjoint as adjoint_of,
)
from pullback.linalg.arguments import (
    detached,
    diagonal_of,
    floats,
    given,
    largest,
    like_eye,
    regular,
    spacing,
    square,
    square_errors,
    swapped,
    zero_rule,
)
from pullback.linalg.lu import exchanges, factor, packed_lu, restored, solved, taken
from pullback.ops.arithmetic import abs as abs_
from pullback.ops.arrangement import moveaxis, stack
from pullback.ops.creation import eye, ones_like
from pullback.ops.diagonals import tril
from pullback.ops.exponential import log
from pullback.ops.families import composite, primitive
from pullback.ops.movement import reshape
from pullback.ops.parts import astype, conj, imag, real
from pullback.ops.products import matmul
from pullback.ops.ranges import positions
from pullback.ops.reductions import prod
from pullback.ops.reductions import sum as sum_
from pullback.ops.selection import where
from pullback.ops.sorting import argsort

__all__ = ["det", "slogdet"]

LIFTED = 4  # pivots that may be lifted: derivatives are right up to this order at any rank


def pivots(f: Any) -> Any:
    """The diagonal of U."""
    return diagonal_of(f[..., :-2, :])


def parity(f: Any) -> Any:
    """1 or -1: the determinant of the permutation."""
    n = f._aval.shape[-1]
    moved = exchanges(f) != positions(n, f._aval.device)
    ones = eye(1, dtype=f._aval.dtype, device=f._aval.device)[0, 0]
    return prod(where(moved, -ones, ones), axis=-1)


def determinant(x: Any, f: Any) -> Any:
    """The determinant of matrices with a packed factorisation."""
    return bind(det.op, x, detached(f))


class _Lifted(NamedTuple):
    """B, its packed factorisation, and what leads back: A = B - columns E."""

    matrix: Any
    factor: Any
    columns: Any
    rows: Any  # which rows E takes
    too_many: Any  # whether more pivots were lifted than there are columns


def _lifted(x: Any, f: Any) -> _Lifted:
    f = detached(f)
    n = x._aval.shape[-1]
    count = min(n, LIFTED)
    size = largest(x, -2)
    diagonal_ = pivots(f)
    small = abs_(diagonal_) <= n * spacing(size) * size
    target = where(size > 0, size, 1.0)
    added = astype(where(small, target, 0.0), f._aval.dtype) - where(small, diagonal_, 0.0)
    square_ones = like_eye(x)
    lower = restored(tril(packed_lu(f), k=-1) + square_ones, f)
    more = lower * reshape(added, (*added._aval.shape[:-1], 1, n))
    rows = argsort(astype(small, size._aval.dtype), descending=True)[..., :count]
    columns = swapped(taken(swapped(more), rows))
    ones = eye(n + 2, n, dtype=f._aval.dtype, device=f._aval.device)
    raised = f + ones * reshape(added, (*added._aval.shape[:-1], 1, n))
    many = sum_(astype(small, positions(1, f._aval.device)._aval.dtype), axis=-1) > count
    return _Lifted(x + more, raised, columns, rows, many)


def _small_adjugate(x: Any) -> tuple[Any, Any]:
    """The determinant and the adjugate of r x r matrices as polynomials (Faddeev and LeVerrier)."""
    r = x._aval.shape[-1]
    ones = like_eye(x)
    m, c = ones, None
    for k in range(1, r + 1):
        product = matmul(x, m)
        c = sum_(diagonal_of(product), axis=-1) * (-1.0 / k)
        if k < r:
            m = product + reshape(c, (*c._aval.shape, 1, 1)) * ones
    assert c is not None
    return (c if r % 2 == 0 else -c), (m if r % 2 else -m)


def _by_minors(x: Any) -> Any:
    """The adjugate of matrices of a few rows, by expansion: a polynomial of the elements."""
    n = x._aval.shape[-1]
    if x._aval.size == 0:
        return x
    found = minors(n, lambda i, j: x[..., i, j], ones_like(x[..., 0, 0]))
    signed = [found[j * n + i] for i in range(n) for j in range(n)]
    # Each entry is written to memory of its own, and all are turned at once.
    return reshape(moveaxis(stack(signed, axis=0), 0, -1), x._aval.shape)


def adjugate(x: Any, f: Any) -> Any:
    """The transposed matrix of cofactors, of matrices with a packed factorisation."""
    if 2 <= x._aval.shape[-1] <= SMALL and not x._aval.dtype.is_complex:
        # Minors need no factors, which are not kept for them then.
        factors = x if x._aval.shape[-1] <= MINORS else f
        return swapped(bind(cofactors.op, x, detached(factors)))
    return _composed(x, f)


def _composed(x: Any, f: Any) -> Any:
    """The adjugate by operations that have derivatives: by minors, or the formula above."""
    if x._aval.shape[-1] <= MINORS:
        return _by_minors(x)
    b = _lifted(x, f)
    inverse = solved(b.matrix, like_eye(x), b.factor)
    y = solved(b.matrix, b.columns, b.factor)
    small = like_eye(taken(y, b.rows)) - taken(y, b.rows)
    value, inner = _small_adjugate(small)
    back = matmul(y, matmul(inner, taken(inverse, b.rows)))
    scale = determinant(b.matrix, b.factor)
    scale = where(b.too_many, 0.0, scale)
    shape = (*scale._aval.shape, 1, 1)
    return reshape(scale, shape) * (reshape(value, shape) * inverse + back)


def _spread(g: Any) -> Any:
    return reshape(g, (*g._aval.shape, 1, 1))


def _trace_of_product(x: Any, y: Any) -> Any:
    return sum_(x * swapped(y), axis=(-2, -1))


def _curvature(g: Any, x: Any, f: Any) -> Any:
    """The derivative of the cofactors in a direction, and of their product with a cotangent: the
    second derivative of the determinant is symmetric.
    """
    with enable_grad():
        v = fresh(x)
        out = swapped(_composed(v, f))
    (found,) = cotangents([out], [g], [v], retain=True)
    return found


def singular(d: Draw, n: int, rank: int) -> np.ndarray:
    """A matrix whose rank is exact, because its factors are powers of 2."""
    powers = 2.0 ** np.arange(n)
    lower = np.tril(np.outer(1 / powers, powers))[:, :rank]
    upper = np.triu(np.outer(powers, 1 / powers) * (1 + np.arange(n)[:, None]))[:rank]
    return (lower @ upper).astype(d.dtype)


def _cofactors_oracle(x: Any) -> Any:
    x = x.astype(np.result_type(x.dtype, np.float32))
    n, out = x.shape[-1], np.empty_like(x)
    for i, j in np.ndindex(n, n):
        minor = np.delete(np.delete(x, i, -2), j, -1)
        out[..., i, j] = (-1) ** (i + j) * np.linalg.det(minor)
    return out


@primitive(
    "x f",
    infer=lambda x, f: (x.shape, x.dtype),
    lowering=Intrinsic("cofactors", work=matrix_work),
    vjp={"x": _curvature, "f": zero_rule},
    jvp={"x": lambda t, x, f: _curvature(t, x, f)},
    batch="rows",
    oracle=_cofactors_oracle,
    samples=lambda d: [
        Sample((regular(d, 5, 5) / 3,)),
        Sample((regular(d, 2, 6, 6)[..., [1, 0, 3, 2, 5, 4], :] / 3,), order=2),
        Sample((regular(d, 2, 10, 10) / 5,), order=0),
        Sample((singular(d, 5, rank=4),)),
        Sample((singular(d, 5, rank=3),)),
        Sample((np.zeros((5, 5), d.dtype),), order=2),
        Sample((regular(d, 3, 3) / 3,)),
        Sample((regular(d, 2, 4, 4)[..., [1, 0, 3, 2], :] / 3,)),
        Sample((singular(d, 4, rank=2),)),
        Sample((np.asarray([[1, 2], [2, 4]], d.dtype),)),
        Sample((d.real(1, 1),)),
        Sample((d.real(0, 0),)),
    ],
    errors=square_errors,
    namespace="primitive",
    tolerance=8,
)
def cofactors(x: Any, /) -> Any:
    """The matrix of cofactors of square matrices: the derivative of the determinant.

    >>> pb.primitive.cofactors(pb.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[ 4., -3.],
            [-2.,  1.]], float32, cpu)
    """
    x = square("cofactors", x)
    return swapped(adjugate(x, factor(detached(x))))


@primitive(
    "x f",
    infer=lambda x, f: (x.shape[:-2], x.dtype),
    lowering=Intrinsic("det", work=matrix_work),
    vjp={
        "x": lambda g, x, f: _spread(g) * adjoint_of(adjugate(x, f)),
        "f": zero_rule,
    },
    jvp={"x": lambda t, x, f: _trace_of_product(adjugate(x, f), t)},
    batch="rows",
    oracle=floats(np.linalg.det),
    samples=lambda d: [
        Sample((regular(d, 3, 3) / 3,)),
        Sample((regular(d, 2, 4, 4)[..., [1, 0, 3, 2], :] / 3,)),
        Sample((d.real(1, 1),)),
        Sample((d.real(0, 0),)),
        Sample((singular(d, 3, rank=2),)),
        Sample((singular(d, 3, rank=1),)),
        Sample((singular(d, 5, rank=3),)),
        Sample((np.zeros((3, 3), d.dtype),)),
        Sample((np.diag(np.asarray([1, 2, 0], d.dtype)),)),
        Sample((np.asarray([[1, 2], [2, 4]], d.dtype),)),
        Sample((d.integers(3, 3),)),
    ],
    errors=square_errors,
    namespace="linalg",
    tolerance=4,
)
def det(x: Any, /) -> Any:
    """The determinant of square matrices.

    >>> pb.linalg.det(pb.tensor([[1.0, 4.0], [2.0, 4.0]]))
    tensor(-4., float32, cpu)

    Its derivatives are right at singular matrices too; at those of rank below n - 4 up to order 4.
    """
    x = square("det", x)
    return determinant(x, factor(detached(x)))


# -- sign and logarithm --------------------------------------------------------------------------


class SlogdetResult(NamedTuple):
    """The sign (or phase) of the determinant, and the logarithm of its size."""

    sign: Any
    logabsdet: Any


def _inverse_adjoint(x: Any, f: Any, scale: Any) -> Any:
    """scale A^-H."""
    return solved(x, like_eye(x) * scale, f, adjoint=True, caller="slogdet")


def _inverse_times(x: Any, f: Any, t: Any) -> Any:
    """The trace of A^-1 t."""
    moved = solved(x, t, f, caller="slogdet")
    return sum_(diagonal_of(moved), axis=-1)


def _log_vjp(g: Any, x: Any, f: Any) -> Any:
    return _inverse_adjoint(x, f, astype(_spread(g), x._aval.dtype))


def _log_jvp(t: Any, x: Any, f: Any) -> Any:
    found = _inverse_times(x, f, t)
    return real(found) if found._aval.dtype.is_complex else found


@primitive(
    "x f v",
    infer=lambda x, f, v: (v.shape, v.dtype),
    lowering=given(2),
    vjp={"x": _log_vjp, "f": zero_rule, "v": zero_rule},
    jvp={"x": _log_jvp},
    batch="rows",
    oracle=lambda x: np.linalg.slogdet(x)[1],
    samples=lambda d: [Sample((regular(d, 3, 3),)), Sample((d.real(0, 0),))],
    errors=square_errors,
    namespace="primitive",
)
def log_det(x: Any, /) -> Any:
    """The logarithm of the size of the determinant.

    >>> pb.primitive.log_det(pb.tensor([[2.0, 0.0], [0.0, -0.5]]))
    tensor(0., float32, cpu)
    """
    x = square("log_det", x)
    return _log_size(x, factor(detached(x)))


def _log_size(x: Any, f: Any) -> Any:
    return bind(log_det.op, x, f, sum_(log(abs_(pivots(detached(f)))), axis=-1))


def _phase_vjp(g: Any, x: Any, f: Any, out: Any) -> Any:
    if not x._aval.dtype.is_complex:
        return None
    turn = imag(out * conj(g)) * -1.0
    return _inverse_adjoint(x, f, astype(_spread(turn), x._aval.dtype) * 1j)


def _phase_jvp(t: Any, x: Any, f: Any, out: Any) -> Any:
    if not x._aval.dtype.is_complex:
        return None
    return out * (astype(imag(_inverse_times(x, f, t)), out._aval.dtype) * 1j)


@primitive(
    "x f v",
    infer=lambda x, f, v: (v.shape, v.dtype),
    lowering=given(2),
    vjp={"x": _phase_vjp, "f": zero_rule, "v": zero_rule},
    jvp={"x": _phase_jvp},
    batch="rows",
    oracle=lambda x: np.linalg.slogdet(x)[0],
    samples=lambda d: [Sample((regular(d, 3, 3),)), Sample((np.zeros((2, 2), d.dtype),), order=0)],
    errors=square_errors,
    namespace="primitive",
)
def det_phase(x: Any, /) -> Any:
    """The determinant divided by its size; 0 where it is 0.

    >>> pb.primitive.det_phase(pb.tensor([[2.0, 0.0], [0.0, -0.5]]))
    tensor(-1., float32, cpu)
    """
    x = square("det_phase", x)
    return _phase(x, factor(detached(x)))


def _phase(x: Any, f: Any) -> Any:
    u = pivots(detached(f))
    size = abs_(u)
    unit = where(size == 0, 0.0, u / where(size == 0, 1.0, size))
    return bind(det_phase.op, x, f, prod(unit, axis=-1) * parity(f))


@composite(
    oracle=lambda x: tuple(np.linalg.slogdet(x)),
    samples=lambda d: [
        Sample((regular(d, 3, 3),)),
        Sample((regular(d, 2, 4, 4)[..., [1, 0, 3, 2], :],)),
        Sample((d.real(0, 0),)),
        Sample((np.ones((2, 2), d.dtype),), order=0),
    ],
    errors=square_errors,
    namespace="linalg",
)
def slogdet(x: Any, /) -> SlogdetResult:
    """The sign of the determinant (for complex matrices its phase) and the logarithm of its size.

    >>> pb.linalg.slogdet(pb.tensor([[2.0, 0.0], [0.0, -0.5]]))
    SlogdetResult(sign=tensor(-1., float32, cpu), logabsdet=tensor(0., float32, cpu))

    A singular matrix gives 0 and minus infinity, and has no derivative: that raises.
    """
    x = square("slogdet", x)
    f = factor(detached(x))
    return SlogdetResult(_phase(x, f), _log_size(x, f))
