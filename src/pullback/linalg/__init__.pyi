"""Linear algebra: the standard's `linalg` extension, and what SciPy and PyTorch have beside it."""

# Written by tools/stubs.py (`make stubs`).

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pullback import matmul as matmul
from pullback import matrix_transpose as matrix_transpose
from pullback import outer as outer
from pullback import tensordot as tensordot
from pullback import vecdot as vecdot
from pullback.core.errors import LinAlgError as LinAlgError
from pullback.tensor import Tensor, _ArrayLike, _DTypeLike

class EigResult(NamedTuple):
    """Eigenvalues, and eigenvectors of length 1 as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor

class EighResult(NamedTuple):
    """Eigenvalues in increasing order, and eigenvectors as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor

class LdlResult(NamedTuple):
    """The factor, the matrix of blocks of one and two, and the order that makes L triangular."""

    L: Tensor
    D: Tensor
    permutation: Tensor

class LstsqResult(NamedTuple):
    """The solution, the sums of squares that remain, the rank, the singular values."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor

class Lu(NamedTuple):
    """The permutation, the lower and the upper triangular factor."""

    P: Tensor
    L: Tensor
    U: Tensor

class LuFactor(NamedTuple):
    """Both triangles in one matrix, and the row that each row was exchanged with, in order."""

    LU: Tensor
    pivots: Tensor

class PolarResult(NamedTuple):
    """A matrix with orthonormal columns or rows, and a positive semidefinite one."""

    U: Tensor
    P: Tensor

class QRResult(NamedTuple):
    """A matrix with orthonormal columns, and an upper triangle."""

    Q: Tensor
    R: Tensor

class SchurResult(NamedTuple):
    """The triangle (of a real matrix with blocks of two), and the unitary factor."""

    T: Tensor
    Z: Tensor

class SlogdetResult(NamedTuple):
    """The sign (or phase) of the determinant, and the logarithm of its size."""

    sign: Tensor
    logabsdet: Tensor

class SVDResult(NamedTuple):
    """Left singular vectors as columns, singular values, right singular vectors as rows."""

    U: Tensor
    S: Tensor
    Vh: Tensor

def block_diag(*blocks: _ArrayLike) -> Tensor:
    """The matrices (over broadcast batches) along the diagonal of a larger one, zeros
    elsewhere.
    """

def cholesky(x: _ArrayLike, /, *, upper: bool = False) -> Tensor:
    """The lower triangular `L` with `x = L @ L.mH`, or the upper triangular `U = L.mH`."""

def cholesky_solve(b: _ArrayLike, factor: _ArrayLike, /, *, upper: bool = False) -> Tensor:
    """The solution of `A @ x = b` by the Cholesky factor of A: `A = factor @ factor.mH`, or
    with `upper` `factor.mH @ factor`.
    """

def cond(x: _ArrayLike, /, *, p: str | float | None = None) -> Tensor:
    """The condition number of matrices: the quotient of the largest and the smallest singular
    value (p None or 2), its inverse (-2), or the product of the norms of the matrix and its
    inverse.
    """

def cross(x1: _ArrayLike, x2: _ArrayLike, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors of three elements along `axis`."""

def det(x: _ArrayLike, /) -> Tensor:
    """The determinant of square matrices."""

def diagonal(x: _ArrayLike, /, *, offset: int = 0) -> Tensor:
    """The diagonals of matrices; those above the main one have a positive `offset`."""

def eig(x: _ArrayLike, /) -> EigResult:
    """The eigenvalues of square matrices, and eigenvectors of length 1 as columns, both
    complex: `x @ V = V @ diag(w)`.
    """

def eigh(x: _ArrayLike, /) -> EighResult:
    """The eigenvalues of Hermitian matrices, in increasing order, and orthonormal eigenvectors
    as columns: `x = V @ diag(w) @ V.mH`.
    """

def eigvals(x: _ArrayLike, /) -> Tensor:
    """The eigenvalues of square matrices, complex, in the order of LAPACK."""

def eigvalsh(x: _ArrayLike, /) -> Tensor:
    """The eigenvalues of Hermitian matrices, in increasing order."""

def expm(x: _ArrayLike, /) -> Tensor:
    """The exponential of square matrices, `1 + x + x @ x / 2 + ...`, by scaling and squaring."""

def generalized_eigh(a: _ArrayLike, b: _ArrayLike, /) -> EighResult:
    """The eigenvalues and eigenvectors of `a @ v = w * (b @ v)` for Hermitian `a` and positive
    definite `b`; the vectors are orthonormal by b: `V.mH @ b @ V = 1`.
    """

def hankel(c: _ArrayLike, r: _ArrayLike | None = None, /) -> Tensor:
    """The matrices with constant antidiagonals that have the first column `c` and the last row
    `r`, whose first element is not looked at; `r` is by default zeros.
    """

def inv(x: _ArrayLike, /) -> Tensor:
    """The inverse of square matrices; to solve a system, `solve` is more accurate and faster."""

def khatri_rao(a: _ArrayLike, b: _ArrayLike, /) -> Tensor:
    """The Kronecker products of the columns of two matrices, as columns."""

def kron(a: _ArrayLike, b: _ArrayLike, /) -> Tensor:
    """The Kronecker product: blocks `a[i, j] * b`."""

