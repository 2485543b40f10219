"""The LU factorisation, and systems of equations that are solved by it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import Aval
from pullback.core.errors import DTypeError, IndexOutOfRange, LinAlgError, ShapeError
from pullback.ir.convert import as_array
from pullback.ir.cost import matrix_work
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Sample
from pullback.ir.series import remaining
from pullback.linalg.arguments import (
    adjoint,
    detached,
    floats,
    like_eye,
    matrices,
    matrix_errors,
    regular,
    right_sides,
    square,
    square_errors,
    swapped,
    zero_rule,
)
from pullback.linalg.triangular import triangular
from pullback.ops.creation import eye
from pullback.ops.diagonals import tril, triu
from pullback.ops.families import broadcast_shapes, composite, primitive, sum_to
from pullback.ops.gather_scatter import gather
from pullback.ops.index_plans import as_indices
from pullback.ops.indexing import bind_named, take_along_axis
from pullback.ops.movement import both_aligned, broadcast_to, concat, repeated, reshape
from pullback.ops.parts import astype, cc, real
from pullback.ops.products import matmul
from pullback.ops.ranges import positions
from pullback.ops.selection import where
from pullback.ops.sorting import argsort

__all__ = ["inv", "lu", "lu_factor", "lu_solve", "solve"]


class Lu(NamedTuple):
    """The permutation, the lower and the upper triangular factor."""

    P: Any
    L: Any
    U: Any


class LuFactor(NamedTuple):
    """Both triangles in one matrix, and the row that each row was exchanged with, in order."""

    LU: Any
    pivots: Any


# What `lu` binds: LU^T, then a row of exchanges and a row with the permutation, as numbers.


def factor(x: Any) -> Any:
    """The packed factorisation."""
    return bind(lu.op, x)


def packed_lu(f: Any) -> Any:
    """Both triangles in one matrix."""
    return swapped(f[..., :-2, :])


def exchanges(f: Any) -> Any:
    """The row that each row was exchanged with."""
    rows = min(f._aval.shape[-1], f._aval.shape[-2] - 2)
    return _whole(detached(f)[..., -2, :rows])


def permutation(f: Any) -> Any:
    """The row of the matrix that each row of L U is."""
    return _whole(detached(f)[..., -1, :])


def _whole(x: Any) -> Any:
    return astype(real(x) if x._aval.dtype.is_complex else x, dt.int64)


def taken(x: Any, rows: Any) -> Any:
    """The rows of matrices that are named for each of them."""
    *batch, count = rows._aval.shape
    width = x._aval.shape[-1]
    index = broadcast_to(reshape(rows, (*batch, count, 1)), (*batch, count, width))
    return take_along_axis(x, index, axis=-2)


def restored(x: Any, f: Any) -> Any:
    """The rows back in the order of the matrix that was factored: P times x."""
    return taken(x, argsort(permutation(f)))


def _triangles(f: Any) -> tuple[Any, Any]:
    """L (m x k) and U (k x n)."""
    both = packed_lu(f)
    m, n = both._aval.shape[-2:]
    k = min(m, n)
    ones = eye(m, k, dtype=f._aval.dtype, device=f._aval.device)
    return tril(both[..., :, :k], k=-1) + ones, triu(both[..., :k, :])


def _lu_vjp(g: Any, out: Any) -> Any:
    lower, upper = _triangles(out)
    both = packed_lu(g)
    m, n = both._aval.shape[-2:]
    k = min(m, n)
    gl, gu = tril(both[..., :, :k], k=-1), triu(both[..., :k, :])
    l1, u1 = lower[..., :k, :], upper[..., :, :k]
    low = matmul(adjoint(l1), gl[..., :k, :])
    high = matmul(gu[..., :, :k], adjoint(u1))
    if n > k:
        low = low - matmul(gu[..., :, k:], adjoint(upper[..., :, k:]))
    if m > k:
        high = high - matmul(adjoint(lower[..., k:, :]), gl[..., k:, :])
    inner = triangular(adjoint(l1), tril(low, k=-1) + triu(high), False, True)
    if m > k:
        inner = concat([inner, gl[..., k:, :]], axis=-2)
    # Z U^-H = (U^-1 Z^H)^H
    found = adjoint(triangular(u1, adjoint(inner), False))
    if n > k:
        rest = triangular(adjoint(l1), gu[..., :, k:], False, True)
        found = concat([found, rest], axis=-1)
    return restored(found, out)


def _lu_oracle(x: Any) -> tuple:
    """SciPy's; its permutation of one row is complex where the matrix is."""
    import scipy.linalg

    rows, *factors = scipy.linalg.lu(x)
    return np.real(rows), *factors


