"""Losses of numbers: distances between predictions and targets, and likelihoods of counts, normal
variables and distributions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import (
    away_from_kinks,
    broadcast_check,
    detached,
    floating,
    inexact,
    numpy_reduced,
    option,
    ratio_of_sums,
    reduced,
    when_large,
    wide,
)
from pullback.ops.arithmetic import abs as abs_
from pullback.ops.creation import constant
from pullback.ops.exponential import exp, log
from pullback.ops.families import composite
from pullback.ops.movement import reshape
from pullback.ops.parts import astype, conj, real
from pullback.ops.reductions import sum
from pullback.ops.selection import where
from pullback.ops.special import xlogy

__all__ = [
    "gaussian_nll_loss", "huber_loss", "kl_div", "l1_loss", "mse_loss", "poisson_nll_loss",
    "smooth_l1_loss",
]  # fmt: skip


# -- distances -------------------------------------------------------------------------------------


def _weighted(name: str, loss: Any, weight: Any, reduction: str) -> Any:
    """Losses times weights; their mean is over the sum of the weights."""
    if weight is None:
        return reduced(name, loss, reduction)
    _same_shape(name, "weight", weight, loss)
    if reduction == "mean":
        return ratio_of_sums(loss * weight, weight)
    return reduced(name, loss * weight, reduction)


def _same_shape(name: str, what: str, x: Any, like: Any) -> None:
    if x._aval.shape != like._aval.shape:
        raise ShapeError(
            f"{name}: {what} must have the shape {like._aval.shape}, got {x._aval.shape}."
        )


def _apart(d: Draw, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs whose differences are not next to a multiple of 0.5."""
    steps = d.rng.integers(-2, 3, shape).astype(d.dtype)
    return away_from_kinks(d, *shape, scale=2.0), steps


def _samples(*options: dict[str, Any], weights: bool = True) -> Callable[[Draw], list[Sample]]:
    def samples(d: Draw) -> list[Sample]:
        found = [
            Sample(_apart(d, 3, 4)),
            Sample(_apart(d, 5), {"reduction": "sum"}),
            Sample(_apart(d, 2, 3), {"reduction": "none"}),
            Sample((_apart(d, 3, 1)[0], _apart(d, 2)[1])),
            Sample(_apart(d), {"reduction": "none"}),
            Sample(_apart(d, 0, 3), {"reduction": "sum"}),
            *[Sample(_apart(d, 3, 2), o) for o in options],
        ]
        if weights and d.dtype.kind != "c":
            for r in ("mean", "sum", "none"):
                found.append(Sample(_apart(d, 4), {"weight": d.positive(4), "reduction": r}))
        return found

    return samples


def _errors(*more: Bad, takes_complex: bool = False) -> Callable[[Draw], list[Bad]]:
    def errors(d: Draw) -> list[Bad]:
        found = [
            Bad((d.real(2), d.real(3)), {}, ShapeError, "do not broadcast"),
            Bad((d.real(2), d.real(2)), {"reduction": "max"}, DTypeError, "reduction is one of"),
            Bad((object(), d.real(2)), {}, DTypeError, "expected an array"),
            *more,
        ]
        if not takes_complex:
            found.append(Bad((d.real(2), np.ones(2, complex)), {}, DTypeError, "got complex128"))
        return found

    return errors


_WRONG_WEIGHT = Bad((np.ones(2), np.ones(2)), {"weight": np.ones(3)}, ShapeError, "weight must")


def _oracle(loss: Callable[..., np.ndarray], over_weights: bool = True) -> Callable[..., Any]:
    def oracle(
        input: Any, target: Any, reduction: str = "mean", weight: Any = None, **options: Any
    ) -> np.ndarray:
        found = loss(np.abs(input - target), **options)
        if weight is None:
            return numpy_reduced(found, reduction)
        if reduction == "mean" and over_weights:
            return np.asarray(np.average(found, weights=weight))
        return numpy_reduced(found * weight, reduction)

    return oracle


