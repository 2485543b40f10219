"""Eigenvalues and eigenvectors of matrices that need not be Hermitian: complex numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.avals import Aval
from pullback.core.dtypes import DType
from pullback.ir.cost import matrix_work
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import bind
from pullback.ir.samples import Draw, Sample
from pullback.linalg.arguments import (
    adjoint,
    detached,
    diagonal_of,
    largest,
    on_diagonal,
    spacing,
    square,
    square_errors,
    swapped,
)
from pullback.linalg.checks import vanishing
from pullback.linalg.hermitian import off_diagonal, projectors, within
from pullback.linalg.lu import factor, solved
from pullback.ops.arithmetic import abs as abs_
from pullback.ops.families import primitive
from pullback.ops.movement import reshape
from pullback.ops.parts import astype, conj, imag, real
from pullback.ops.products import matmul
from pullback.ops.requirements import require
from pullback.ops.selection import where

__all__ = ["eig", "eigvals"]


class EigResult(NamedTuple):
    """Eigenvalues, and eigenvectors of length 1 as columns."""

    eigenvalues: Any
    eigenvectors: Any


def complex_of(dtype: DType) -> DType:
    """The complex dtype with parts of a dtype."""
    return dt.complex64 if dtype.real is dt.float32 else dt.complex128


# `eig` binds eigenvalues, then eigenvectors column after column, in one row.


def _parts(flat: Any) -> tuple[Any, Any]:
    *batch, size = flat._aval.shape
    n = round((size + 0.25) ** 0.5 - 0.5)
    return flat[..., :n], swapped(reshape(flat[..., n:], (*batch, n, n)))


_EQUAL = (
    "has equal eigenvalues, and the function depends on what their eigenvectors are: its derivative"
    " is not determined by eigenvalues and eigenvectors."
)
_PHASE = (
    "has complex eigenvectors, which are free up to a phase, and the function depends on it: it has"
    " no derivative."
)


def _factors(values: Any) -> tuple[Any, Any]:
    """Which pairs (i, j) of values are equal, and 1 / (w[j] - w[i]) for the others, else 0."""
    n = values._aval.shape[-1]
    rows = reshape(values, (*values._aval.shape, 1))
    columns = reshape(values, (*values._aval.shape[:-1], 1, n))
    size = largest(values, -1)
    difference = columns - rows
    bound = reshape(size * (n * spacing(size)), (*size._aval.shape, 1, 1))
    equal = abs_(detached(difference)) <= bound
    return equal, where(equal, 0.0, 1.0 / where(equal, 1.0, difference))


def _conjugated(vectors: Any, inner: Any) -> Any:
    """V^-H inner V^H."""
    f = factor(detached(vectors))
    return solved(vectors, matmul(inner, adjoint(vectors)), f, adjoint=True, caller="eig")


def _fitting(g: Any, x_aval: Aval) -> Any:
    return g if x_aval.dtype.is_complex else real(g)


def _vjp(g: Any, out: Any, x_aval: Aval) -> Any:
    values, vectors = _parts(out)
    gw, gv = _parts(g)
    m = matmul(adjoint(vectors), gv)
    m = require(m, vanishing(imag(detached(diagonal_of(m)))[..., None], gv), "eig", _PHASE)
    equal, factors = _factors(values)
    length = on_diagonal(astype(real(diagonal_of(m)), m._aval.dtype))
    moved = m - matmul(matmul(adjoint(vectors), vectors), length)
    moved = require(moved, vanishing(within(moved, equal), gv), "eig", _EQUAL)
    inner = on_diagonal(gw) + off_diagonal(moved) * conj(factors)
    return _fitting(_conjugated(vectors, inner), x_aval)


def _separated(d: Draw, *shape: int) -> np.ndarray:
    """Matrices with eigenvalues that are far apart, for real ones a conjugate pair among them."""
    n = shape[-1]
    x = d.real(*shape) * d.dtype.type(0.3)
    x[..., np.arange(n), np.arange(n)] += np.asarray(4.0 * (np.arange(n) // 2) + 2, d.dtype)
    for i in range(0, n - 1, 2):
        x[..., i, i + 1] += 3
        x[..., i + 1, i] -= 3
    return x


def _samples(d: Draw) -> list[Sample]:
    return [
        Sample((_separated(d, 3, 3),)),
        Sample((_separated(d, 2, 2, 3, 3),), order=1),
        Sample((_separated(d, 4, 4),), order=2),
        Sample((_separated(d, 1, 1),)),
        Sample((d.real(0, 0),)),
        Sample((_separated(d, 30, 30),), order=0),
    ]


def _determined(xp: Any, outs: list) -> list:
    """What does not depend on the order of eigenvalues, which differs between precisions: sums of
    their powers, and of projectors with these as weights.
    """
    values, *vectors = outs
    weights = [values**k for k in (1, 2, 3)]
    sums = [xp.sum(w, axis=-1) for w in weights]
    for v in vectors:
        own = projectors(xp, v)
        sums += [xp.sum(own * w[..., None, None], axis=-3) for w in weights]
    return sums


@primitive(
    "x",
    infer=lambda x: (
        (*x.shape[:-2], x.shape[-1] * (x.shape[-1] + 1)),
        complex_of(x.dtype),
    ),
    lowering=Intrinsic("eig", raises=True, work=matrix_work),
    vjp={"x": _vjp},
    jvp="transpose",
    batch="rows",
    oracle=lambda x: tuple(a.astype(np.result_type(x, np.complex64)) for a in np.linalg.eig(x)),
    samples=_samples,
    errors=square_errors,
    namespace="linalg",
    tolerance=64,
    determined=_determined,
)
def eig(x: Any, /) -> EigResult:
    """The eigenvalues of square matrices, and eigenvectors of length 1 as columns, both complex:
    `x @ V = V @ diag(w)`.

    Order and phases are those of LAPACK. A derivative that depends on phases, or on which
    eigenvectors stand for equal eigenvalues, does not exist: that raises. For Hermitian matrices
    use `eigh`.

    >>> pb.linalg.eig(pb.tensor([[0.0, 1.0], [-1.0, 0.0]])).eigenvalues
    tensor([0.+1.j, 0.-1.j], complex64, cpu)
    """
    return EigResult(*_parts(bind(eig.op, square("eig", x))))


def _values_vjp(g: Any, x: Any, x_aval: Aval) -> Any:
    _, vectors = _parts(bind(eig.op, x))
    return _fitting(_conjugated(vectors, on_diagonal(g)), x_aval)


def _values_jvp(t: Any, x: Any) -> Any:
    _, vectors = _parts(bind(eig.op, x))
    f = factor(detached(vectors))
    moved = matmul(astype(t, vectors._aval.dtype), vectors)
    return diagonal_of(solved(vectors, moved, f, caller="eigvals"))


@primitive(
    "x",
    infer=lambda x: (x.shape[:-1], complex_of(x.dtype)),
    lowering=Intrinsic("eigvals", raises=True, work=matrix_work),
    vjp={"x": _values_vjp},
    jvp={"x": _values_jvp},
    batch="rows",
    oracle=lambda x: np.linalg.eigvals(x).astype(np.result_type(x, np.complex64)),
    samples=_samples,
    errors=square_errors,
    namespace="linalg",
    tolerance=64,
    determined=_determined,
)
def eigvals(x: Any, /) -> Any:
    """The eigenvalues of square matrices, complex, in the order of LAPACK.

    >>> pb.linalg.eigvals(pb.tensor([[0.0, 1.0], [-1.0, 0.0]]))
    tensor([0.+1.j, 0.-1.j], complex64, cpu)
    """
    return bind(eigvals.op, square("eigvals", x))
