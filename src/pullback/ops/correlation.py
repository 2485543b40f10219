"""Covariances, and sums of products of sequences at all their shifts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.core.dtypes import default_float, promote
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array, from_numpy
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.arrangement import flip
from pullback.ops.convolution import conv
from pullback.ops.exponential import sqrt
from pullback.ops.families import composite
from pullback.ops.indexing import take
from pullback.ops.movement import concat, permute_dims, reshape
from pullback.ops.padding import pad
from pullback.ops.parts import astype, conj, real
from pullback.ops.products import matmul
from pullback.ops.promotion import same_dtype
from pullback.ops.reductions import sum
from pullback.ops.selection import clip

__all__ = ["convolve", "corrcoef", "correlate", "cov"]

MODES = ("full", "same", "valid")


# -- covariances -----------------------------------------------------------------------------------


def _variables(name: str, m: Any, y: Any, rowvar: bool) -> Any:
    """One variable in each row."""
    m = as_array(m, name)
    m = m if m._aval.dtype.is_inexact else astype(m, default_float())
    if m._aval.ndim > 2:
        raise ShapeError(f"{name}: takes 1-D or 2-D arrays, got shape {m._aval.shape}.")
    rows = reshape(m, (1, -1)) if m._aval.ndim < 2 else m
    if not rowvar and m._aval.ndim == 2:
        rows = permute_dims(rows, (1, 0))
    if y is None:
        return rows
    more = _variables(name, y, None, rowvar)
    if more._aval.shape[1] != rows._aval.shape[1]:
        raise ShapeError(
            f"{name}: all variables have as many observations, got {rows._aval.shape[1]} and"
            f" {more._aval.shape[1]}."
        )
    dtype = promote(rows._aval.dtype, more._aval.dtype)
    return concat([astype(rows, dtype), astype(more, dtype)], axis=0)


def _observation_weights(name: str, word: str, weights: Any, x: Any) -> Any:
    weights = as_array(weights, name)
    if weights._aval.shape != x._aval.shape[1:]:
        raise ShapeError(
            f"{name}: {word} has a weight for each of {x._aval.shape[1]} observations, got shape"
            f" {weights._aval.shape}."
        )
    return astype(weights, x._aval.dtype.real)


def _covariance(
    name: str, m: Any, y: Any, rowvar: bool, bias: bool, ddof: Any, fweights: Any, aweights: Any
) -> Any:
    x = _variables(name, m, y, rowvar)
    if ddof is not None and (isinstance(ddof, bool) or not isinstance(ddof, int)):
        raise DTypeError(f"{name}: ddof must be an integer, got {ddof!r}.")
    lost = (0 if bias else 1) if ddof is None else ddof
    weights: Any = None
    for word, given in (("fweights", fweights), ("aweights", aweights)):
        if given is not None:
            own = _observation_weights(name, word, given, x)
            weights = own if weights is None else weights * own
    if weights is None:
        n = x._aval.shape[1]
        centred = x - sum(x, axis=1, keepdims=True) / float(n)
        factor: Any = float(max(n - lost, 0))
        right = centred
    else:
        total = sum(weights)
        centred = x - sum(x * weights, axis=1, keepdims=True) / total
        factor = total - float(lost)
        if aweights is not None and lost:
            own = _observation_weights(name, "aweights", aweights, x)
            factor = total - lost * sum(weights * own) / total
        factor = clip(factor, 0.0, None)
        right = centred * weights
    return matmul(centred, conj(permute_dims(right, (1, 0)))) / factor


def _cov_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(3, 5),)),
        Sample((d.real(6),)),
        Sample((d.real(5, 2),), {"rowvar": False, "bias": True}),
        Sample((d.real(2, 5), d.real(5))),
        Sample((d.real(2, 5),), {"ddof": 0}),
    ]


def _weighted_samples(d: Draw) -> list[Sample]:
    counts = np.array([1, 2, 1, 3, 2])
    weights = np.array([0.5, 1.0, 2.0, 0.25, 1.5])
    return [
        Sample((d.real(2, 5),), {"fweights": counts}, order=1),
        Sample((d.real(2, 5),), {"fweights": counts, "aweights": weights}, order=1),
    ]


def _cov_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(2, 2, 2),), {}, ShapeError, "1-D or 2-D"),
        Bad((d.real(2, 3), d.real(4)), {}, ShapeError, "as many observations"),
    ]


@composite(
    oracle="numpy.cov",
    samples=lambda d: [*_cov_samples(d), *_weighted_samples(d)],
    errors=lambda d: [
        *_cov_errors(d),
        Bad((d.real(2, 3),), {"ddof": 0.5}, DTypeError, "ddof must be an integer"),
        Bad((d.real(2, 3),), {"aweights": np.ones(2)}, ShapeError, "a weight for each of 3"),
    ],
)
def cov(
    m: Any,
    /,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
) -> Any:
    """The covariances of variables, one in each row: sums of products over n - 1 (n if `bias`).

    >>> pb.cov(pb.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
    tensor([[ 1., -1.],
            [-1.,  1.]], float32, cpu)

    `y` has more variables; with `rowvar=False` columns are variables. `fweights` say how often an
    observation was made, `aweights` how much it counts.
    """
    found = _covariance("cov", m, y, rowvar, bias, ddof, fweights, aweights)
    return reshape(found, ()) if found._aval.shape == (1, 1) else found


@composite(
    oracle="numpy.corrcoef",
    samples=lambda d: [s for s in _cov_samples(d) if not set(s.kwargs) & {"bias", "ddof"}],
    errors=_cov_errors,
)
def corrcoef(x: Any, /, y: Any = None, rowvar: bool = True) -> Any:
    """The correlations of variables, one in each row: covariances over standard deviations.

    >>> pb.corrcoef(pb.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
    tensor([[ 1., -1.],
            [-1.,  1.]], float32, cpu)
    """
    c = _covariance("corrcoef", x, y, rowvar, False, None, None, None)
    n = c._aval.shape[0]
    if n == 1:  # 1 with a slope of exactly zero, which roots of the variance would miss by rounding
        return reshape(c / c, ())
    diagonal = take(reshape(c, (-1,)), from_numpy(np.arange(n) * (n + 1), c._aval.device))
    spread = sqrt(real(diagonal) if c._aval.dtype.is_complex else diagonal)
    return c / reshape(spread, (n, 1)) / spread


# -- all shifts ------------------------------------------------------------------------------------


def _pair(name: str, a: Any, v: Any, mode: Any) -> tuple[Any, Any]:
    if mode not in MODES:
        raise DTypeError(f"{name}: mode must be one of {', '.join(MODES)}, got {mode!r}.")
    a, v = same_dtype(name, a, v)
    for x in (a, v):
        if x._aval.ndim != 1 or x._aval.size == 0:
            raise ShapeError(
                f"{name}: takes 1-D arrays that are not empty, got {a._aval.shape} and"
                f" {v._aval.shape}."
            )
    return a, v


def _slid(longer: Any, shorter: Any, mode: str) -> Any:
    """The sums of products of a row with all parts of a longer one."""
    m = shorter._aval.size
    before, after = {"full": (m - 1, m - 1), "same": (m // 2, (m - 1) // 2), "valid": (0, 0)}[mode]
    wide = pad(longer, (before, after))
    n = wide._aval.size
    if longer._aval.dtype.is_inexact:
        return reshape(conv(reshape(wide, (1, 1, n)), reshape(shorter, (1, 1, m))), (-1,))
    places = np.arange(n - m + 1)[:, None] + np.arange(m)
    return matmul(take(wide, from_numpy(places, wide._aval.device)), shorter)


def _slide_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(7), d.real(3))),
        Sample((d.real(3), d.real(6), "same")),
        Sample((d.real(6), d.real(4), "same")),
        Sample((d.real(5), d.real(3), "valid")),
        Sample((d.real(3), d.real(5), "full")),
        Sample((d.integers(5), d.integers(3), "full")),
    ]


def _slide_errors() -> Callable[[Draw], list[Bad]]:
    return lambda d: [
        Bad((d.real(3), d.real(2), "most"), {}, DTypeError, "mode must be one of"),
        Bad((d.real(3, 2), d.real(2)), {}, ShapeError, "1-D arrays"),
        Bad((d.real(3), d.real(0)), {}, ShapeError, "not empty"),
    ]


@composite(oracle="numpy.convolve", samples=_slide_samples, errors=_slide_errors())
def convolve(a: Any, v: Any, /, mode: str = "full") -> Any:
    """The convolution of two sequences, `sum over j of a[j] v[k - j]`, by sums of products.

    >>> pb.convolve(pb.tensor([1, 2]), pb.tensor([1, 0, 3]))
    tensor([1, 2, 3, 6], int64, cpu)

    `mode`: "full", "same" (as long as the longer one) or "valid" (where they overlap wholly). For
    long sequences `pb.signal.fftconvolve` is faster.
    """
    a, v = _pair("convolve", a, v, mode)
    if v._aval.size > a._aval.size:
        a, v = v, a
    return _slid(a, flip(v), mode)


@composite(
    oracle="numpy.correlate",
    samples=lambda d: [*_slide_samples(d), Sample((d.real(4), d.real(4)))],
    errors=_slide_errors(),
)
def correlate(a: Any, v: Any, /, mode: str = "valid") -> Any:
    """The correlation of two sequences, `sum over j of a[j + k] conj(v[j])`, by sums of products.

    >>> pb.correlate(pb.tensor([1, 2, 3]), pb.tensor([0, 1, 5]), "full")
    tensor([ 5, 11, 17,  3,  0], int64, cpu)
    """
    a, v = _pair("correlate", a, v, mode)
    if v._aval.size > a._aval.size:
        return flip(conj(_slid(v, conj(a), mode)))
    return _slid(a, conj(v), mode)
