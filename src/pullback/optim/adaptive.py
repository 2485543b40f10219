"""Optimisers that scale each coordinate by the gradients it has seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pullback.ops.exponential import sqrt
from pullback.ops.selection import maximum, where
from pullback.optim.base import Optimizer, checked

__all__ = ["LAMB", "Adadelta", "Adagrad", "Adam", "AdamW", "RAdam", "RMSprop"]

Kept = dict[str, Any]


def _mean(old: Any, new: Any, beta: float) -> Any:
    """The running mean after one more value."""
    return old * beta + new * (1.0 - beta)


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Running means of the gradient and of its square, both freed of their bias towards zero
    (arXiv:1412.6980).

    >>> opt = pb.optim.Adam(lr=0.1)
    >>> p = pb.tensor([1.0])
    >>> opt.step(p, pb.tensor([5.0]), opt.init(p))[0]
    tensor([0.9], float32, cpu)
    """

    lr: Any = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    amsgrad: bool = False

    @property
    def kept(self) -> tuple[str, ...]:
        return ("m", "v", "largest") if self.amsgrad else ("m", "v")

    def update(self, p: Any, g: Any, kept: Kept, at: Any) -> tuple[Any, Kept]:
        return self._adam(p, self.decayed(p, g), kept, at)

    def _adam(self, p: Any, g: Any, kept: Kept, at: Any) -> tuple[Any, Kept]:
        first, second = self.betas
        m, v = _mean(kept["m"], g, first), _mean(kept["v"], g * g, second)
        now = {"m": m, "v": v}
        if self.amsgrad:
            now["largest"] = maximum(kept["largest"], v)
        scale = sqrt(now.get("largest", v)) / sqrt(at.unbiased(second)) + self.eps
        p = p - at.rate / at.unbiased(first) * m / scale
        return p, now


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with weight decay that does not pass through the running means (arXiv:1711.05101)."""

    weight_decay: float = 1e-2

    def update(self, p: Any, g: Any, kept: Kept, at: Any) -> tuple[Any, Kept]:
        return self._adam(self.shrunk(p, at), g, kept, at)


@dataclass(frozen=True, kw_only=True)
class RAdam(Optimizer):
    """Adam that waits until the mean square can be trusted (arXiv:1908.03265)."""

    lr: Any = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    @property
    def kept(self) -> tuple[str, ...]:
        return ("m", "v")

    def update(self, p: Any, g: Any, kept: Kept, at: Any) -> tuple[Any, Kept]:
        first, second = self.betas
        g = self.decayed(p, g)
        m, v = _mean(kept["m"], g, first), _mean(kept["v"], g * g, second)
        longest = 2.0 / (1.0 - second) - 1.0
        power = second**at.count
        length = longest - 2.0 * at.count * power / (1.0 - power)
        trusted = length > 5.0
        safe = where(trusted, length, 6.0)
        ratio = (safe - 4.0) * (safe - 2.0) * longest
        ratio = sqrt(ratio / ((longest - 4.0) * (longest - 2.0) * safe))
        mean = m / at.unbiased(first)
        scaled = at.cast(ratio) * sqrt(at.unbiased(second)) * mean / (sqrt(v) + self.eps)
        return p - at.rate * where(trusted, scaled, mean), {"m": m, "v": v}


@dataclass(frozen=True, kw_only=True)
class LAMB(Optimizer):
    """Adam's step, given the length of the parameter times the learning rate (arXiv:1904.00962)."""

    lr: Any = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6

    @property
    def kept(self) -> tuple[str, ...]:
        return ("m", "v")

    def update(self, p: Any, g: Any, kept: Kept, at: Any) -> tuple[Any, Kept]:
        first, second = self.betas
        m, v = _mean(kept["m"], g, first), _mean(kept["v"], g * g, second)
        direction = m / at.unbiased(first) / (sqrt(v / at.unbiased(second)) + self.eps)
        direction = self.decayed(p, direction)
        own, other = (p * p).sum(), (direction * direction).sum()
        both = (own > 0.0) & (other > 0.0)
        trust = where(both, sqrt(where(both, own, 1.0) / where(both, other, 1.0)), 1.0)
        return p - at.rate * trust * direction, {"m": m, "v": v}


@dataclass(frozen=True, kw_only=True)
class RMSprop(Optimizer):
    """The gradient over the root of its running mean square; centred and with momentum if asked."""

    lr: Any = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False

    @property
    def kept(self) -> tuple[str, ...]:
        more = {"mean": self.centered, "momentum": self.momentum}
        return ("square", *[name for name, used in more.items() if used])

    def __post_init__(self) -> None:
        super().__post_init__()
        checked("RMSprop: alpha", self.alpha, 0.0)
        checked("RMSprop: momentum", self.momentum, 0.0)

    def update(self, p: Any, g: Any, kept: Kept, at: Any) -> tuple[Any, Kept]:
        g = self.decayed(p, g)
        now = {"square": _mean(kept["square"], g * g, self.alpha)}
        variance = now["square"]
        if self.centered:
            mean = now["mean"] = _mean(kept["mean"], g, self.alpha)
            variance = maximum(variance - mean * mean, 0.0)
        g = g / (sqrt(variance) + self.eps)
        if self.momentum:
            g = now["momentum"] = kept["momentum"] * self.momentum + g
        return p - at.rate * g, now


@dataclass(frozen=True, kw_only=True)
class Adagrad(Optimizer):
    """The gradient over the root of the sum of its squares so far."""

    lr: Any = 1e-2
    lr_decay: float = 0.0
    eps: float = 1e-10
    initial_accumulator_value: float = 0.0

    @property
    def kept(self) -> tuple[str, ...]:
        return ("sum",)

    def __post_init__(self) -> None:
        super().__post_init__()
        checked("Adagrad: lr_decay", self.lr_decay, 0.0)
        checked("Adagrad: initial_accumulator_value", self.initial_accumulator_value, 0.0)

    def update(self, p: Any, g: Any, kept: Kept, at: Any) -> tuple[Any, Kept]:
        g = self.decayed(p, g)
        total = kept["sum"] + g * g
        rate = at.rate / at.cast(1.0 + (at.count - 1.0) * self.lr_decay)
        scale = sqrt(total + self.initial_accumulator_value) + self.eps
        return p - rate * g / scale, {"sum": total}


@dataclass(frozen=True, kw_only=True)
class Adadelta(Optimizer):
    """Steps in the units of the parameter: a running size of steps over one of gradients
    (arXiv:1212.5701).
    """

    lr: Any = 1.0
    rho: float = 0.9
    eps: float = 1e-6

    @property
    def kept(self) -> tuple[str, ...]:
        return ("square", "moved")

    def __post_init__(self) -> None:
        super().__post_init__()
        checked("Adadelta: rho", self.rho, 0.0, 1.0)

    def update(self, p: Any, g: Any, kept: Kept, at: Any) -> tuple[Any, Kept]:
        g = self.decayed(p, g)
        square = _mean(kept["square"], g * g, self.rho)
        step = sqrt(kept["moved"] + self.eps) / sqrt(square + self.eps) * g
        moved = _mean(kept["moved"], step * step, self.rho)
        return p - at.rate * step, {"square": square, "moved": moved}
