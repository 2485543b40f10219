"""Smooth activations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.samples import Bad, Draw
from pullback.nn.arguments import activation, away_from_kinks, floating, inexact, option
from pullback.ops import special, trigonometry
from pullback.ops.arithmetic import abs as abs_
from pullback.ops.selection import where

__all__ = [
    "gelu", "logsigmoid", "mish", "sigmoid", "silu", "softplus", "softsign", "tanh", "tanhshrink",
]  # fmt: skip


def _off_zero(d: Draw, *shape: int) -> np.ndarray:
    """Numbers whose hyperbolic tangent is so far from them that the difference keeps its digits."""
    return d.positive(*shape, low=0.8, high=2.0)


@activation(lambda input: 1.0 / (1.0 + np.exp(-input)), takes_complex=True)
def sigmoid(input: Any) -> Any:
    """The logistic function `1 / (1 + exp(-x))`.

    >>> pb.nn.sigmoid(pb.tensor([0.0, 2.0]))
    tensor([0.5      , 0.8807971], float32, cpu)
    """
    (x,) = inexact("sigmoid", input)
    return special.sigmoid(x)


@activation(lambda input: np.tanh(input), takes_complex=True)
def tanh(input: Any) -> Any:
    """The hyperbolic tangent.

    >>> pb.nn.tanh(pb.tensor([0.0, 1.0]))
    tensor([0.        , 0.7615942], float32, cpu)
    """
    (x,) = inexact("tanh", input)
    return trigonometry.tanh(x)


@activation(lambda input: input - np.tanh(input), draw=_off_zero, takes_complex=True)
def tanhshrink(input: Any) -> Any:
    """`x - tanh(x)`.

    >>> pb.nn.tanhshrink(pb.tensor([0.0, 1.0]))
    tensor([0.        , 0.23840582], float32, cpu)
    """
    (x,) = inexact("tanhshrink", input)
    return x - trigonometry.tanh(x)


@activation(lambda input: input / (1.0 + np.exp(-input)), takes_complex=True)
def silu(input: Any) -> Any:
    """`x * sigmoid(x)`, also called swish.

    >>> pb.nn.silu(pb.tensor([0.0, 2.0]))
    tensor([0.       , 1.7615942], float32, cpu)
    """
    (x,) = inexact("silu", input)
    return x * special.sigmoid(x)


@activation(lambda input: input * np.tanh(np.log1p(np.exp(input))))
def mish(input: Any) -> Any:
    """`x * tanh(softplus(x))`.

    >>> pb.nn.mish(pb.tensor([0.0, 2.0]))
    tensor([0.      , 1.943959], float32, cpu)
    """
    (x,) = floating("mish", input)
    return x * trigonometry.tanh(special.logaddexp(x, 0.0))


def _gelu_oracle(input: np.ndarray, approximate: str = "none") -> np.ndarray:
    if approximate == "tanh":
        inner = np.sqrt(2.0 / np.pi) * (input + 0.044715 * input**3)
        return 0.5 * input * (1.0 + np.tanh(inner))
    normal = [0.5 * (1.0 + math.erf(v / math.sqrt(2.0))) for v in input.reshape(-1).tolist()]
    return input * np.reshape(normal, input.shape).astype(input.dtype)


@activation(
    _gelu_oracle,
    {},
    {"approximate": "tanh"},
    bad=[Bad((np.ones(2),), {"approximate": "sigmoid"}, DTypeError, "approximate is one of")],
)
def gelu(input: Any, approximate: str = "none") -> Any:
    """`x` times the normal distribution function of x, or with "tanh" an approximation of it.

    >>> pb.nn.gelu(pb.tensor([-1.0, 2.0]))
    tensor([-0.15865526,  1.9544997 ], float32, cpu)
    """
    (x,) = floating("gelu", input)
    option("gelu", "approximate", approximate, ("none", "tanh"))
    if approximate == "none":
        return x * (special.erf(x * math.sqrt(0.5)) + 1.0) * 0.5
    inner = (x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)
    return x * (trigonometry.tanh(inner) + 1.0) * 0.5


def _softplus_oracle(input: np.ndarray, beta: float = 1.0, threshold: float = 20.0) -> np.ndarray:
    curved = np.log1p(np.exp(np.minimum(input * beta, threshold))) / beta
    return np.where(input * beta > threshold, input, curved)


@activation(
    _softplus_oracle,
    {},
    {"beta": 2.0},
    {"beta": 1.5, "threshold": 0.75},
    draw=away_from_kinks,
    bad=[Bad((np.ones(2),), {"beta": 0.0}, ShapeError, "beta must not be 0")],
)
def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """`log(1 + exp(beta * x)) / beta`, and x itself where `beta * x` is above the threshold.

    >>> pb.nn.softplus(pb.tensor([0.0, 30.0]))
    tensor([ 0.6931472, 30.       ], float32, cpu)
    """
    (x,) = floating("softplus", input)
    if beta == 0:
        raise ShapeError(f"softplus: beta must not be 0, got {beta}.")
    scaled = x * beta if beta != 1 else x
    curved = special.logaddexp(scaled, 0.0)
    return where(scaled > threshold, x, curved / beta if beta != 1 else curved)


@activation(lambda input: -np.log1p(np.exp(-input)))
def logsigmoid(input: Any) -> Any:
    """`log(sigmoid(x))` without underflow.

    >>> pb.nn.logsigmoid(pb.tensor([0.0, -200.0]))
    tensor([  -0.6931472, -200.       ], float32, cpu)
    """
    (x,) = floating("logsigmoid", input)
    return -special.logaddexp(-x, 0.0)


@activation(lambda input: input / (1.0 + np.abs(input)))
def softsign(input: Any) -> Any:
    """`x / (1 + abs(x))`.

    >>> pb.nn.softsign(pb.tensor([-1.0, 3.0]))
    tensor([-0.5 ,  0.75], float32, cpu)
    """
    (x,) = floating("softsign", input)
    return x / (abs_(x) + 1.0)
