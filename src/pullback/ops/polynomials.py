"""Polynomials by their coefficients, highest power first, as NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.core.dtypes import default_float
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array, from_numpy
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.correlation import convolve
from pullback.ops.creation import zeros
from pullback.ops.families import composite
from pullback.ops.movement import broadcast_to, concat, reshape
from pullback.ops.parts import astype
from pullback.ops.promotion import same_dtype

__all__ = ["polyadd", "polyder", "polyint", "polymul", "polysub", "polyval"]


def _coefficients(name: str, p: Any) -> Any:
    p = as_array(p, name)
    if p._aval.ndim > 1:
        raise ShapeError(f"{name}: coefficients are 1-D, got shape {p._aval.shape}.")
    return reshape(p, (-1,)) if p._aval.ndim == 0 else p


def _pair_errors() -> Callable[[Draw], list[Bad]]:
    return lambda d: [Bad((d.real(2, 2), d.real(2)), {}, ShapeError, "1-D")]


def _pair_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(4), d.real(2))),
        Sample((d.real(2), d.real(3))),
        Sample((d.integers(3, low=1), d.integers(3, low=1))),
    ]


@composite(
    oracle="numpy.polyval",
    samples=lambda d: [
        Sample((d.real(4), d.real(2, 3))),
        Sample((d.real(1), d.real(3))),
        Sample((d.real(3), d.real())),
        Sample((d.integers(3), d.integers(4))),
    ],
    errors=lambda d: [Bad((d.real(2, 2), d.real(2)), {}, ShapeError, "1-D")],
)
def polyval(p: Any, x: Any, /) -> Any:
    """The polynomial `p[0] x^(n - 1) + ... + p[n - 1]` at `x`, by Horner's rule.

    >>> pb.polyval(pb.tensor([1.0, 0.0, -2.0]), pb.tensor([0.0, 3.0]))
    tensor([-2.,  7.], float32, cpu)
    """
    p, x = same_dtype("polyval", p, x)
    p = _coefficients("polyval", p)
    if p._aval.size == 0:
        return zeros(x._aval.shape, dtype=x._aval.dtype, device=x._aval.device)
    value = broadcast_to(p[0], x._aval.shape)
    for k in range(1, p._aval.size):
        value = value * x + p[k]
    return value


@composite(oracle="numpy.polymul", samples=_pair_samples, errors=_pair_errors())
def polymul(a1: Any, a2: Any, /) -> Any:
    """The product of two polynomials.

    >>> pb.polymul(pb.tensor([1, 2]), pb.tensor([1, -2]))
    tensor([ 1,  0, -4], int64, cpu)
    """
    a, b = (_coefficients("polymul", a) for a in same_dtype("polymul", a1, a2))
    if a._aval.size == 0 or b._aval.size == 0:
        return zeros((1,), dtype=a._aval.dtype, device=a._aval.device)
    return convolve(a, b)


def _aligned(name: str, a1: Any, a2: Any) -> tuple[Any, Any]:
    """Both with as many coefficients, by zeros in front."""
    a, b = (_coefficients(name, a) for a in same_dtype(name, a1, a2))
    n = max(a._aval.size, b._aval.size)
    first, second = (
        concat([zeros((n - v._aval.size,), dtype=v._aval.dtype, device=v._aval.device), v])
        for v in (a, b)
    )
    return first, second


@composite(oracle="numpy.polyadd", samples=_pair_samples, errors=_pair_errors())
def polyadd(a1: Any, a2: Any, /) -> Any:
    """The sum of two polynomials.

    >>> pb.polyadd(pb.tensor([1, 2, 3]), pb.tensor([1, -2]))
    tensor([1, 3, 1], int64, cpu)
    """
    a, b = _aligned("polyadd", a1, a2)
    return a + b


@composite(oracle="numpy.polysub", samples=_pair_samples, errors=_pair_errors())
def polysub(a1: Any, a2: Any, /) -> Any:
    """The difference of two polynomials.

    >>> pb.polysub(pb.tensor([1, 2, 3]), pb.tensor([1, -2]))
    tensor([1, 1, 5], int64, cpu)
    """
    a, b = _aligned("polysub", a1, a2)
    return a - b


def _order(name: str, m: Any) -> int:
    if isinstance(m, bool) or not isinstance(m, (int, np.integer)) or m < 0:
        raise DTypeError(f"{name}: the order m must be an integer from 0 on, got {m!r}.")
    return int(m)


@composite(
    oracle="numpy.polyder",
    samples=lambda d: [Sample((d.real(4),)), Sample((d.real(5), 2)), Sample((d.integers(3),))],
    errors=lambda d: [
        Bad((d.real(3), -1), {}, DTypeError, "the order m"),
        Bad((d.real(2, 2),), {}, ShapeError, "1-D"),
    ],
)
def polyder(p: Any, /, m: int = 1) -> Any:
    """The coefficients of the m-th derivative of a polynomial.

    >>> pb.polyder(pb.tensor([1.0, 5.0, 7.0]))
    tensor([2., 5.], float32, cpu)
    """
    p = _coefficients("polyder", p)
    for _ in range(_order("polyder", m)):
        n = p._aval.size
        powers = np.arange(n - 1, 0, -1).astype(p._aval.dtype.real.numpy)
        p = p[: max(n - 1, 0)] * from_numpy(powers, p._aval.device)
    return p


@composite(
    oracle=lambda p, m=1, k=0: np.polyint(p, m, [k] * m if m else None),
    samples=lambda d: [Sample((d.real(4),)), Sample((d.real(3), 2)), Sample((d.real(3), 1, 2.5))],
    errors=lambda d: [
        Bad((d.real(3), -1), {}, DTypeError, "the order m"),
        Bad((d.real(2, 2),), {}, ShapeError, "1-D"),
    ],
)
def polyint(p: Any, /, m: int = 1, k: Any = 0.0) -> Any:
    """The coefficients of the m-th integral of a polynomial, each with the constant `k`.

    >>> pb.polyint(pb.tensor([2.0, 5.0]))
    tensor([1., 5., 0.], float32, cpu)
    """
    p = _coefficients("polyint", p)
    p = p if p._aval.dtype.is_inexact else astype(p, default_float())
    for _ in range(_order("polyint", m)):
        n = p._aval.size
        powers = np.arange(n, 0, -1).astype(p._aval.dtype.real.numpy)
        constant = astype(reshape(as_array(k, "polyint"), (1,)), p._aval.dtype)
        p = concat([p / from_numpy(powers, p._aval.device), constant])
    return p
