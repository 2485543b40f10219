"""Polynomials that are fitted to points, and their roots; what needs no matrices is in
`ops.polynomials`. Coefficients are NumPy's: the highest power first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array
from pullback.ir.samples import Bad, Draw, Sample
from pullback.linalg.arguments import detached, together
from pullback.linalg.equations import vander
from pullback.linalg.general import eigvals
from pullback.linalg.least_squares import lstsq
from pullback.ops.arithmetic import abs as abs_
from pullback.ops.creation import eye, zeros
from pullback.ops.exponential import sqrt
from pullback.ops.families import composite
from pullback.ops.fourier import complex_of
from pullback.ops.movement import concat, reshape
from pullback.ops.parts import astype
from pullback.ops.reductions import sum as sum_

__all__ = ["polyfit", "roots"]


def _points(d: Draw, n: int) -> np.ndarray:
    """Places that are apart."""
    return (np.linspace(-1, 1, n) + 0.05 * d.real(n)).astype(d.dtype)


def _fit_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(2, 2), d.real(2), 1), {}, ShapeError, "x is 1-D"),
        Bad((d.real(3), d.real(2), 1), {}, ShapeError, "a value for each point"),
        Bad((d.real(3), d.real(3), -1), {}, DTypeError, "an integer from 0 on"),
        Bad((d.real(3), d.real(3), 1), {"w": d.real(2)}, ShapeError, "a weight for each point"),
    ]


@composite(
    oracle=lambda x, y, deg, *, rcond=None, w=None: np.polyfit(x, y, deg, rcond, w=w),
    samples=lambda d: [
        Sample((_points(d, 6), d.real(6), 2)),
        Sample((_points(d, 5), d.real(5, 2), 3)),
        Sample((_points(d, 5), d.real(5), 1), {"w": 1 + abs(d.real(5))}),
        Sample((_points(d, 3), d.real(3), 0)),
    ],
    errors=_fit_errors,
    tolerance=64,
)
def polyfit(x: Any, y: Any, deg: int, /, *, rcond: Any = None, w: Any = None) -> Any:
    """The coefficients of the polynomial of degree `deg` with the least sum of squares of
    `w * (polyval(p, x) - y)`; of each column of `y`, if it has columns.

    Columns of powers are brought to length 1 before `linalg.lstsq`, whose `rcond` is the number of
    points times the spacing of numbers.

    >>> pb.polyfit(pb.tensor([0.0, 1.0, 2.0]), pb.tensor([1.0, 3.0, 5.0]), 1).round(decimals=4)
    tensor([2., 1.], float32, cpu)
    """
    name = "polyfit"
    x, y = together(name, x, y)
    if isinstance(deg, bool) or not isinstance(deg, (int, np.integer)) or deg < 0:
        raise DTypeError(f"{name}: the degree is an integer from 0 on, got {deg!r}.")
    if x._aval.ndim != 1 or x._aval.size == 0:
        raise ShapeError(f"{name}: x is 1-D and not empty, got shape {x._aval.shape}.")
    n = x._aval.size
    if y._aval.ndim not in (1, 2) or y._aval.shape[0] != n:
        raise ShapeError(
            f"{name}: y has a value for each point, got shapes {x._aval.shape} and {y._aval.shape}."
        )
    powers = vander(x, int(deg) + 1)
    if w is not None:
        w = as_array(w, name)
        if w._aval.shape != (n,):
            raise ShapeError(f"{name}: there is a weight for each point, got {w._aval.shape}.")
        w = reshape(astype(w, x._aval.dtype), (n, 1))
        powers = powers * w
        y = y * (w if y._aval.ndim == 2 else reshape(w, (n,)))
    # The result does not depend on the lengths, so that their derivatives are left out.
    length = sqrt(sum_(abs_(detached(powers)) ** 2, axis=0))
    rcond = n * np.finfo(x._aval.dtype.real.numpy).eps if rcond is None else rcond
    found = lstsq(powers / length, y, rcond=rcond).solution
    return found / (reshape(length, (-1, 1)) if y._aval.ndim == 2 else length)


def _known_zeros(p: Any) -> int:
    """How many coefficients are 0 before the first that is not; none of a traced array."""
    if p._aval.is_symbolic:
        return 0
    values = detached(p).numpy()
    return int(np.argmax(values != 0)) if np.any(values) else len(values)


@composite(
    oracle=lambda p: np.roots(p).astype(np.result_type(p.dtype, np.complex64)),
    samples=lambda d: [
        Sample((np.array([1, -1.3, -1.7, 0.6], d.dtype),)),
        Sample((np.array([2, 0, 2], d.dtype),)),
        Sample((np.array([1.5, 3], d.dtype),)),
        Sample((np.array([2.0], d.dtype),), order=0),
    ],
    errors=lambda d: [Bad((d.real(2, 2),), {}, ShapeError, "1-D")],
    tolerance=64,
    # Their order jumps, and so do differences of roots.
    determined=lambda xp, outs: [xp.sum(xp.exp(outs[0] * k)) for k in (1, 2)],
)
def roots(p: Any, /) -> Any:
    """The complex roots of the polynomial `p[0] x^(n - 1) + ... + p[n - 1]`: the eigenvalues of its
    companion matrix, in the order of LAPACK.

    Leading zeros are left out, but of a traced or mapped array, whose first coefficient is taken
    not to be 0. Where roots are equal they have no derivative.

    >>> abs(pb.roots(pb.tensor([1.0, 0.0, 4.0]))).round(decimals=4)
    tensor([2., 2.], float32, cpu)
    """
    (p,) = together("roots", p)
    if p._aval.ndim != 1:
        raise ShapeError(f"roots: coefficients are 1-D, got shape {p._aval.shape}.")
    p = p[_known_zeros(p) :]
    n, dtype, dev = p._aval.size - 1, p._aval.dtype, p._aval.device
    if n < 1:
        return zeros((0,), dtype=complex_of(dtype), device=dev)
    first = reshape(-p[1:] / p[0], (1, n))
    return eigvals(concat([first, eye(n - 1, n, dtype=dtype, device=dev)], axis=-2))
