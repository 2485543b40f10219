"""The factorisation of Hermitian matrices that need not be positive definite."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pullback.core.dtypes import int64
from pullback.ir.cost import matrix_work
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import bind
from pullback.ir.samples import Sample
from pullback.linalg.arguments import (
    adjoint,
    detached,
    hermitian,
    like_eye,
    square,
    square_errors,
    swapped,
)
from pullback.linalg.hermitian import real_part
from pullback.linalg.lu import solve, taken
from pullback.linalg.triangular import hermitian_part, triangular
from pullback.ops.diagonals import tril
from pullback.ops.families import primitive
from pullback.ops.logic import logical_or
from pullback.ops.parts import astype
from pullback.ops.products import matmul
from pullback.ops.selection import where
from pullback.ops.sorting import argsort

__all__ = ["ldl"]


class LdlResult(NamedTuple):
    """The factor, the matrix of blocks of one and two, and the order that makes L triangular."""

    L: Any
    D: Any
    permutation: Any


# `ldl` binds the triangular factor, then D, then the permutation as a row of numbers.


def _parts(packed: Any) -> tuple[Any, Any]:
    """The triangular factor and D."""
    n = packed._aval.shape[-1]
    return packed[..., :n, :], packed[..., n : 2 * n, :]


def _order(packed: Any) -> Any:
    return astype(real_part(detached(packed)[..., -1, :]), int64)


def _vjp(g: Any, out: Any) -> Any:
    """With S = L^-1 dA L^-H: its blocks are dD, and what is below them is L^-1 dL D."""
    lower, middle = _parts(out)
    gl, gd = _parts(g)
    blocks = logical_or(detached(middle) != 0, like_eye(middle) != 0)
    below = adjoint(solve(middle, adjoint(matmul(adjoint(lower), tril(gl, k=-1)))))
    inner = hermitian_part(where(blocks, gd, tril(below)))
    left = triangular(adjoint(lower), inner, False, True)
    found = adjoint(triangular(adjoint(lower), adjoint(left), False, True))
    back = argsort(_order(out))
    return swapped(taken(swapped(taken(found, back)), back))


def _oracle(x: Any) -> tuple:
    import scipy.linalg

    found = [scipy.linalg.ldl(m) for m in ((x + np.conj(np.swapaxes(x, -1, -2))) / 2)[None]]
    return (*found[0][:2], found[0][2].astype(np.int64))


@primitive(
    "x",
    infer=lambda x: ((*x.shape[:-2], 2 * x.shape[-1] + 1, x.shape[-1]), x.dtype),
    lowering=Intrinsic("ldl", raises=True, work=matrix_work),
    vjp={"x": _vjp},
    jvp="transpose",
    batch="rows",
    oracle=_oracle,
    samples=lambda d: [
        Sample((hermitian(d, 3, 3),)),
        Sample((hermitian(d, 4, 4) - 3 * np.eye(4, dtype=d.dtype),)),
        Sample((np.asarray([[0, 2, 1], [2, 0, 1], [1, 1, 0.5]], d.dtype),)),
        Sample((hermitian(d, 1, 1),)),
    ],
    errors=square_errors,
    namespace="linalg",
    tolerance=32,
)
def ldl(x: Any, /) -> LdlResult:
    """The factors of `x = L @ D @ L.mH` for Hermitian matrices: the rows of L in the order of the
    permutation are a lower triangle with ones on the diagonal, and D has blocks of one and two.

    Of a matrix that is not Hermitian the Hermitian part is taken, as by `cholesky`. There is no
    derivative at singular matrices: that raises.

    >>> pb.linalg.ldl(pb.tensor([[4.0, 2.0], [2.0, 3.0]])).D
    tensor([[4., 0.],
            [0., 2.]], float32, cpu)
    """
    packed = bind(ldl.op, square("ldl", x))
    lower, middle = _parts(packed)
    order = _order(packed)
    return LdlResult(taken(lower, argsort(order)), middle, order)