@primitive(
    "x",
    infer=lambda x: ((*x.shape[:-2], x.shape[-1] + 2, x.shape[-2]), x.dtype),
    lowering=Intrinsic("lu", work=matrix_work),
    vjp={"x": _lu_vjp},
    jvp="transpose",
    batch="rows",
    oracle=_lu_oracle,
    samples=lambda d: [
        Sample((regular(d, 3, 3),)),
        Sample((regular(d, 4, 3),)),
        Sample((regular(d, 3, 5),)),
        Sample((regular(d, 2, 3, 3)[:, [2, 0, 1]],)),
        Sample((d.real(1, 1),)),
        Sample((np.ones((3, 3), d.dtype),), order=0),
    ],
    errors=matrix_errors,
    namespace="linalg",
)
def lu(x: Any, /) -> Lu:
    """The factors of `x = P @ L @ U`: a permutation, a lower triangle with ones on the diagonal,
    and an upper triangle.

    Rows are exchanged so that the largest element of a column comes to the diagonal.

    >>> pb.linalg.lu(pb.tensor([[1.0, 2.0], [2.0, 2.0]])).U
    tensor([[2., 2.],
            [0., 1.]], float32, cpu)
    """
    x = matrices("lu", x)
    f = factor(x)
    rows = x._aval.shape[-2]
    ones = eye(rows, dtype=x._aval.dtype.real, device=x._aval.device)
    batch = x._aval.shape[:-2]
    return Lu(restored(broadcast_to(ones, (*batch, rows, rows)), f), *_triangles(f))


def _lu_factor_oracle(x: Any) -> tuple:
    import scipy.linalg

    both, pivots = scipy.linalg.lu_factor(x)
    return both, pivots.astype(np.int64)


@composite(
    oracle=_lu_factor_oracle,
    samples=lambda d: [
        Sample((regular(d, 3, 3),)),
        Sample((regular(d, 4, 3),)),
        Sample((regular(d, 2, 4, 4)[:, [2, 0, 3, 1]],)),
    ],
    errors=matrix_errors,
    namespace="linalg",
)
def lu_factor(x: Any, /) -> LuFactor:
    """L (below the diagonal) and U in one matrix, and the row each row was exchanged with, in
    order; for `lu_solve`.

    >>> pb.linalg.lu_factor(pb.tensor([[1.0, 2.0], [2.0, 2.0]])).pivots
    tensor([1, 1], int64, cpu)
    """
    f = factor(matrices("lu_factor", x))
    return LuFactor(packed_lu(f), exchanges(f))


# -- solutions -----------------------------------------------------------------------------------


def solved(a: Any, b: Any, f: Any, adjoint: bool = False, caller: str = "solve") -> Any:
    """A^-1 b, or A^-H b, by the packed factorisation of A."""
    return bind(solve.op, a, b, f, adjoint=adjoint, caller=caller)


def _solve_infer(a: Aval, b: Aval, f: Aval, adjoint: bool, caller: str) -> tuple:
    batch = broadcast_shapes("solve", a.shape[:-2], b.shape[:-2])
    return (*batch, *b.shape[-2:]), b.dtype


def _solve_vjp_a(g: Any, a: Any, f: Any, out: Any, adjoint: bool, caller: str) -> Any:
    gb = solved(a, g, f, not adjoint, caller)
    return -_outer(out, gb) if adjoint else -_outer(gb, out)


def _outer(x: Any, y: Any) -> Any:
    """x y^H."""
    return matmul(x, swapped(cc(y)))


def _solve_jvp_a(t: Any, a: Any, f: Any, out: Any, adjoint: bool, caller: str) -> Any:
    moved = matmul(swapped(cc(t)) if adjoint else t, out)
    return -solved(a, moved, f, adjoint, caller)


