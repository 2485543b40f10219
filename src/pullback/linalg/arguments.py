"""What the operations of linear algebra have in common: arguments, and pieces of rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import Aval
from pullback.core.dtypes import default_float
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.array import make
from pullback.ir.convert import as_array
from pullback.ir.lowering import Boxes, Placement
from pullback.ir.samples import Bad, Draw
from pullback.ops.arithmetic import abs as abs_
from pullback.ops.creation import eye
from pullback.ops.diagonals import diagonal
from pullback.ops.extrema import max as max_
from pullback.ops.families import broadcast_shapes
from pullback.ops.movement import broadcast_to, permute_dims, reshape
from pullback.ops.parts import astype, cc, conj
from pullback.ops.promotion import same_dtype
from pullback.ops.reductions import sum as sum_

__all__ = [
    "adjoint",
    "detached",
    "given",
    "matrices",
    "matrix_errors",
    "square",
    "square_errors",
    "swapped",
    "together",
]

NARROW = (dt.float16, dt.bfloat16)


def inexact(name: str, x: Any) -> Any:
    """The array with elements that LAPACK takes: integers become the default float."""
    x = as_array(x, name)
    if x._aval.dtype in NARROW:
        raise DTypeError(
            f"{name}: takes float32, float64, complex64 and complex128, got {x._aval.dtype.name}."
            " Cast with astype."
        )
    return x if x._aval.dtype.is_inexact else astype(x, default_float())


def matrices(name: str, x: Any) -> Any:
    """The argument as matrices in the last two axes."""
    x = inexact(name, x)
    if x._aval.ndim < 2:
        raise ShapeError(
            f"{name}: a matrix has at least two dimensions, got shape {x._aval.shape}."
        )
    return x


def square(name: str, x: Any) -> Any:
    """The argument as square matrices."""
    x = matrices(name, x)
    if x._aval.shape[-1] != x._aval.shape[-2]:
        raise ShapeError(f"{name}: a square matrix is needed, got shape {x._aval.shape}.")
    return x


def together(name: str, *xs: Any) -> list[Any]:
    """Arrays of one dtype that LAPACK takes."""
    return [inexact(name, x) for x in same_dtype(name, *xs)]


def right_sides(name: str, a: Any, b: Any) -> tuple[Any, Any, bool]:
    """Square matrices and right-hand sides as columns, and whether these are one vector."""
    a, b = together(name, square(name, a), b)
    vector = b._aval.ndim == 1
    if vector:
        b = reshape(b, (*b._aval.shape, 1))
    if b._aval.ndim < 2 or a._aval.shape[-1] != b._aval.shape[-2]:
        raise ShapeError(
            f"{name}: the right-hand side needs a row for each row of the matrix, got shapes"
            f" {a._aval.shape} and {b._aval.shape}."
        )
    broadcast_shapes(name, a._aval.shape[:-2], b._aval.shape[:-2])
    return a, b, vector


def swapped(x: Any) -> Any:
    """The transpose."""
    n = x._aval.ndim
    return permute_dims(x, (*range(n - 2), n - 1, n - 2))


def adjoint(x: Any) -> Any:
    """The conjugate transpose."""
    return swapped(cc(x))


def skew_part(x: Any) -> Any:
    """x - x^H."""
    return x - adjoint(x)


def diagonal_of(x: Any) -> Any:
    """The diagonals of matrices."""
    return diagonal(x, axis1=-2, axis2=-1)


def on_diagonal(x: Any) -> Any:
    """Matrices with these diagonals."""
    n = x._aval.shape[-1]
    ones = eye(n, dtype=x._aval.dtype, device=x._aval.device)
    return reshape(x, (*x._aval.shape, 1)) * ones


def with_phase(x: Any, y: Any) -> Any:
    """The real part of x with the imaginary part of y."""
    if not x._aval.dtype.is_complex:
        return x
    return (x + conj(x) + y - conj(y)) * 0.5


def detached(x: Any) -> Any:
    """The same value without a history."""
    return make(x._buf, x._aval)


def largest(x: Any, axis: Any, *, keepdims: bool = False) -> Any:
    """The size of the largest element along axes, without a history; 0 if there is none."""
    x = abs_(detached(x))
    reduce = max_ if x._aval.size else sum_
    return reduce(x, axis=axis, keepdims=keepdims)


def spacing(x: Any) -> float:
    """The distance of 1 and the next number of the dtype."""
    return float(np.finfo(x._aval.dtype.numpy).eps)


def like_eye(x: Any) -> Any:
    """Identity matrices of the size and batch of square ones."""
    av = x._aval
    return broadcast_to(eye(av.shape[-1], dtype=av.dtype, device=av.device), av.shape)


def given(position: int) -> Boxes:
    """The lowering of an operation whose result is an operand, computed from the others: what the
    operation adds is the rule.
    """

    def place(*avals: Aval, **static: Any) -> list[Placement]:
        shape = avals[position].shape
        return [Placement(position, (0,) * len(shape), (1,) * len(shape), shape)]

    return Boxes(place)


def zero_rule(g: Any) -> None:
    """The rule of an operand that only says again what is known from another."""
    return None


def matrix_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(3),), {}, ShapeError, "at least two dimensions"),
        Bad((object(),), {}, DTypeError, "expected an array"),
        Bad((np.ones((2, 2), np.float16),), {}, DTypeError, "got float16"),
    ]


def square_errors(d: Draw) -> list[Bad]:
    return [*matrix_errors(d), Bad((d.real(2, 3),), {}, ShapeError, "square matrix")]


def floats(oracle: Callable[..., Any]) -> Callable[..., Any]:
    """The oracle, given integers as numbers of the default float."""

    def call(*args: Any, **kwargs: Any) -> Any:
        wide = [
            a.astype(default_float().numpy)
            if isinstance(a, np.ndarray) and a.dtype.kind in "biu"
            else a
            for a in args
        ]
        return oracle(*wide, **kwargs)

    return call


def regular(d: Draw, *shape: int) -> np.ndarray:
    """Matrices far from singular ones, and far from symmetric ones."""
    n = min(shape[-2:])
    x = d.real(*shape) * d.dtype.type(0.5)
    x[..., np.arange(n), np.arange(n)] += np.asarray(3 + np.arange(n) * 1.5, d.dtype)
    return x


def hermitian(d: Draw, *shape: int) -> np.ndarray:
    """Hermitian matrices with eigenvalues that are far apart, some of them negative."""
    n = shape[-1]
    x = d.real(*shape) * d.dtype.type(0.25)
    x = (x + np.conj(np.swapaxes(x, -1, -2))) / 2
    x[..., np.arange(n), np.arange(n)] += np.asarray(4.0 * np.arange(n) - 3, d.dtype)
    return x.astype(d.dtype)


def positive(d: Draw, *shape: int) -> np.ndarray:
    """Positive definite matrices with eigenvalues that are far apart."""
    n = shape[-1]
    return (hermitian(d, *shape) + np.asarray(5 * np.eye(n), d.dtype)).astype(d.dtype)


Compare = Callable[[Any, Sequence[Any], Sequence[Any]], list[Any]]
