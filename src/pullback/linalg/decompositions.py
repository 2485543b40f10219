"""Decompositions that are made of others: polar form, symmetric indefinite matrices, generalised
eigenvalues, bases of range and null space.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.linalg.arguments import (
    adjoint,
    detached,
    given,
    hermitian,
    matrices,
    matrix_errors,
    positive,
    regular,
    skew_part,
    square,
    square_errors,
    together,
    zero_rule,
)
from pullback.linalg.equations import packed_schur, sylvester
from pullback.linalg.hermitian import EighResult, eigh, projectors
from pullback.linalg.lu import solve
from pullback.linalg.singular import packed, parts, spread_values, svd, svdvals
from pullback.linalg.triangular import cholesky, hermitian_part, triangular
from pullback.ops.families import composite, primitive
from pullback.ops.products import matmul

__all__ = ["generalized_eigh", "null_space", "orth", "polar"]


class PolarResult(NamedTuple):
    """A matrix with orthonormal columns or rows, and a positive semidefinite one."""

    U: Any
    P: Any


# The polar factor U of a matrix A = U P at least as tall as wide: dU = U X + (1 - U U^H) dA P^-1
# with P X + X P = U^H dA - dA^H U.


def _polar_vjp(g: Any, x: Any, out: Any) -> Any:
    p = hermitian_part(matmul(adjoint(out), x))
    inner = matmul(adjoint(out), g)
    f = packed_schur(p)
    found = matmul(out, skew_part(sylvester(p, p, inner, f, f, True, "polar")))
    rest = g - matmul(out, inner)
    return found if x._aval.shape[-1] == x._aval.shape[-2] else found + _over(rest, p)


def _polar_jvp(t: Any, x: Any, out: Any) -> Any:
    p = hermitian_part(matmul(adjoint(out), x))
    inner = matmul(adjoint(out), t)
    f = packed_schur(p)
    found = matmul(out, sylvester(p, p, skew_part(inner), f, f, False, "polar"))
    rest = t - matmul(out, inner)
    return found if x._aval.shape[-1] == x._aval.shape[-2] else found + _over(rest, p)


def _over(x: Any, p: Any) -> Any:
    """x P^-1 for Hermitian P."""
    return adjoint(solve(p, adjoint(x)))


def _polar_oracle(x: Any, *, side: str = "right") -> tuple:
    u, s, vh = np.linalg.svd(x, full_matrices=False)
    v = np.conj(np.swapaxes(vh, -1, -2))
    uh = np.conj(np.swapaxes(u, -1, -2))
    s = s[..., None, :]
    return u @ vh, (v * s) @ vh if side == "right" else (u * s) @ uh


@primitive(
    "x v",
    infer=lambda x, v: (v.shape, v.dtype),
    lowering=given(1),
    vjp={"x": _polar_vjp, "v": zero_rule},
    jvp={"x": _polar_jvp},
    batch="rows",
    oracle=_polar_oracle,
    samples=lambda d: [
        Sample((regular(d, 3, 3),)),
        Sample((regular(d, 4, 2),)),
        Sample((regular(d, 2, 4),), {"side": "left"}),
        Sample((regular(d, 2, 3, 2),)),
        Sample((np.eye(3, dtype=d.dtype) * 2,)),
        Sample((regular(d, 2, 4),), order=0),
    ],
    errors=lambda d: [
        *matrix_errors(d),
        Bad((d.real(2, 2),), {"side": "up"}, DTypeError, "side is 'right' or 'left'"),
    ],
    namespace="linalg",
    tolerance=32,
)
def polar(x: Any, /, *, side: str = "right") -> PolarResult:
    """The factors of `x = U @ P`, or of `x = P @ U` with side "left": orthonormal columns (or rows)
    and a positive semidefinite matrix.

    The derivative is that of matrices of full rank, at least as tall as wide with side "right" and
    as wide as tall with side "left"; equal singular values do no harm.

    >>> pb.linalg.polar(pb.tensor([[0.0, -2.0], [3.0, 0.0]])).P
    tensor([[3., 0.],
            [0., 2.]], float32, cpu)
    """
    if side not in ("right", "left"):
        raise DTypeError(f"polar: side is 'right' or 'left', got {side!r}.")
    x = matrices("polar", x)
    m, n = x._aval.shape[-2:]
    u = adjoint(_polar_factor(adjoint(x))) if m < n else _polar_factor(x)
    p = matmul(adjoint(u), x) if side == "right" else matmul(x, adjoint(u))
    return PolarResult(u, hermitian_part(p))


def _polar_factor(x: Any) -> Any:
    u, _, vh = parts(packed(detached(x)), x._aval, False)
    return bind(polar.op, x, matmul(u, vh))


# -- generalised eigenvalues ---------------------------------------------------------------------


def _generalized_oracle(a: Any, b: Any) -> tuple:
    import scipy.linalg

    return tuple(scipy.linalg.eigh((a + np.conj(a.T)) / 2, (b + np.conj(b.T)) / 2))


@composite(
    oracle=_generalized_oracle,
    samples=lambda d: [Sample((hermitian(d, 3, 3), positive(d, 3, 3)))],
    errors=lambda d: [
        *[Bad((*bad.args, np.eye(2)), {}, bad.error, bad.match) for bad in square_errors(d)],
        Bad((np.eye(2), np.eye(3)), {}, ShapeError, "one size"),
    ],
    namespace="linalg",
    tolerance=64,
    determined=lambda xp, outs: [outs[0], projectors(xp, outs[1])],
)
def generalized_eigh(a: Any, b: Any, /) -> EighResult:
    """The eigenvalues and eigenvectors of `a @ v = w * (b @ v)` for Hermitian `a` and positive
    definite `b`; the vectors are orthonormal by b: `V.mH @ b @ V = 1`.

    >>> a, b = pb.tensor([[2.0, 0.0], [0.0, 3.0]]), pb.tensor([[4.0, 0.0], [0.0, 1.0]])
    >>> pb.linalg.generalized_eigh(a, b).eigenvalues
    tensor([0.5, 3. ], float32, cpu)
    """
    name = "generalized_eigh"
    a, b = together(name, square(name, a), square(name, b))
    if a._aval.shape[-1] != b._aval.shape[-1]:
        raise ShapeError(
            f"{name}: both matrices have one size, got shapes {a._aval.shape} and {b._aval.shape}."
        )
    factor = cholesky(b)
    half = triangular(factor, hermitian_part(a), True)
    inner = adjoint(triangular(factor, adjoint(half), True))
    values, vectors = eigh(inner)
    return EighResult(values, triangular(adjoint(factor), vectors, False))


# -- bases ---------------------------------------------------------------------------------------


def _rank(name: str, x: Any, rcond: Any) -> int:
    """How many singular values are not 0, which says what shape the result has."""
    if x._aval.is_symbolic:
        raise DTypeError(
            f"{name}: the size of the result depends on values, which a traced array has not."
            " Call it outside the traced function."
        )
    if x._aval.ndim != 2:
        raise ShapeError(f"{name}: takes one matrix, got shape {x._aval.shape}.")
    m, n = x._aval.shape
    if min(m, n) == 0:
        return 0
    values = svdvals(detached(x)).numpy()
    rcond = max(m, n) * np.finfo(values.dtype).eps if rcond is None else rcond
    return int(np.sum(values > rcond * values[0]))


def _basis_oracle(name: str) -> Any:
    def call(x: Any, *, rcond: Any = None) -> Any:
        import scipy.linalg

        return getattr(scipy.linalg, name)(x, rcond)

    return call


def _projector(xp: Any, outs: list) -> list:
    (q,) = outs
    return [xp.matmul(q, xp.conj(xp.swapaxes(q, -1, -2)))]


def _basis_errors(d: Draw) -> list[Bad]:
    return [*matrix_errors(d), Bad((d.real(2, 2, 2),), {}, ShapeError, "one matrix")]


@composite(
    oracle=_basis_oracle("null_space"),
    samples=lambda d: [
        Sample((spread_values(d, 2, 4),)),
        Sample((np.ones((2, 2), d.dtype),), order=0),
        Sample((spread_values(d, 3, 3),), {"rcond": 0.5}, order=0),
    ],
    errors=_basis_errors,
    namespace="linalg",
    tolerance=32,
    determined=_projector,
)
def null_space(x: Any, /, *, rcond: float | None = None) -> Any:
    """An orthonormal basis, as columns, of the vectors that a matrix makes 0.

    Singular values up to `rcond` times the largest count as 0. Its size depends on values, so that
    it can't be traced; the derivative is that of a matrix of full rank.

    >>> abs(pb.linalg.null_space(pb.tensor([[1.0, 0.0]])))
    tensor([[0.],
            [1.]], float32, cpu)
    """
    x = matrices("null_space", x)
    rank = _rank("null_space", x, rcond)
    return adjoint(svd(x).Vh[rank:, :])


@composite(
    oracle=_basis_oracle("orth"),
    samples=lambda d: [
        Sample((spread_values(d, 4, 2),)),
        Sample((np.ones((2, 2), d.dtype),), order=0),
    ],
    errors=_basis_errors,
    namespace="linalg",
    tolerance=32,
    determined=_projector,
)
def orth(x: Any, /, *, rcond: float | None = None) -> Any:
    """An orthonormal basis, as columns, of the range of a matrix; `rcond` as in `null_space`.

    >>> abs(pb.linalg.orth(pb.tensor([[2.0, 2.0], [0.0, 0.0]])))
    tensor([[1.],
            [0.]], float32, cpu)
    """
    x = matrices("orth", x)
    rank = _rank("orth", x, rcond)
    return svd(x, full_matrices=False).U[:, :rank]
