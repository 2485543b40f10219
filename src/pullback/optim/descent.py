"""Optimisers that follow the gradient, or its sign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pullback.ops.arithmetic import sign
from pullback.ops.selection import where
from pullback.optim.base import Optimizer, checked

__all__ = ["SGD", "Lion"]


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Gradient descent, with momentum: `b = momentum * b + (1 - dampening) * g`, `p -= lr * b`.

    >>> opt = pb.optim.SGD(lr=0.5)
    >>> p = {"w": pb.tensor([1.0, 2.0])}
    >>> opt.step(p, {"w": pb.tensor([1.0, 1.0])}, opt.init(p))[0]
    {'w': tensor([0.5, 1.5], float32, cpu)}
    """

    lr: Any = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    @property
    def kept(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def __post_init__(self) -> None:
        super().__post_init__()
        checked("SGD: momentum", self.momentum, 0.0)
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError(
                "SGD: nesterov needs a momentum and no dampening, got"
                f" momentum={self.momentum!r}, dampening={self.dampening!r}."
            )

    def update(self, p: Any, g: Any, kept: dict[str, Any], at: Any) -> tuple[Any, dict[str, Any]]:
        g = self.decayed(p, g)
        if not self.momentum:
            return p - at.rate * g, {}
        damped = g * (1.0 - self.dampening)
        if self.dampening:  # the first gradient counts in full
            damped = where(at.count == 1.0, g, damped)
        b = kept["momentum"] * self.momentum + damped
        g = g + b * self.momentum if self.nesterov else b
        return p - at.rate * g, {"momentum": b}


@dataclass(frozen=True, kw_only=True)
class Lion(Optimizer):
    """Steps of one size along the sign of an interpolated momentum (arXiv:2302.06675)."""

    lr: Any = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)

    @property
    def kept(self) -> tuple[str, ...]:
        return ("m",)

    def update(self, p: Any, g: Any, kept: dict[str, Any], at: Any) -> tuple[Any, dict[str, Any]]:
        first, second = self.betas
        m = kept["m"]
        direction = sign(m * first + g * (1.0 - first))
        p = self.shrunk(p, at) - at.rate * direction
        return p, {"m": m * second + g * (1.0 - second)}