def _solve_series(
    n: int,
    out: list[Any],
    a: list[Any],
    b: list[Any],
    f: list[Any],
    adjoint: bool,
    caller: str,
) -> Any:
    """From `a @ out = b`."""

    def product(a: Any, x: Any) -> Any:
        return matmul(swapped(cc(a)) if adjoint else a, x)

    rest = remaining(n, b, a, out, product)
    return None if rest is None else solved(a[0], rest, f[0], adjoint, caller)


def _solve_batch(op: Any, a: Any, b: Any, f: Any, adjoint: bool, caller: str, examples: int) -> Any:
    a, b = both_aligned(a, repeated(b, examples))
    f, _ = both_aligned(f, b)
    return bind(op, a, b, f, adjoint=adjoint, caller=caller)


@primitive(
    "a b f",
    infer=_solve_infer,
    lowering=Intrinsic("lu_solve", raises=True, work=matrix_work),
    vjp={
        "a": _solve_vjp_a,
        "b": lambda g, a, f, adjoint, caller: solved(a, g, f, not adjoint, caller),
        "f": zero_rule,
    },
    jvp={
        "a": _solve_jvp_a,
        "b": lambda t, a, f, adjoint, caller: solved(a, t, f, adjoint, caller),
    },
    series=_solve_series,
    unbroadcast=sum_to,
    batch=_solve_batch,
    oracle=floats(np.linalg.solve),
    samples=lambda d: [
        Sample((regular(d, 3, 3), d.real(3, 2))),
        Sample((regular(d, 4, 4)[[2, 0, 3, 1]], d.real(4))),
        Sample((regular(d, 2, 1, 3, 3), d.real(3, 3, 2))),
        Sample((regular(d, 2, 3, 3), d.real(3))),
        Sample((d.integers(2, 2) + 20 * np.eye(2, dtype=int), d.integers(2, 1)), order=0),
        Sample((d.real(0, 0), d.real(0, 2))),
        Sample((regular(d, 70, 70), d.real(70, 3)), order=0),
    ],
    errors=lambda d: [
        *[Bad((*bad.args, d.real(2, 1)), {}, bad.error, bad.match) for bad in square_errors(d)],
        Bad((d.real(2, 2), d.real(3, 1)), {}, ShapeError, "a row for each row"),
        Bad((d.real(2, 2, 2), d.real(3, 2, 1)), {}, ShapeError, "do not broadcast"),
        Bad((np.ones((2, 2)), d.real(2)), {}, LinAlgError, "the matrix is singular: pivot 1"),
        Bad((np.eye(2) * np.arange(3)[:, None, None], d.real(2)), {}, LinAlgError, "at 0 of the"),
    ],
    namespace="linalg",
)
def solve(x1: Any, x2: Any, /) -> Any:
    """The solution of `x1 @ x = x2` for square matrices.

    One right-hand side may be a vector; otherwise they are the columns of `x2`.

    >>> pb.linalg.solve(pb.tensor([[2.0, 0.0], [1.0, 4.0]]), pb.tensor([2.0, 9.0]))
    tensor([1., 2.], float32, cpu)
    """
    a, b, vector = right_sides("solve", x1, x2)
    out = solved(a, b, factor(detached(a)))
    return reshape(out, out._aval.shape[:-1]) if vector else out


@composite(
    oracle=np.linalg.inv,
    samples=lambda d: [
        Sample((regular(d, 3, 3),)),
        Sample((regular(d, 2, 2, 4, 4)[..., [1, 3, 0, 2], :],)),
        Sample((d.real(1, 1),)),
        Sample((d.real(0, 0),)),
    ],
    errors=lambda d: [
        *square_errors(d),
        Bad((np.ones((2, 2)),), {}, LinAlgError, "singular"),
    ],
    namespace="linalg",
)
def inv(x: Any, /) -> Any:
    """The inverse of square matrices; to solve a system, `solve` is more accurate and faster.

    >>> pb.linalg.inv(pb.tensor([[2.0, 0.0], [0.0, 4.0]]))
    tensor([[0.5 , 0.  ],
            [0.  , 0.25]], float32, cpu)
    """
    x = square("inv", x)
    return solved(x, like_eye(x), factor(detached(x)), caller="inv")


