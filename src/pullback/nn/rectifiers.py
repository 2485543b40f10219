"""Activations with a kink: relu and its relatives. Derivatives at the kinks are PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import activation, away_from_kinks, channel_axis, floating
from pullback.ops.exponential import expm1
from pullback.ops.families import composite
from pullback.ops.movement import reshape
from pullback.ops.selection import where

__all__ = [
    "celu", "elu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "prelu",
    "relu", "relu6", "selu", "softshrink", "threshold",
]  # fmt: skip

# The fixed point of mean 0 and variance 1 (Klambauer et al., 2017).
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def _wide_draw(d: Draw, *shape: int) -> np.ndarray:
    """Numbers on both sides of 3 and 6, and not next to them."""
    return away_from_kinks(d, *shape, scale=4.0)


# -- cut at zero -----------------------------------------------------------------------------------


@activation(lambda input: np.maximum(input, 0.0))
def relu(input: Any) -> Any:
    """`max(x, 0)`, whose derivative at 0 is 0.

    >>> pb.nn.relu(pb.tensor([-1.0, 0.0, 2.0]))
    tensor([0., 0., 2.], float32, cpu)
    """
    (x,) = floating("relu", input)
    return where(x <= 0.0, 0.0, x)


@activation(lambda input: np.clip(input, 0.0, 6.0), draw=_wide_draw)
def relu6(input: Any) -> Any:
    """`min(max(x, 0), 6)`.

    >>> pb.nn.relu6(pb.tensor([-1.0, 2.0, 8.0]))
    tensor([0., 2., 6.], float32, cpu)
    """
    (x,) = floating("relu6", input)
    return _limited(x, 0.0, 6.0)


@activation(
    lambda input, negative_slope=0.01: np.where(input > 0, input, input * negative_slope),
    {},
    {"negative_slope": 0.3},
)
def leaky_relu(input: Any, negative_slope: float = 0.01) -> Any:
    """`x` where it is positive, elsewhere `negative_slope * x`.

    >>> pb.nn.leaky_relu(pb.tensor([-1.0, 2.0]))
    tensor([-0.01,  2.  ], float32, cpu)
    """
    (x,) = floating("leaky_relu", input)
    return where(x > 0.0, x, x * negative_slope)


def _prelu_oracle(input: Any, weight: Any, layout: str = "channels_first") -> np.ndarray:
    out = np.array(input)
    for place in np.ndindex(out.shape):
        axis = 1 if layout == "channels_first" else out.ndim - 1
        channel = 0 if weight.size == 1 else place[axis]
        if out[place] <= 0:
            out[place] *= weight.reshape(-1)[channel]
    return out


@composite(
    oracle=_prelu_oracle,
    samples=lambda d: [
        Sample((d.real(2, 3, 2), d.real(3))),
        Sample((d.real(2, 2, 3), d.real(3)), {"layout": "channels_last"}),
        Sample((d.real(4), d.real(1))),
        Sample((d.real(2, 3), d.real())),
        Sample((d.real(0, 3), d.real(3))),
    ],
    errors=lambda d: [
        Bad((d.real(2, 3), d.real(2)), {}, ShapeError, "one weight or 3"),
        Bad((d.real(2, 3), d.real(3, 1)), {}, ShapeError, "one weight or 3"),
        Bad((d.real(3), d.real(3)), {}, ShapeError, "no axis of channels"),
        Bad((d.real(2, 3), d.real(3)), {"layout": "NHWC"}, DTypeError, "layout is one of"),
        Bad((np.ones(3, np.complex64), d.real(1)), {}, DTypeError, "got complex"),
    ],
    namespace="nn",
)
def prelu(input: Any, weight: Any, *, layout: str = "channels_first") -> Any:
    """`x` where it is positive, elsewhere `weight * x`; one weight for all or for each channel.

    >>> pb.nn.prelu(pb.tensor([[-1.0, -1.0]]), pb.tensor([0.5, 2.0]))
    tensor([[-0.5, -2. ]], float32, cpu)
    """
    x, w = floating("prelu", input, weight)
    if w._aval.size == 1:
        w = reshape(w, ())
    else:
        axis = channel_axis("prelu", x, layout)
        channels = x._aval.shape[axis]
        if w._aval.shape != (channels,):
            raise ShapeError(
                f"prelu: expected one weight or {channels}, one for each channel,"
                f" got shape {w._aval.shape}."
            )
        w = reshape(w, (channels,) + (1,) * (x._aval.ndim - 1 - axis))
    return where(x > 0.0, x, x * w)


@activation(lambda input, threshold, value: np.where(input > threshold, input, value),
            {"threshold": 0.5, "value": -2.0}, draw=away_from_kinks)  # fmt: skip
def threshold(input: Any, threshold: float, value: float) -> Any:
    """`x` where it is above the threshold, elsewhere `value`.

    >>> pb.nn.threshold(pb.tensor([0.1, 2.0]), 0.5, -1.0)
    tensor([-1.,  2.], float32, cpu)
    """
    (x,) = floating("threshold", input)
    return where(x <= threshold, value, x)


# -- exponential below zero ------------------------------------------------------------------------


def _exponential_below(x: Any, alpha: float, width: float = 1.0) -> Any:
    """`x` above 0, `alpha * expm1(x / width)` below, where large x reach no exponential."""
    positive = x > 0.0
    below = where(positive, 0.0, x)
    return where(positive, x, expm1(below if width == 1.0 else below / width) * alpha)


@activation(
    lambda input, alpha=1.0: np.where(input > 0, input, alpha * np.expm1(np.minimum(input, 0))),
    {},
    {"alpha": 0.6},
)
def elu(input: Any, alpha: float = 1.0) -> Any:
    """`x` where it is positive, elsewhere `alpha * (exp(x) - 1)`.

    >>> pb.nn.elu(pb.tensor([-1.0, 2.0]))
    tensor([-0.63212055,  2.        ], float32, cpu)
    """
    (x,) = floating("elu", input)
    return _exponential_below(x, alpha)


@activation(
    lambda input: (
        1.0507009873554805
        * np.where(input > 0, input, 1.6732632423543772 * np.expm1(np.minimum(input, 0)))
    )
)
def selu(input: Any) -> Any:
    """The scaled elu that keeps mean 0 and variance 1: `1.0507 * elu(x, 1.6733)`.

    >>> pb.nn.selu(pb.tensor([-1.0, 2.0]))
    tensor([-1.1113307,  2.101402 ], float32, cpu)
    """
    (x,) = floating("selu", input)
    return _exponential_below(x, SELU_ALPHA) * SELU_SCALE


@activation(
    lambda input, alpha=1.0: (
        np.maximum(input, 0) + np.minimum(0, alpha * np.expm1(np.minimum(input, 0) / alpha))
    ),
    {},
    {"alpha": 0.6},
    bad=[Bad((np.ones(2),), {"alpha": 0.0}, ShapeError, "alpha must not be 0")],
)
def celu(input: Any, alpha: float = 1.0) -> Any:
    """`x` where it is positive, elsewhere `alpha * (exp(x / alpha) - 1)`: elu with slope 1 at 0.

    >>> pb.nn.celu(pb.tensor([-1.0, 2.0]), alpha=2.0)
    tensor([-0.78693867,  2.        ], float32, cpu)
    """
    (x,) = floating("celu", input)
    if alpha == 0:
        raise ShapeError(f"celu: alpha must not be 0, got {alpha}.")
    return _exponential_below(x, alpha, alpha)


# -- piecewise linear ------------------------------------------------------------------------------


def _limited(x: Any, low: float, high: float) -> Any:
    """x between two numbers; unlike that of clip, the derivative at these is 0."""
    return where(x <= low, low, where(x >= high, high, x))


@activation(
    lambda input, min_val=-1.0, max_val=1.0: np.clip(input, min_val, max_val),
    {},
    {"min_val": -0.5, "max_val": 0.25},
    draw=away_from_kinks,
    bad=[Bad((np.ones(2),), {"min_val": 2.0}, ShapeError, "min_val must not be above max_val")],
)
def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """`x` limited to [min_val, max_val], whose derivative at the limits is 0.

    >>> pb.nn.hardtanh(pb.tensor([-3.0, 0.5, 3.0]))
    tensor([-1. ,  0.5,  1. ], float32, cpu)
    """
    (x,) = floating("hardtanh", input)
    if min_val > max_val:
        raise ShapeError(
            f"hardtanh: min_val must not be above max_val, got {min_val} and {max_val}."
        )
    return _limited(x, min_val, max_val)


@activation(lambda input: np.clip(input + 3.0, 0.0, 6.0) / 6.0, draw=_wide_draw)
def hardsigmoid(input: Any) -> Any:
    """`min(max(x + 3, 0), 6) / 6`.

    >>> pb.nn.hardsigmoid(pb.tensor([-4.0, 0.0, 1.5]))
    tensor([0.  , 0.5 , 0.75], float32, cpu)
    """
    (x,) = floating("hardsigmoid", input)
    return _limited(x + 3.0, 0.0, 6.0) / 6.0


@activation(lambda input: input * np.clip(input + 3.0, 0.0, 6.0) / 6.0, draw=_wide_draw)
def hardswish(input: Any) -> Any:
    """`x * min(max(x + 3, 0), 6) / 6`.

    >>> pb.nn.hardswish(pb.tensor([-4.0, 1.5, 4.0]))
    tensor([0.   , 1.125, 4.   ], float32, cpu)
    """
    (x,) = floating("hardswish", input)
    return where(x <= -3.0, 0.0, where(x >= 3.0, x, x * (x + 3.0) / 6.0))


@activation(
    lambda input, lambd=0.5: np.where(np.abs(input) > lambd, input, 0.0),
    {},
    {"lambd": 0.25},
    draw=away_from_kinks,
)
def hardshrink(input: Any, lambd: float = 0.5) -> Any:
    """`x`, or 0 where it is within [-lambd, lambd].

    >>> pb.nn.hardshrink(pb.tensor([-1.0, 0.3]))
    tensor([-1.,  0.], float32, cpu)
    """
    (x,) = floating("hardshrink", input)
    return where((x >= -lambd) & (x <= lambd), 0.0, x)


@activation(
    lambda input, lambd=0.5: np.sign(input) * np.maximum(np.abs(input) - lambd, 0.0),
    {},
    {"lambd": 0.25},
    draw=away_from_kinks,
    bad=[Bad((np.ones(2),), {"lambd": -1.0}, ShapeError, "lambd must not be negative")],
)
def softshrink(input: Any, lambd: float = 0.5) -> Any:
    """`x` moved towards 0 by `lambd`, and 0 where it would pass it.

    >>> pb.nn.softshrink(pb.tensor([-1.0, 0.3, 2.0]))
    tensor([-0.5,  0. ,  1.5], float32, cpu)
    """
    (x,) = floating("softshrink", input)
    if lambd < 0:
        raise ShapeError(f"softshrink: lambd must not be negative, got {lambd}.")
    return where(x > lambd, x - lambd, where(x < -lambd, x + lambd, x * 0.0))
