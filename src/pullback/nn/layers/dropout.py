"""Layers that draw numbers in training: elements or channels set to zero, slopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from pullback.core.errors import ShapeError
from pullback.module import Module
from pullback.nn.dropout import (
    alpha_dropout,
    dropout,
    dropout1d,
    dropout2d,
    dropout3d,
    feature_alpha_dropout,
    rrelu,
)

__all__ = [
    "AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout",
    "RReLU",
]  # fmt: skip


class Drop(Module):
    """What the layers have in common: a probability, and a key in training."""

    function: ClassVar[Callable[..., Any]]

    def __init__(self, p: float = 0.5):
        if not isinstance(p, (int, float)) or not 0 <= p <= 1:
            name = type(self).__name__
            raise ShapeError(f"{name}: p must be a probability in [0, 1], got {p!r}.")
        self.p = p

    def __call__(self, input: Any, *, training: bool = False, key: Any = None) -> Any:
        return type(self).function(input, self.p, training, key=key)


class Dropout(Drop):
    """In training, each element is 0 with probability p, the rest are scaled by 1 / (1 - p).

    >>> layer = pb.nn.Dropout(0.5)
    >>> layer(pb.ones(3))
    tensor([1., 1., 1.], float32, cpu)
    >>> layer(pb.ones(3), training=True, key=pb.random.key(0)).shape
    (3,)
    """

    function = staticmethod(dropout)


class Dropout1d(Drop):
    """In training, each channel of a signal is 0 with probability p.

    >>> x = pb.nn.Dropout1d(0.5)(pb.ones((2, 8, 3)), training=True, key=pb.random.key(0))
    >>> bool(pb.all(x.max(-1) == x.min(-1)))
    True
    """

    function = staticmethod(dropout1d)


class Dropout2d(Drop):
    """In training, each channel of an image is 0 with probability p.

    >>> pb.nn.Dropout2d(0.5)(pb.ones((2, 8, 3, 3))).shape
    (2, 8, 3, 3)
    """

    function = staticmethod(dropout2d)


class Dropout3d(Drop):
    """In training, each channel of a volume is 0 with probability p.

    >>> pb.nn.Dropout3d(0.5)(pb.ones((2, 8, 3, 3, 3))).shape
    (2, 8, 3, 3, 3)
    """

    function = staticmethod(dropout3d)


class AlphaDropout(Drop):
    """Dropout that keeps mean and variance, for networks of `SELU`.

    >>> pb.nn.AlphaDropout(0.1)(pb.ones(3))
    tensor([1., 1., 1.], float32, cpu)
    """

    function = staticmethod(alpha_dropout)


class FeatureAlphaDropout(Drop):
    """`AlphaDropout` of whole channels.

    >>> pb.nn.FeatureAlphaDropout(0.1)(pb.ones((1, 2, 3))).shape
    (1, 2, 3)
    """

    function = staticmethod(feature_alpha_dropout)


class RReLU(Module):
    """A rectifier whose slope below zero is drawn in training, and the mean of its range else.

    >>> pb.nn.RReLU(0.2, 0.4)(pb.tensor([-1.0, 1.0]))
    tensor([-0.3,  1. ], float32, cpu)
    """

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3):
        self.lower, self.upper = lower, upper

    def __call__(self, input: Any, *, training: bool = False, key: Any = None) -> Any:
        return rrelu(input, self.lower, self.upper, training, key=key)
