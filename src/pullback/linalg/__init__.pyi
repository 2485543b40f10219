"""Linear algebra: the standard's `linalg` extension, and what SciPy and PyTorch have beside it."""

# Written by tools/stubs.py (`make stubs`).

from collections.abc import Sequence
from typing import NamedTuple

from pullback import matmul as matmul
from pullback import matrix_transpose as matrix_transpose
from pullback import outer as outer
from pullback import tensordot as tensordot
from pullback import vecdot as vecdot
from pullback.core.errors import LinAlgError as LinAlgError
from pullback.tensor import Tensor, _ArrayLike

class Lu(NamedTuple):
    """The permutation, the lower and the upper triangular factor."""

    P: Tensor
    L: Tensor
    U: Tensor

class LuFactor(NamedTuple):
    """Both triangles in one matrix, and the row that each row was exchanged with, in order."""

    LU: Tensor
    pivots: Tensor

class SlogdetResult(NamedTuple):
    """The sign (or phase) of the determinant, and the logarithm of its size."""

    sign: Tensor
    logabsdet: Tensor

def cholesky(x: _ArrayLike, /, *, upper: bool = False) -> Tensor:
    """The lower triangular `L` with `x = L @ L.mH`, or the upper triangular `U = L.mH`."""

def cholesky_solve(b: _ArrayLike, factor: _ArrayLike, /, *, upper: bool = False) -> Tensor:
    """The solution of `A @ x = b` by the Cholesky factor of A: `A = factor @ factor.mH`, or
    with `upper` `factor.mH @ factor`.
    """

def det(x: _ArrayLike, /) -> Tensor:
    """The determinant of square matrices."""

def inv(x: _ArrayLike, /) -> Tensor:
    """The inverse of square matrices; to solve a system, `solve` is more accurate and faster."""

def lu(x: _ArrayLike, /) -> Lu:
    """The factors of `x = P @ L @ U`: a permutation, a lower triangle with ones on the
    diagonal, and an upper triangle.
    """

def lu_factor(x: _ArrayLike, /) -> LuFactor:
    """L (below the diagonal) and U in one matrix, and the row each row was exchanged with, in
    order; for `lu_solve`.
    """

def lu_solve(LU: _ArrayLike, pivots: _ArrayLike, b: _ArrayLike, /, *, trans: int = 0) -> Tensor:
    """The solution of `A @ x = b` by the result of `lu_factor(A)`; `trans` as in
    `solve_triangular`.
    """

def slogdet(x: _ArrayLike, /) -> SlogdetResult:
    """The sign of the determinant (for complex matrices its phase) and the logarithm of its
    size.
    """

def solve(x1: _ArrayLike, x2: _ArrayLike, /) -> Tensor:
    """The solution of `x1 @ x = x2` for square matrices."""

def solve_triangular(
    a: _ArrayLike,
    b: _ArrayLike,
    /,
    *,
    lower: bool = False,
    trans: str | int = 0,
    unit_diagonal: bool = False,
) -> Tensor:
    """The solution of `a @ x = b` for a triangular matrix; the other triangle is not looked at."""

def vector_norm(
    x: _ArrayLike,
    /,
    *,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    ord: float = 2,
) -> Tensor:
    """The norm `sum(abs(x)**ord) ** (1/ord)` along `axis` (None: all axes), with derivative 0
    at 0.
    """