@composite(
    oracle=_oracle(np.square),
    samples=_samples(),
    errors=_errors(_WRONG_WEIGHT, takes_complex=True),
    namespace="nn",
)
@when_large
def mse_loss(input: Any, target: Any, *, reduction: str = "mean", weight: Any = None) -> Any:
    """The mean of `abs(input - target)**2`; with weights, the sum over the sum of these.

    >>> pb.nn.mse_loss(pb.tensor([1.0, 2.0]), pb.tensor([1.0, 4.0]))
    tensor(2., float32, cpu)
    """
    x, y, w = inexact("mse_loss", input, target, weight)
    broadcast_check("mse_loss", x, y)
    d = x - y
    squares = real(d * conj(d)) if d._aval.dtype.is_complex else d * d
    return _weighted("mse_loss", squares, w, reduction)


@composite(
    oracle=_oracle(np.positive),
    samples=_samples(),
    errors=_errors(_WRONG_WEIGHT, takes_complex=True),
    namespace="nn",
)
@when_large
def l1_loss(input: Any, target: Any, *, reduction: str = "mean", weight: Any = None) -> Any:
    """The mean of `abs(input - target)`; with weights, the sum over the sum of these.

    >>> pb.nn.l1_loss(pb.tensor([1.0, 2.0]), pb.tensor([1.0, 4.0]))
    tensor(1., float32, cpu)
    """
    x, y, w = inexact("l1_loss", input, target, weight)
    broadcast_check("l1_loss", x, y)
    return _weighted("l1_loss", abs_(x - y), w, reduction)


def _huber_like(size: np.ndarray, width: float, inner: float, outer: float) -> np.ndarray:
    return np.where(size < width, inner * size * size, outer * (size - 0.5 * width))


@composite(
    oracle=_oracle(
        lambda size, beta=1.0: size if beta == 0 else _huber_like(size, beta, 0.5 / beta, 1.0)
    ),
    samples=_samples({"beta": 0.5}, {"beta": 0.0}, weights=False),
    errors=_errors(Bad((np.ones(2), np.ones(2)), {"beta": -1.0}, ShapeError, "beta must not be")),
    namespace="nn",
)
@when_large
def smooth_l1_loss(input: Any, target: Any, *, reduction: str = "mean", beta: float = 1.0) -> Any:
    """`d**2 / (2 * beta)` where `d = abs(input - target)` is below beta, elsewhere `d - beta / 2`.

    >>> pb.nn.smooth_l1_loss(pb.tensor([0.5, 3.0]), pb.tensor([0.0, 0.0]), reduction="none")
    tensor([0.125, 2.5  ], float32, cpu)
    """
    x, y = floating("smooth_l1_loss", input, target)
    broadcast_check("smooth_l1_loss", x, y)
    if beta < 0:
        raise ShapeError(f"smooth_l1_loss: beta must not be negative, got {beta}.")
    d = x - y
    size = abs_(d)
    if beta:
        size = where(size < beta, d * d * (0.5 / beta), size - 0.5 * beta)
    return reduced("smooth_l1_loss", size, reduction)


@composite(
    oracle=_oracle(lambda size, delta=1.0: _huber_like(size, delta, 0.5, delta), False),
    samples=_samples({"delta": 1.5}),
    errors=_errors(
        _WRONG_WEIGHT,
        Bad((np.ones(2), np.ones(2)), {"delta": 0.0}, ShapeError, "delta must be positive"),
    ),
    namespace="nn",
)
@when_large
def huber_loss(
    input: Any, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None
) -> Any:
    """`d**2 / 2` for `d = abs(input - target)` below delta, above it `delta * (d - delta / 2)`.

    >>> pb.nn.huber_loss(pb.tensor([0.5, 3.0]), pb.tensor([0.0, 0.0]), reduction="none")
    tensor([0.125, 2.5  ], float32, cpu)
    """
    x, y, w = floating("huber_loss", input, target, weight)
    broadcast_check("huber_loss", x, y)
    if delta <= 0:
        raise ShapeError(f"huber_loss: delta must be positive, got {delta}.")
    d = x - y
    size = abs_(d)
    loss = where(size < delta, d * d * 0.5, (size - 0.5 * delta) * delta)
    if w is not None:
        _same_shape("huber_loss", "weight", w, loss)
        loss = loss * w
    return reduced("huber_loss", loss, reduction)