def ldl(x: _ArrayLike, /) -> LdlResult:
    """The factors of `x = L @ D @ L.mH` for Hermitian matrices: the rows of L in the order of
    the permutation are a lower triangle with ones on the diagonal, and D has blocks of one
    and two.
    """

def logm(x: _ArrayLike, /) -> Tensor:
    """The principal logarithm of square matrices: `expm(l) = x`."""

def lstsq(a: _ArrayLike, b: _ArrayLike, /, *, rcond: float | None = None) -> LstsqResult:
    """The shortest `x` among those with the least `norm(a @ x - b)`; also the sums of squares
    that remain, for each column, the rank, and the singular values of `a`.
    """

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

def matrix_function(f: Callable[[Any], Any], x: _ArrayLike, /) -> Tensor:
    """`V @ diag(f(w)) @ V.mH` for Hermitian matrices `V @ diag(w) @ V.mH` and a real function
    of each element, made of operations.
    """

def matrix_norm(x: _ArrayLike, /, *, keepdims: bool = False, ord: str | float = "fro") -> Tensor:
    """The norm of matrices: "fro" the root of the sum of squares, "nuc" the sum of the singular
    values, 2 and -2 the largest and smallest singular value, 1 and -1 the largest and
    smallest sum of a column, inf and -inf of a row.
    """

def matrix_power(x: _ArrayLike, n: int, /) -> Tensor:
    """The product of `n` copies of square matrices; of the inverse if `n` is negative."""

def matrix_rank(x: _ArrayLike, /, *, rtol: float | None = None) -> Tensor:
    """How many singular values are above `rtol` times the largest: by default max(m, n) times
    the spacing of numbers.
    """

def multi_dot(arrays: Sequence[_ArrayLike], /) -> Tensor:
    """The product of a chain of matrices, in the order of the fewest multiplications."""

def null_space(x: _ArrayLike, /, *, rcond: float | None = None) -> Tensor:
    """An orthonormal basis, as columns, of the vectors that a matrix makes 0."""

def orth(x: _ArrayLike, /, *, rcond: float | None = None) -> Tensor:
    """An orthonormal basis, as columns, of the range of a matrix; `rcond` as in `null_space`."""

def pinv(x: _ArrayLike, /, *, rtol: float | None = None) -> Tensor:
    """The pseudoinverse of matrices: singular values up to `rtol` times the largest count as 0."""

def polar(x: _ArrayLike, /, *, side: str = "right") -> PolarResult:
    """The factors of `x = U @ P`, or of `x = P @ U` with side "left": orthonormal columns (or
    rows) and a positive semidefinite matrix.
    """

def qr(x: _ArrayLike, /, *, mode: str = "reduced") -> QRResult:
    """The factors of `x = Q @ R`: orthonormal columns and an upper triangle."""

def schur(x: _ArrayLike, /, *, output: str = "real") -> SchurResult:
    """The factors of `x = Z @ T @ Z.mH`: an upper triangle with the eigenvalues on its
    diagonal, and a unitary matrix.
    """

def slogdet(x: _ArrayLike, /) -> SlogdetResult:
    """The sign of the determinant (for complex matrices its phase) and the logarithm of its
    size.
    """

def solve(x1: _ArrayLike, x2: _ArrayLike, /) -> Tensor:
    """The solution of `x1 @ x = x2` for square matrices."""

def solve_banded(l_and_u: tuple[int, int], ab: _ArrayLike, b: _ArrayLike, /) -> Tensor:
    """The solution of `A @ x = b` for a matrix with `l` diagonals below the main one and `u`
    above.
    """

def solve_lyapunov(a: _ArrayLike, q: _ArrayLike, /) -> Tensor:
    """The solution of `a @ x + x @ a.mH = q`."""

def solve_sylvester(a: _ArrayLike, b: _ArrayLike, q: _ArrayLike, /) -> Tensor:
    """The solution of `a @ x + x @ b = q`."""

def solve_toeplitz(c: _ArrayLike, b: _ArrayLike, /, *, r: Any = None) -> Tensor:
    """The solution of `toeplitz(c, r) @ x = b`, by the LU factorisation of the whole matrix."""

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

def sqrtm(x: _ArrayLike, /) -> Tensor:
    """The principal square root of square matrices: `r @ r = x`."""

def svd(x: _ArrayLike, /, *, full_matrices: bool = True) -> SVDResult:
    """The factors of `x = U[:, :k] @ diag(S) @ Vh[:k, :]`: orthonormal columns, decreasing
    singular values, orthonormal rows; k = min(m, n).
    """

def svdvals(x: _ArrayLike, /) -> Tensor:
    """The singular values of matrices, in decreasing order."""

def toeplitz(c: _ArrayLike, r: _ArrayLike | None = None, /) -> Tensor:
    """The matrices with constant diagonals that have the first column `c` and the first row
    `r`, whose first element is not looked at; `r` is by default the conjugate of `c`.
    """

def trace(x: _ArrayLike, /, *, offset: int = 0, dtype: _DTypeLike | None = None) -> Tensor:
    """The sum of a diagonal of matrices."""

def vander(x: _ArrayLike, n: int | None = None, /, *, increasing: bool = False) -> Tensor:
    """The matrices whose columns are the powers of vectors, the highest first unless
    `increasing`; there are `n` of them, by default as many as elements.
    """

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
