"""The QR factorisation."""

from __future__ import annotations

from typing import Any, NamedTuple

from pullback.core.avals import Aval
from pullback.core.errors import DTypeError
from pullback.ir.cost import matrix_work
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.linalg.arguments import (
    adjoint,
    diagonal_of,
    matrices,
    matrix_errors,
    on_diagonal,
    regular,
    skew_part,
    swapped,
    with_phase,
)
from pullback.linalg.checks import vanishing
from pullback.linalg.triangular import triangular
from pullback.ops.diagonals import tril, triu
from pullback.ops.families import primitive
from pullback.ops.movement import concat, reshape
from pullback.ops.products import matmul
from pullback.ops.requirements import require

__all__ = ["qr"]


class QRResult(NamedTuple):
    """A matrix with orthonormal columns, and an upper triangle."""

    Q: Any
    R: Any


# `qr` binds Q column after column, then R row after row.


def _inner(x: Aval, complete: bool) -> int:
    """Columns of Q."""
    return x.shape[-2] if complete else min(x.shape[-2:])


def _infer(x: Aval, complete: bool) -> tuple:
    m, n = x.shape[-2:]
    q = _inner(x, complete)
    return (*x.shape[:-2], m * q + q * n), x.dtype


def _parts(flat: Any, x: Aval, complete: bool) -> tuple[Any, Any]:
    """Q and R."""
    m, n = x.shape[-2:]
    q, batch = _inner(x, complete), x.shape[:-2]
    left = reshape(flat[..., : m * q], (*batch, q, m))
    return swapped(left), reshape(flat[..., m * q :], (*batch, q, n))


def _square_pull(gq: Any, gr: Any, q: Any, r: Any) -> Any:
    """The cotangent of A, as tall as wide at least, before it is multiplied by R^-H.

    With C = Q^H dA R^-1: the strict lower triangle of C makes dQ = Q (L - L^H), what remains of C
    makes dR = T R; the diagonal of R is real.
    """
    x, y = matmul(adjoint(q), gq), matmul(gr, adjoint(r))
    low = tril(x - adjoint(x) + adjoint(y), k=-1)
    middle = on_diagonal(with_phase(diagonal_of(y), diagonal_of(x)))
    return gq + matmul(q, triu(y, k=1) + low + middle - x)


def _over(x: Any, r: Any) -> Any:
    """x R^-H."""
    return adjoint(triangular(r, adjoint(x), False))


def _vjp(g: Any, x: Any, out: Any, x_aval: Aval, complete: bool) -> Any:
    q, r = _parts(out, x_aval, complete)
    gq, gr = _parts(g, x_aval, complete)
    gr = triu(gr)
    m, n = x_aval.shape[-2:]
    if m >= n:
        q1, r1 = q[..., :, :n], r[..., :n, :]
        found = _square_pull(gq[..., :, :n], gr[..., :n, :], q1, r1)
        if complete and m > n:
            q2, g2 = q[..., :, n:], gq[..., :, n:]
            spin = skew_part(matmul(adjoint(q2), g2))
            flags = vanishing(spin, g2)
            found = found - matmul(q2, matmul(adjoint(g2), q1))
            found = require(found, flags, "qr", _FREE)
        return _over(found, r1)
    gq = gq + matmul(x[..., :, m:], adjoint(gr[..., :, m:]))
    r1 = r[..., :, :m]
    left = _over(_square_pull(gq, gr[..., :, :m], q, r1), r1)
    return concat([left, matmul(q, gr[..., :, m:])], axis=-1)


_FREE = (
    "has columns of Q beyond its own that are free up to a rotation, and the function depends on"
    " it: it has no derivative."
)


def _samples(d: Draw) -> list[Sample]:
    return [
        Sample((regular(d, 3, 3),)),
        Sample((regular(d, 4, 2),)),
        Sample((regular(d, 2, 4),)),
        Sample((regular(d, 2, 3, 3),)),
        Sample((regular(d, 3, 3),), {"mode": "complete"}),
        Sample((regular(d, 2, 4),), {"mode": "complete"}),
        Sample((regular(d, 4, 2),), {"mode": "complete"}, order=0),
        Sample((d.real(0, 3),)),
        Sample((d.real(3, 0),), {"mode": "complete"}),
        Sample((regular(d, 80, 70),), order=0),
    ]


@primitive(
    "x",
    infer=_infer,
    lowering=Intrinsic("qr", work=matrix_work),
    vjp={"x": _vjp},
    jvp="transpose",
    batch="rows",
    oracle="numpy.linalg.qr",
    samples=_samples,
    errors=lambda d: [
        *matrix_errors(d),
        Bad((d.real(2, 2),), {"mode": "raw"}, DTypeError, "mode is 'reduced' or 'complete'"),
    ],
    namespace="linalg",
    tolerance=8,
)
def qr(x: Any, /, *, mode: str = "reduced") -> QRResult:
    """The factors of `x = Q @ R`: orthonormal columns and an upper triangle.

    Q has min(m, n) columns, or with mode "complete" m of them, which are a basis. The signs of the
    diagonal of R are those of LAPACK. The derivative of a matrix whose first columns depend on each
    other does not exist: that raises.

    >>> pb.linalg.qr(pb.tensor([[0.0, 2.0], [-3.0, 1.0]])).R
    tensor([[-3.,  1.],
            [ 0.,  2.]], float32, cpu)
    """
    if mode not in ("reduced", "complete"):
        raise DTypeError(f"qr: mode is 'reduced' or 'complete', got {mode!r}.")
    x = matrices("qr", x)
    return QRResult(
        *_parts(bind(qr.op, x, complete=mode == "complete"), x._aval, mode == "complete")
    )