# -- likelihoods -----------------------------------------------------------------------------------


def _kl_oracle(
    input: Any, target: Any, *, reduction: str = "mean", log_target: bool = False
) -> np.ndarray:
    x, y = np.broadcast_arrays(input, target)
    out = np.zeros(x.shape, x.dtype)
    for place in np.ndindex(x.shape):
        p = np.exp(y[place]) if log_target else y[place]
        if p != 0:
            out[place] = p * (np.log(p) - x[place])
    if reduction == "batchmean":
        return np.asarray(out.sum() / x.shape[0])
    return numpy_reduced(out, reduction)


def _kl_samples(d: Draw) -> list[Sample]:
    zeros = d.positive(3)
    zeros[1] = 0.0
    return [
        Sample((d.real(2, 3), d.positive(2, 3))),
        Sample((d.real(2, 3), d.positive(2, 3)), {"reduction": "batchmean"}),
        Sample((d.real(2, 3), d.real(2, 3)), {"reduction": "sum", "log_target": True}),
        Sample((d.real(2, 3), d.positive(3)), {"reduction": "none"}),
        Sample((d.real(3), zeros), {"reduction": "none"}, order=0),
        Sample((d.real(0, 3), d.positive(0, 3)), {"reduction": "sum"}),
    ]


@composite(
    oracle=_kl_oracle,
    samples=_kl_samples,
    errors=_errors(
        Bad((np.float64(1), np.float64(1)), {"reduction": "batchmean"}, ShapeError, "no batch")
    ),
    namespace="nn",
)
def kl_div(input: Any, target: Any, *, reduction: str = "mean", log_target: bool = False) -> Any:
    """`target * (log(target) - input)`, where `input` and with `log_target` the target are logs.

    The divergence of distributions is their sum; "batchmean" divides it by the first axis.

    >>> pb.nn.kl_div(pb.log(pb.tensor([0.5, 0.5])), pb.tensor([1.0, 0.0]), reduction="sum")
    tensor(0.6931472, float32, cpu)
    """
    x, y = floating("kl_div", input, target)
    shape = broadcast_check("kl_div", x, y)
    option("kl_div", "reduction", reduction, ("none", "batchmean", "mean", "sum"))
    loss = exp(y) * (y - x) if log_target else xlogy(y, y) - y * x
    if reduction != "batchmean":
        return reduced("kl_div", loss, reduction)
    if not shape:
        raise ShapeError('kl_div: 0-d arrays have no batch. Use reduction="sum".')
    return astype(sum(wide(loss)) / shape[0], loss._aval.dtype)


