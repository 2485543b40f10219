"""Products with weights: `Linear`, `Bilinear`."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.module import Module
from pullback.nn import init
from pullback.nn.projections import bilinear, linear
from pullback.ops.random import split

__all__ = ["Bilinear", "Linear", "check_sizes", "small_uniform"]


def check_sizes(name: str, **sizes: Any) -> None:
    """Refuse sizes of a layer that are no positive integers."""
    for what, n in sizes.items():
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
            raise DTypeError(f"{name}: {what} must be an integer, got {n!r}.")
        if n < 1:
            raise ShapeError(f"{name}: {what} must be positive, got {n}.")


def small_uniform(key: Any, shape: tuple[int, ...], fan_in: int, dtype: Any) -> Any:
    """Uniform in +-1 / sqrt(fan_in), what PyTorch begins most layers with."""
    bound = 1.0 / sqrt(max(1, fan_in))
    return init.uniform(key, shape, -bound, bound, dtype)


class Linear(Module):
    """`x @ weight.T + bias` for vectors along the last axis.

    >>> layer = pb.nn.Linear(3, 2, key=pb.random.key(0))
    >>> layer(pb.ones((5, 3))).shape
    (5, 2)
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, key: Any, dtype: Any = None
    ):
        check_sizes("Linear", in_features=in_features, out_features=out_features)
        keys = split(key)
        self.weight = small_uniform(keys[0], (out_features, in_features), in_features, dtype)
        self.bias = small_uniform(keys[1], (out_features,), in_features, dtype) if bias else None

    def __call__(self, input: Any) -> Any:
        return linear(input, self.weight, self.bias)


class Bilinear(Module):
    """`x1 @ weight[k] @ x2 + bias[k]` for each k.

    >>> layer = pb.nn.Bilinear(3, 4, 2, key=pb.random.key(0))
    >>> layer(pb.ones((5, 3)), pb.ones((5, 4))).shape
    (5, 2)
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        *,
        key: Any,
        dtype: Any = None,
    ):
        check_sizes(
            "Bilinear", in1_features=in1_features, in2_features=in2_features,
            out_features=out_features,
        )  # fmt: skip
        keys = split(key)
        shape = (out_features, in1_features, in2_features)
        self.weight = small_uniform(keys[0], shape, in1_features, dtype)
        self.bias = small_uniform(keys[1], (out_features,), in1_features, dtype) if bias else None

    def __call__(self, input1: Any, input2: Any) -> Any:
        return bilinear(input1, input2, self.weight, self.bias)
