"""Elements set to zero at random in training."""

from __future__ import annotations

from typing import Any

from pullback.core.errors import ShapeError
from pullback.module import Module
from pullback.nn.dropout import dropout

__all__ = ["Dropout"]


class Dropout(Module):
    """In training, each element is 0 with probability p, the rest are scaled by 1 / (1 - p).

    >>> layer = pb.nn.Dropout(0.5)
    >>> layer(pb.ones(3))
    tensor([1., 1., 1.], float32, cpu)
    >>> layer(pb.ones(3), training=True, key=pb.random.key(0)).shape
    (3,)
    """

    def __init__(self, p: float = 0.5):
        if not isinstance(p, (int, float)) or not 0 <= p <= 1:
            raise ShapeError(f"Dropout: p must be a probability in [0, 1], got {p!r}.")
        self.p = p

    def __call__(self, input: Any, *, training: bool = False, key: Any = None) -> Any:
        return dropout(input, self.p, training, key=key)