def _lu_solve_oracle(both: Any, pivots: Any, b: Any, *, trans: int = 0) -> Any:
    import scipy.linalg

    return scipy.linalg.lu_solve((both, pivots), b, trans=trans)


@composite(
    oracle=_lu_solve_oracle,
    samples=lambda d: [
        Sample((regular(d, 3, 3), np.array([1, 2, 2]), d.real(3, 2))),
        Sample((regular(d, 3, 3), np.array([1, 2, 2]), d.real(3)), {"trans": 1}),
        Sample((regular(d, 4, 4), np.array([3, 1, 3, 3]), d.real(4, 1)), {"trans": 2}),
    ],
    errors=lambda d: [
        Bad((d.real(2, 2), np.array([0, 1]), d.real(3, 1)), {}, ShapeError, "a row for each row"),
        Bad((d.real(2, 2), np.array([0]), d.real(2, 1)), {}, ShapeError, "an exchange for each"),
        Bad((d.real(2, 2), np.array([0.5, 1]), d.real(2)), {}, DTypeError, "integers"),
        Bad((d.real(2, 2), np.array([0, 1]), d.real(2)), {"trans": 3}, DTypeError, "trans"),
        Bad((d.real(3, 3), np.array([0, 3, 2]), d.real(3)), {}, IndexOutOfRange, "index 3"),
        Bad((d.real(80, 80), np.full(80, 10**9), d.real(80)), {}, IndexOutOfRange, "index 1000"),
    ],
    namespace="linalg",
    tolerance=8,
)
def lu_solve(LU: Any, pivots: Any, b: Any, /, *, trans: int = 0) -> Any:
    """The solution of `A @ x = b` by the result of `lu_factor(A)`; `trans` as in
    `solve_triangular`.

    >>> both, pivots = pb.linalg.lu_factor(pb.tensor([[1.0, 2.0], [2.0, 2.0]]))
    >>> pb.linalg.lu_solve(both, pivots, pb.tensor([5.0, 6.0]))
    tensor([1., 2.], float32, cpu)
    """
    if trans not in (0, 1, 2, "N", "T", "C"):
        raise DTypeError(f"lu_solve: trans is 'N', 'T' or 'C', got {trans!r}.")
    both, b, vector = right_sides("lu_solve", LU, b)
    order = _order_of(both, as_array(pivots, "lu_solve"))
    batch = broadcast_shapes("lu_solve", both._aval.shape[:-2], b._aval.shape[:-2])
    b = broadcast_to(b, (*batch, *b._aval.shape[-2:]))
    order = broadcast_to(order, (*batch, b._aval.shape[-2]))
    if trans in (0, "N"):
        out = triangular(both, triangular(both, taken(b, order), True, True), False)
    else:
        turned = swapped(both) if trans in (1, "T") else adjoint(both)
        out = triangular(turned, triangular(turned, b, True), False, True)
        out = taken(out, argsort(order))
    return reshape(out, out._aval.shape[:-1]) if vector else out


def _order_of(both: Any, pivots: Any) -> Any:
    """The permutation that exchanges of rows lead to: they are done to the numbers of the rows."""
    n, dev = both._aval.shape[-1], both._aval.device
    if not pivots._aval.dtype.is_integer:
        raise DTypeError(f"lu_solve: the exchanges are integers, got {pivots._aval.dtype.name}.")
    if pivots._aval.shape[-1:] != (n,):
        raise ShapeError(
            f"lu_solve: there is an exchange for each row, got shapes {both._aval.shape} and"
            f" {pivots._aval.shape}."
        )
    batch, numbers = pivots._aval.shape[:-1], positions(n, dev)
    index = as_indices("lu_solve", reshape(pivots, (*batch, n, 1)), dev, n)
    rows = bind_named("lu_solve", gather.op, numbers, index)  # raises where there is no such row
    own = reshape(numbers, (n, 1))
    found = where(numbers == own, rows, where(numbers == rows, own, numbers))  # each exchange
    count = n
    while count > 1:  # one after the other of them
        if count % 2:
            same = broadcast_to(reshape(numbers, (1, n)), (*batch, 1, n))
            found, count = concat([found, same], axis=-2), count + 1
        found = take_along_axis(found[..., 0::2, :], found[..., 1::2, :], axis=-1)
        count //= 2
    return reshape(found, (*batch, n))
