"""Least squares and pseudoinverses, by singular values.

`x = A^+ b` with `y = A^+H g`, `u = A^+ y`, `r = b - A x`, `h = g - A^+ A g`: the cotangent of A is
`-y x^H + r u^H + A^+H x h^H` (Golub and Pereyra 1973), at fixed rank. Every product with A^+ is the
operation itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pullback.core.dtypes import int64
from pullback.core.errors import ShapeError
from pullback.ir.array import Array
from pullback.ir.convert import as_array, is_number
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.linalg.arguments import (
    adjoint,
    detached,
    given,
    largest,
    matrices,
    matrix_errors,
    regular,
    spacing,
    swapped,
    together,
    zero_rule,
)
from pullback.linalg.hermitian import real_part
from pullback.linalg.singular import known_values, packed, parts, svdvals
from pullback.ops.creation import eye, zeros
from pullback.ops.families import composite, primitive, sum_to
from pullback.ops.movement import aligned, broadcast_to, repeated, reshape
from pullback.ops.parts import astype, conj, real
from pullback.ops.products import matmul
from pullback.ops.reductions import sum as sum_
from pullback.ops.selection import where

__all__ = ["lstsq", "matrix_rank", "pinv"]


class LstsqResult(NamedTuple):
    """The solution, the sums of squares that remain, the rank, the singular values."""

    solution: Any
    residuals: Any
    rank: Any
    singular_values: Any


# -- products with a pseudoinverse ---------------------------------------------------------------


def _solved(a: Any, b: Any, f: Any, s: Any, turned: bool) -> Any:
    """A^+ b, or A^+H b if `turned`, by the packed singular vectors and inverse singular values."""
    u, _, vh = parts(detached(f), a._aval, False)
    left, right = (adjoint(vh), adjoint(u)) if turned else (u, vh)
    inverse = reshape(detached(s), (*s._aval.shape, 1))
    value = matmul(adjoint(right), inverse * matmul(adjoint(left), detached(b)))
    return bind(pinv.op, a, b, f, s, value, turned=turned)


def _around(a: Any, f: Any, s: Any, turned: bool) -> tuple[Any, ...]:
    """For the matrix whose pseudoinverse is applied: products with it, with its pseudoinverse, and
    with the adjoints of both.
    """
    own = adjoint(a) if turned else a
    return (
        lambda z: matmul(own, z),
        lambda z: _solved(a, z, f, s, turned),
        lambda z: matmul(adjoint(own), z),
        lambda z: _solved(a, z, f, s, not turned),
    )


def _vjp_a(g: Any, a: Any, b: Any, f: Any, s: Any, out: Any, turned: bool) -> Any:
    times, inverse, _, inverse_adjoint = _around(a, f, s, turned)
    y = inverse_adjoint(g)
    u = inverse(y)
    r, h = b - times(out), g - inverse(times(g))
    found = matmul(r, adjoint(u)) + matmul(inverse_adjoint(out), adjoint(h))
    found = found - matmul(y, adjoint(out))
    return adjoint(found) if turned else found


def _jvp_a(t: Any, a: Any, b: Any, f: Any, s: Any, out: Any, turned: bool) -> Any:
    times, inverse, _, inverse_adjoint = _around(a, f, s, turned)
    t = adjoint(t) if turned else t
    r = b - times(out)
    first = inverse(inverse_adjoint(matmul(adjoint(t), r)) - matmul(t, out))
    other = matmul(adjoint(t), inverse_adjoint(out))
    return first + other - inverse(times(other))


def _inverse_values(a: Any, f: Any, rtol: Any) -> Any:
    """1 / s for the singular values above `rtol` times the largest, 0 for the others."""
    s = real_part(parts(detached(f), a._aval, False)[1])
    kept = _counted(a, s, rtol)
    return where(kept, 1.0 / where(kept, s, 1.0), 0.0)


def _counted(a: Any, s: Any, rtol: Any) -> Any:
    """Which singular values are not 0."""
    if rtol is None:
        rtol = max(a._aval.shape[-2:]) * spacing(s)
    if isinstance(rtol, Array):
        rtol = reshape(rtol, (*rtol._aval.shape, 1))
    return s > reshape(largest(s, -1), (*s._aval.shape[:-1], 1)) * rtol


def _tolerance(name: str, rtol: Any) -> Any:
    if rtol is None or is_number(rtol):
        return rtol
    return detached(as_array(rtol, name))


def deficient(d: Draw, m: int, n: int, rank: int) -> np.ndarray:
    """A matrix of a rank, with singular values far apart."""
    wide = np.complex128 if d.dtype.kind == "c" else np.float64
    u, v = (np.linalg.qr(d.real(size, rank).astype(wide))[0] for size in (m, n))
    return (u * (2.0 + np.arange(rank)) @ np.conj(v.T)).astype(d.dtype)


def _batch(op: Any, a: Any, b: Any, f: Any, s: Any, v: Any, turned: bool, examples: int) -> Any:
    v = repeated(v, examples)
    ndim = v._aval.ndim - 1
    matrices = [aligned(x, ndim) for x in (a, b, f)]
    return bind(op, *matrices, aligned(s, ndim - 1), v, turned=turned)


@primitive(
    "a b f s v",
    infer=lambda a, b, f, s, v, turned: (v.shape, v.dtype),
    lowering=given(4),
    vjp={
        "a": _vjp_a,
        "b": lambda g, a, f, s, turned: _solved(a, g, f, s, not turned),
        "f": zero_rule,
        "s": zero_rule,
        "v": zero_rule,
    },
    jvp={
        "a": _jvp_a,
        "b": lambda t, a, f, s, turned: _solved(a, t, f, s, turned),
    },
    unbroadcast=sum_to,
    batch=_batch,
    oracle=lambda x, *, rtol=None: np.linalg.pinv(
        x, rtol=max(x.shape[-2:]) * np.finfo(x.dtype).eps if rtol is None else rtol
    ),
    samples=lambda d: [
        Sample((regular(d, 3, 3),)),
        Sample((regular(d, 4, 2),)),
        Sample((regular(d, 2, 4),)),
        Sample((regular(d, 2, 3, 2),)),
        Sample((regular(d, 3, 2),), {"rtol": 1e-3}),
        Sample((d.real(0, 2),)),
        Sample((deficient(d, 4, 3, 2),), {"rtol": 1e-4}, order=0),
    ],
    errors=matrix_errors,
    namespace="linalg",
    tolerance=16,
)
def pinv(x: Any, /, *, rtol: Any = None) -> Any:
    """The pseudoinverse of matrices: singular values up to `rtol` times the largest count as 0.

    `rtol` is a number or one for each matrix, by default max(m, n) times the spacing of numbers.
    The derivative is that at fixed rank.

    >>> pb.linalg.pinv(pb.tensor([[2.0, 0.0], [0.0, 0.0]]))
    tensor([[0.5, 0. ],
            [0. , 0. ]], float32, cpu)
    """
    x = matrices("pinv", x)
    m, n = x._aval.shape[-2:]
    if min(m, n) == 0:
        return swapped(x)
    f = packed(detached(x))
    ones = eye(m, dtype=x._aval.dtype, device=x._aval.device)
    s = _inverse_values(x, f, _tolerance("pinv", rtol))
    return _solved(x, broadcast_to(ones, (*x._aval.shape[:-2], m, m)), f, s, False)


# -- least squares -------------------------------------------------------------------------------


def _lstsq_oracle(a: Any, b: Any, *, rcond: Any = None) -> tuple:
    rcond = max(a.shape[-2:]) * np.finfo(a.dtype).eps if rcond is None else rcond
    inverse = np.linalg.pinv(a, rtol=rcond)
    columns = b[..., None] if b.ndim == 1 else b
    x = inverse @ columns
    rest = np.sum(np.abs(columns - a @ x) ** 2, axis=-2)
    s = np.linalg.svd(a, compute_uv=False)
    rank = np.sum(s > rcond * s[..., :1], axis=-1)
    return (x[..., 0], rest[..., 0], rank, s) if b.ndim == 1 else (x, rest, rank, s)


@composite(
    oracle=_lstsq_oracle,
    samples=lambda d: [
        Sample((regular(d, 4, 2), d.real(4))),
        Sample((regular(d, 2, 4), d.real(2, 3))),
        Sample((regular(d, 2, 4, 2), d.real(4, 3))),
        Sample((deficient(d, 4, 3, 2), d.real(4, 2)), {"rcond": 1e-4}, order=0),
    ],
    errors=lambda d: [
        *[Bad((*bad.args, d.real(2, 1)), {}, bad.error, bad.match) for bad in matrix_errors(d)],
        Bad((d.real(3, 2), d.real(2)), {}, ShapeError, "a row for each row"),
    ],
    namespace="linalg",
    tolerance=32,
)
def lstsq(a: Any, b: Any, /, *, rcond: Any = None) -> LstsqResult:
    """The shortest `x` among those with the least `norm(a @ x - b)`; also the sums of squares that
    remain, for each column, the rank, and the singular values of `a`.

    Singular values up to `rcond` times the largest count as 0, by default max(m, n) times the
    spacing of numbers. The derivative is that at fixed rank. Unlike NumPy's, `residuals` are there
    for every rank.

    >>> a = pb.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    >>> pb.linalg.lstsq(a, pb.tensor([1.0, 3.0, 5.0])).rank
    tensor(2, int64, cpu)
    """
    a, b = together("lstsq", matrices("lstsq", a), b)
    vector = b._aval.ndim == 1
    b = reshape(b, (*b._aval.shape, 1)) if vector else b
    if b._aval.ndim < 2 or b._aval.shape[-2] != a._aval.shape[-2]:
        raise ShapeError(
            f"lstsq: the right-hand side needs a row for each row of the matrix, got shapes"
            f" {a._aval.shape} and {b._aval.shape}."
        )
    rcond = _tolerance("lstsq", rcond)
    f = packed(detached(a))
    values = known_values(a, f)
    x = _solved(a, b, f, _inverse_values(a, f, rcond), False)
    rest = b - matmul(a, x)
    squares = real(rest * conj(rest)) if rest._aval.dtype.is_complex else rest * rest
    left = sum_(squares, axis=-2)
    rank = sum_(astype(_counted(a, detached(values), rcond), int64), axis=-1)
    return LstsqResult(x[..., 0] if vector else x, left[..., 0] if vector else left, rank, values)


@composite(
    oracle=lambda x, *, rtol=None: np.linalg.matrix_rank(
        x, rtol=max(x.shape[-2:]) * np.finfo(x.dtype).eps if rtol is None else rtol
    ),
    samples=lambda d: [
        Sample((regular(d, 3, 3),)),
        Sample((np.stack([np.eye(3), np.diag([1.0, 1.0, 0.0])]).astype(d.dtype),)),
        Sample((np.diag([1.0, 0.1]).astype(d.dtype),), {"rtol": 0.2}),
        Sample((np.zeros((2, 3), d.dtype),)),
    ],
    errors=matrix_errors,
    namespace="linalg",
    differentiable=False,
)
def matrix_rank(x: Any, /, *, rtol: Any = None) -> Any:
    """How many singular values are above `rtol` times the largest: by default max(m, n) times the
    spacing of numbers.

    >>> pb.linalg.matrix_rank(pb.tensor([[1.0, 2.0], [2.0, 4.0]]))
    tensor(1, int64, cpu)
    """
    x = detached(matrices("matrix_rank", x))
    if min(x._aval.shape[-2:]) == 0:
        return zeros(x._aval.shape[:-2], dtype=int64, device=x._aval.device)
    counted = _counted(x, svdvals(x), _tolerance("matrix_rank", rtol))
    return sum_(astype(counted, int64), axis=-1)
