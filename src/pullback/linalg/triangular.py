"""Triangular systems, and the Cholesky factor with what is solved by it."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core.avals import Aval
from pullback.core.errors import DTypeError, LinAlgError, ShapeError
from pullback.ir.cost import matrix_work
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ir.series import remaining
from pullback.linalg.arguments import (
    adjoint,
    positive,
    regular,
    right_sides,
    square,
    square_errors,
    swapped,
)
from pullback.ops.diagonals import tril, triu
from pullback.ops.families import broadcast_shapes, composite, primitive, sum_to
from pullback.ops.movement import both_aligned, reshape
from pullback.ops.parts import cc
from pullback.ops.products import matmul

__all__ = ["cholesky", "cholesky_solve", "solve_triangular"]


def _solve_infer(a: Aval, b: Aval, lower: bool, unit_diagonal: bool) -> tuple:
    batch = broadcast_shapes("solve_triangular", a.shape[:-2], b.shape[:-2])
    return (*batch, *b.shape[-2:]), b.dtype


def triangular(a: Any, b: Any, lower: bool, unit_diagonal: bool = False) -> Any:
    """The solution of a X = b for columns b."""
    return bind(solve_triangular.op, a, b, lower=lower, unit_diagonal=unit_diagonal)


def _inside(x: Any, lower: bool, unit_diagonal: bool) -> Any:
    """The elements that a triangular matrix has of its own."""
    k = 1 if unit_diagonal else 0
    return tril(x, k=-k) if lower else triu(x, k=k)


def _solve_vjp_a(g: Any, a: Any, out: Any, lower: bool, unit_diagonal: bool) -> Any:
    gb = triangular(adjoint(a), g, not lower, unit_diagonal)
    return -_inside(matmul(gb, adjoint(out)), lower, unit_diagonal)


def _solve_jvp_a(t: Any, a: Any, out: Any, lower: bool, unit_diagonal: bool) -> Any:
    moved = matmul(_inside(t, lower, unit_diagonal), out)
    return -triangular(a, moved, lower, unit_diagonal)


def _solve_series(
    n: int, out: list[Any], a: list[Any], b: list[Any], lower: bool, unit_diagonal: bool
) -> Any:
    """From `a @ out = b`."""

    def product(a: Any, x: Any) -> Any:
        return matmul(_inside(a, lower, unit_diagonal), x)

    rest = remaining(n, b, a, out, product)
    return None if rest is None else triangular(a[0], rest, lower, unit_diagonal)


def _solve_oracle(
    a: Any, b: Any, *, lower: bool = False, trans: Any = 0, unit_diagonal: bool = False
) -> Any:
    a = np.tril(a) if lower else np.triu(a)
    if unit_diagonal:
        a = a - a * np.eye(a.shape[-1]) + np.eye(a.shape[-1])
    if trans in (1, 2, "T", "C"):
        a = np.swapaxes(a, -1, -2)
    if trans in (2, "C"):
        a = np.conj(a)
    return np.linalg.solve(a, b)


def _solve_samples(d: Draw) -> list[Sample]:
    return [
        Sample((regular(d, 3, 3), d.real(3, 2))),
        Sample((regular(d, 3, 3), d.real(3, 2)), {"lower": True}),
        Sample((regular(d, 4, 4), d.real(4)), {"lower": True, "unit_diagonal": True}),
        Sample((regular(d, 3, 3), d.real(3, 2)), {"trans": "T"}),
        Sample((regular(d, 3, 3), d.real(3, 2)), {"trans": "C", "lower": True}),
        Sample((regular(d, 2, 1, 3, 3), d.real(3, 3, 2))),
        Sample((d.real(0, 0), d.real(0, 2))),
    ]


def _solve_batch(op: Any, a: Any, b: Any, lower: bool, unit_diagonal: bool) -> Any:
    a, b = both_aligned(a, b)
    return bind(op, a, b, lower=lower, unit_diagonal=unit_diagonal)


@primitive(
    "a b",
    infer=_solve_infer,
    lowering=Intrinsic("solve_triangular", raises=True, work=matrix_work),
    vjp={
        "a": _solve_vjp_a,
        "b": lambda g, a, lower, unit_diagonal: triangular(adjoint(a), g, not lower, unit_diagonal),
    },
    jvp={
        "a": _solve_jvp_a,
        "b": lambda t, a, lower, unit_diagonal: triangular(a, t, lower, unit_diagonal),
    },
    series=_solve_series,
    unbroadcast=sum_to,
    batch=_solve_batch,
    oracle=_solve_oracle,
    samples=_solve_samples,
    errors=lambda d: [
        *[Bad((*bad.args, d.real(2, 1)), {}, bad.error, bad.match) for bad in square_errors(d)],
        Bad((d.real(2, 2), d.real(3, 1)), {}, ShapeError, "a row for each row"),
        Bad((np.diag([1.0, 0.0]), d.real(2, 1)), {}, LinAlgError, "element 1 of its diagonal"),
        Bad((d.real(2, 2), d.real(2, 1)), {"trans": "X"}, DTypeError, "trans"),
    ],
    namespace="linalg",
)
def solve_triangular(
    a: Any, b: Any, /, *, lower: bool = False, trans: Any = 0, unit_diagonal: bool = False
) -> Any:
    """The solution of `a @ x = b` for a triangular matrix; the other triangle is not looked at.

    `trans` may be "T" (or 1) to solve with the transpose, "C" (or 2) with the conjugate transpose.

    >>> a = pb.tensor([[2.0, 1.0], [0.0, 4.0]])
    >>> pb.linalg.solve_triangular(a, pb.tensor([4.0, 8.0]))
    tensor([1., 2.], float32, cpu)
    """
    if trans not in (0, 1, 2, "N", "T", "C"):
        raise DTypeError(f"solve_triangular: trans is 'N', 'T' or 'C', got {trans!r}.")
    a, b, vector = right_sides("solve_triangular", a, b)
    if trans not in (0, "N"):
        a, lower = swapped(a), not lower
        a = cc(a) if trans in (2, "C") else a
    out = triangular(a, b, bool(lower), bool(unit_diagonal))
    return reshape(out, out._aval.shape[:-1]) if vector else out


# -- Cholesky ------------------------------------------------------------------------------------


def halved(x: Any) -> Any:
    """The lower triangle with half of the diagonal."""
    return (tril(x) + tril(x, k=-1)) * 0.5


def hermitian_part(x: Any) -> Any:
    return (x + adjoint(x)) * 0.5


def _cholesky_vjp(g: Any, out: Any) -> Any:
    inner = hermitian_part(halved(matmul(adjoint(out), tril(g))))
    left = triangular(adjoint(out), inner, False)
    return adjoint(triangular(adjoint(out), adjoint(left), False))


def _cholesky_jvp(t: Any, out: Any) -> Any:
    left = triangular(out, hermitian_part(t), True)
    inner = adjoint(triangular(out, adjoint(left), True))
    return matmul(out, halved(inner))


def _cholesky_oracle(x: Any, *, upper: bool = False) -> Any:
    factor = np.linalg.cholesky((x + np.conj(np.swapaxes(x, -1, -2))) / 2)
    return np.conj(np.swapaxes(factor, -1, -2)) if upper else factor


@primitive(
    "x",
    infer=lambda x: (x.shape, x.dtype),
    lowering=Intrinsic("cholesky", raises=True, work=matrix_work),
    vjp={"x": _cholesky_vjp},
    jvp={"x": _cholesky_jvp},
    batch="rows",
    oracle=_cholesky_oracle,
    samples=lambda d: [
        Sample((positive(d, 3, 3),)),
        Sample((positive(d, 4, 4),), {"upper": True}),
        Sample((positive(d, 2, 2, 3, 3),)),
        Sample((positive(d, 1, 1),)),
        Sample((d.real(0, 0),)),
        Sample((d.real(0, 2, 2),)),
        Sample((positive(d, 70, 70),), order=0),
    ],
    errors=lambda d: [
        *square_errors(d),
        Bad((np.diag([1.0, -1.0]),), {}, LinAlgError, "leading minor of order 2"),
        Bad((np.stack([np.eye(2), -np.eye(2)]),), {}, LinAlgError, "at 1 of the batch"),
    ],
    namespace="linalg",
)
def cholesky(x: Any, /, *, upper: bool = False) -> Any:
    """The lower triangular `L` with `x = L @ L.mH`, or the upper triangular `U = L.mH`.

    The matrices are positive definite. Of one that is not Hermitian the Hermitian part is taken,
    `(x + x.mH) / 2`, so that its derivative is Hermitian too.

    >>> pb.linalg.cholesky(pb.tensor([[4.0, 2.0], [2.0, 5.0]]))
    tensor([[2., 0.],
            [1., 2.]], float32, cpu)
    """
    out = bind(cholesky.op, square("cholesky", x))
    return adjoint(out) if upper else out


@composite(
    oracle=lambda b, factor, *, upper=False: np.linalg.solve(
        np.conj(np.swapaxes(np.triu(factor), -1, -2)) @ np.triu(factor)
        if upper
        else np.tril(factor) @ np.conj(np.swapaxes(np.tril(factor), -1, -2)),
        b,
    ),
    samples=lambda d: [
        Sample((d.real(3, 2), regular(d, 3, 3))),
        Sample((d.real(3, 2), regular(d, 2, 3, 3)), {"upper": True}),
        Sample((d.real(3), regular(d, 3, 3))),
    ],
    errors=lambda d: [
        Bad((d.real(3, 1), d.real(2, 2)), {}, ShapeError, "a row for each row"),
        Bad((d.real(2, 1), d.real(2, 3)), {}, ShapeError, "square matrix"),
    ],
    namespace="linalg",
    tolerance=8,
)
def cholesky_solve(b: Any, factor: Any, /, *, upper: bool = False) -> Any:
    """The solution of `A @ x = b` by the Cholesky factor of A: `A = factor @ factor.mH`, or with
    `upper` `factor.mH @ factor`.

    >>> factor = pb.tensor([[2.0, 0.0], [1.0, 2.0]])
    >>> pb.linalg.cholesky_solve(pb.tensor([8.0, 14.0]), factor)
    tensor([0.75, 2.5 ], float32, cpu)
    """
    factor, b, vector = right_sides("cholesky_solve", factor, b)
    lower = adjoint(factor) if upper else factor
    out = triangular(adjoint(lower), triangular(lower, b, True), False)
    return reshape(out, out._aval.shape[:-1]) if vector else out