def _poisson_oracle(
    input: Any,
    target: Any,
    log_input: bool = True,
    full: bool = False,
    *,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> np.ndarray:
    loss = np.exp(input) - target * input if log_input else input - target * np.log(input + eps)
    if full:
        t = np.where(target > 1, target, 1.0)
        stirling = t * np.log(t) - t + 0.5 * np.log(2 * np.pi * t)
        loss = loss + np.where(target > 1, stirling, 0.0)
    return numpy_reduced(loss, reduction)


@composite(
    oracle=_poisson_oracle,
    samples=lambda d: [
        Sample((d.real(2, 3), d.positive(2, 3))),
        Sample((d.positive(2, 3), d.positive(2, 3), False), {"eps": 1e-3, "reduction": "sum"}),
        Sample(
            (d.real(4), np.asarray([0, 1, 2, 5], d.dtype) + d.dtype.type(0.2)),
            {"full": True, "reduction": "none"},
        ),
        Sample((d.real(2, 1), d.positive(3))),
        Sample((d.real(0, 3), d.positive(0, 3)), {"reduction": "sum"}),
    ],
    errors=_errors(),
    namespace="nn",
)
def poisson_nll_loss(
    input: Any,
    target: Any,
    log_input: bool = True,
    full: bool = False,
    *,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Any:
    """`exp(input) - target * input`, or without `log_input` `input - target * log(input + eps)`.

    `full` adds Stirling's approximation of the logarithm of the factorial of targets above 1.

    >>> pb.nn.poisson_nll_loss(pb.tensor([0.0]), pb.tensor([3.0]))
    tensor(1., float32, cpu)
    """
    x, y = floating("poisson_nll_loss", input, target)
    broadcast_check("poisson_nll_loss", x, y)
    loss = exp(x) - y * x if log_input else x - y * log(x + eps)
    if full:
        large = y > 1.0
        t = where(large, y, 1.0)
        loss = loss + where(large, t * log(t) - t + log(t * (2.0 * math.pi)) * 0.5, 0.0)
    return reduced("poisson_nll_loss", loss, reduction)


def _gaussian_oracle(
    input: Any,
    target: Any,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> np.ndarray:
    var = np.asarray(var, input.dtype)
    if var.ndim and var.ndim == input.ndim - 1:
        var = var[..., None]
    var = np.maximum(var, eps)
    loss = 0.5 * (np.log(var) + (input - target) ** 2 / var)
    return numpy_reduced(loss + 0.5 * np.log(2 * np.pi) if full else loss, reduction)


@composite(
    oracle=_gaussian_oracle,
    samples=lambda d: [
        Sample((d.real(2, 3), d.real(2, 3), d.positive(2, 3))),
        Sample((d.real(2, 3), d.real(2, 3), d.positive(2)), {"reduction": "sum"}),
        Sample((d.real(2, 3), d.real(2, 3), d.positive(2, 1)), {"full": True}),
        Sample((d.real(3), d.real(3), 0.7), {"reduction": "none"}),
        Sample((d.real(2), d.real(2), np.zeros(2, d.dtype), False, 0.1), order=0),
        Sample((d.real(0, 3), d.real(0, 3), d.positive(0, 3)), {"reduction": "sum"}),
    ],
    errors=lambda d: [
        Bad((d.real(2), d.real(3), d.positive(2)), {}, ShapeError, "do not broadcast"),
        Bad((d.real(4, 3), d.real(4, 3), d.positive(3)), {}, ShapeError, "var must have"),
        Bad((d.real(4), d.real(4), -1.0), {}, ShapeError, "var must not be negative"),
        Bad((d.real(2), d.real(2), 1.0), {"reduction": "max"}, DTypeError, "reduction is one of"),
        Bad((d.real(2), np.ones(2, complex), 1.0), {}, DTypeError, "got complex128"),
    ],
    namespace="nn",
)
def gaussian_nll_loss(
    input: Any,
    target: Any,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    """`(log(var) + (input - target)**2 / var) / 2`, with a `var` of at least `eps`.

    `var` has the shape of `input`, or lacks its last axis, or has size 1 along one. Where it is
    raised to `eps` its derivative is that at `eps`. `full` adds `log(2 * pi) / 2`.

    >>> pb.nn.gaussian_nll_loss(pb.tensor([1.0]), pb.tensor([3.0]), pb.tensor([1.0]))
    tensor(2., float32, cpu)
    """
    name = "gaussian_nll_loss"
    if isinstance(var, (int, float)) and var < 0:
        raise ShapeError(f"{name}: var must not be negative, got {var}.")
    x, y = floating(name, input, target)
    broadcast_check(name, x, y)
    v = _variances(name, x, var)
    v = where(v < eps, (v - detached(v)) + eps, v)
    d = x - y
    loss = (log(v) + d * d / v) * 0.5
    return reduced(name, loss + 0.5 * math.log(2.0 * math.pi) if full else loss, reduction)


def _variances(name: str, x: Any, var: Any) -> Any:
    """The variances in a shape that broadcasts to that of `x`."""
    shape = x._aval.shape
    if isinstance(var, (int, float)):
        return constant(var, shape, x._aval.dtype, x._aval.device)
    _, v = floating(name, x, var)
    own = v._aval.shape
    if own == shape[:-1]:
        return reshape(v, (*own, 1))
    differing = [m for n, m in zip(shape, own, strict=False) if n != m]
    if len(own) != len(shape) or differing not in ([], [1]):
        raise ShapeError(
            f"{name}: var must have the shape {shape}, or lack its last axis, or have size 1"
            f" along one, got {own}."
        )
    return v
