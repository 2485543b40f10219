"""Eigenvalues and eigenvectors of Hermitian matrices.

The derivative of eigenvectors has the factors `1 / (w[j] - w[i])`. Eigenvectors of an eigenvalue
that occurs several times are free up to a rotation: what a function makes of them has a derivative
only if it does not see the rotation, and even then these cotangents do not hold it. So at equal
eigenvalues (equal but for rounding) the rules take the factor 0, and raise where that would leave
something out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pullback.ir.cost import matrix_work
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import bind
from pullback.ir.samples import Sample
from pullback.linalg.arguments import (
    adjoint,
    detached,
    diagonal_of,
    hermitian,
    largest,
    on_diagonal,
    spacing,
    square,
    square_errors,
    swapped,
)
from pullback.linalg.checks import vanishing
from pullback.linalg.triangular import hermitian_part
from pullback.ops.arithmetic import abs as abs_
from pullback.ops.creation import eye
from pullback.ops.families import primitive
from pullback.ops.movement import concat, reshape
from pullback.ops.parts import astype, imag, real
from pullback.ops.products import matmul
from pullback.ops.requirements import require
from pullback.ops.selection import where

__all__ = ["eigh", "eigvalsh"]


class EighResult(NamedTuple):
    """Eigenvalues in increasing order, and eigenvectors as columns."""

    eigenvalues: Any
    eigenvectors: Any


# `eigh` binds eigenvalues, then eigenvectors column after column, in one row.


def parts(flat: Any) -> tuple[Any, Any]:
    """The eigenvalues, in the dtype of the matrix, and the eigenvectors."""
    *batch, size = flat._aval.shape
    n = round((size + 0.25) ** 0.5 - 0.5)
    return flat[..., :n], swapped(reshape(flat[..., n:], (*batch, n, n)))


def _packed(values: Any, vectors: Any) -> Any:
    *batch, n = values._aval.shape
    return concat([values, reshape(swapped(vectors), (*batch, n * n))], axis=-1)


def real_part(x: Any) -> Any:
    return real(x) if x._aval.dtype.is_complex else x


def apart(values: Any) -> tuple[Any, Any]:
    """Which pairs (i, j) of values are equal, and 1 / (v[j] - v[i]) for the others, else 0."""
    n = values._aval.shape[-1]
    rows = reshape(values, (*values._aval.shape, 1))
    columns = reshape(values, (*values._aval.shape[:-1], 1, n))
    size = largest(values, -1)
    bound = reshape(size * (n * spacing(values)), (*size._aval.shape, 1, 1))
    difference = columns - rows
    equal = abs_(detached(difference)) <= bound
    return equal, where(equal, 0.0, 1.0 / where(equal, 1.0, difference))


def off_diagonal(x: Any) -> Any:
    """The elements beside the diagonal."""
    n = x._aval.shape[-1]
    ones = eye(n, dtype=x._aval.dtype.real, device=x._aval.device)
    return where(ones == 0.0, x, 0.0)


def within(x: Any, equal: Any) -> Any:
    """The elements beside the diagonal that belong to equal values."""
    return off_diagonal(where(equal, detached(x), 0.0))


_EQUAL = (
    "has equal eigenvalues, and the function depends on what their eigenvectors are: its derivative"
    " is not determined by eigenvalues and eigenvectors. For V f(w) V^H use linalg.matrix_function."
)
_PHASE = (
    "has complex eigenvectors, which are free up to a phase, and the function depends on it: it has"
    " no derivative."
)


def _vjp(g: Any, out: Any) -> Any:
    values, vectors = parts(out)
    gw, gv = parts(g)
    m = matmul(adjoint(vectors), gv)
    if m._aval.dtype.is_complex:
        flags = vanishing(imag(detached(diagonal_of(m)))[..., None], gv)
        m = require(m, flags, "eigh", _PHASE)
    equal, factors = apart(real_part(values))
    m = require(m, vanishing(within(m, equal), gv), "eigh", _EQUAL)
    inner = on_diagonal(astype(real_part(gw), gv._aval.dtype))
    inner = inner + (m - adjoint(m)) * (factors * 0.5)
    return matmul(matmul(vectors, inner), adjoint(vectors))


def _jvp(t: Any, out: Any) -> Any:
    values, vectors = parts(out)
    t = hermitian_part(t)
    inner = matmul(matmul(adjoint(vectors), t), vectors)
    equal, factors = apart(real_part(values))
    inner = require(inner, vanishing(within(inner, equal), t), "eigh", _EQUAL)
    return _packed(diagonal_of(inner), matmul(vectors, inner * factors))


def _symmetric(x: np.ndarray) -> np.ndarray:
    return (x + np.conj(np.swapaxes(x, -1, -2))) / 2


def projectors(xp: Any, vectors: Any) -> Any:
    """v v^H for each column: what is determined of eigenvectors of length 1."""
    return xp.einsum("...ij,...kj->...jik", vectors, xp.conj(vectors))


def _samples(d: Any) -> list[Sample]:
    return [
        Sample((hermitian(d, 3, 3),)),
        Sample((hermitian(d, 2, 2, 3, 3),)),
        Sample((hermitian(d, 4, 4),), order=2),
        Sample((hermitian(d, 1, 1),)),
        Sample((d.real(0, 0),)),
        Sample((hermitian(d, 40, 40),), order=0),
    ]


@primitive(
    "x",
    infer=lambda x: ((*x.shape[:-2], x.shape[-1] * (x.shape[-1] + 1)), x.dtype),
    lowering=Intrinsic("eigh", raises=True, work=matrix_work),
    vjp={"x": _vjp},
    jvp={"x": _jvp},
    batch="rows",
    oracle=lambda x: tuple(np.linalg.eigh(_symmetric(x))),
    samples=_samples,
    errors=square_errors,
    namespace="linalg",
    tolerance=16,
    determined=lambda xp, outs: [outs[0], projectors(xp, outs[1])],
)
def eigh(x: Any, /) -> EighResult:
    """The eigenvalues of Hermitian matrices, in increasing order, and orthonormal eigenvectors as
    columns: `x = V @ diag(w) @ V.mH`.

    Of a matrix that is not Hermitian the Hermitian part is taken, as by `cholesky`. Signs and
    phases of eigenvectors are those that the method gives. A derivative that depends on them, or on
    which eigenvectors stand for equal eigenvalues, does not exist: that raises.

    >>> pb.linalg.eigh(pb.tensor([[2.0, 0.0], [0.0, 1.0]])).eigenvalues
    tensor([1., 2.], float32, cpu)
    """
    values, vectors = parts(bind(eigh.op, square("eigh", x)))
    return EighResult(real_part(values), vectors)


def _values_vjp(g: Any, x: Any) -> Any:
    _, vectors = parts(bind(eigh.op, x))
    rows = reshape(g, (*g._aval.shape[:-1], 1, g._aval.shape[-1]))
    return matmul(vectors * astype(rows, x._aval.dtype), adjoint(vectors))


def _values_jvp(t: Any, x: Any) -> Any:
    _, vectors = parts(bind(eigh.op, x))
    moved = matmul(matmul(adjoint(vectors), hermitian_part(t)), vectors)
    return real_part(diagonal_of(moved))


@primitive(
    "x",
    infer=lambda x: (x.shape[:-1], x.dtype.real),
    lowering=Intrinsic("eigvalsh", raises=True, work=matrix_work),
    vjp={"x": _values_vjp},
    jvp={"x": _values_jvp},
    batch="rows",
    oracle=lambda x: np.linalg.eigvalsh(_symmetric(x)),
    samples=_samples,
    errors=square_errors,
    namespace="linalg",
    tolerance=16,
)
def eigvalsh(x: Any, /) -> Any:
    """The eigenvalues of Hermitian matrices, in increasing order.

    The first derivative has no division: it is right where eigenvalues are equal too, for functions
    in which these count alike.

    >>> pb.linalg.eigvalsh(pb.tensor([[2.0, 0.0], [0.0, 1.0]]))
    tensor([1., 2.], float32, cpu)
    """
    return bind(eigvalsh.op, square("eigvalsh", x))
