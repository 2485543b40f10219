"""Learning rates as functions of the step, which counts from 0. They take a number or an array and
work under jit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.ir.convert import as_array
from pullback.ops.exponential import log
from pullback.ops.parts import astype
from pullback.ops.rounding import floor
from pullback.ops.selection import clip, maximum, minimum, where
from pullback.ops.trigonometry import cos
from pullback.optim.base import Schedule, checked, rate_at

__all__ = [
    "Plateau", "constant", "cosine", "cosine_restarts", "cyclic", "exponential", "joined", "linear",
    "multistep", "one_cycle", "polynomial", "step", "warm_up",
]  # fmt: skip


def _time(step: Any) -> Any:
    return astype(as_array(step, "schedule"), dt.float64)


def _steps(name: str, n: int) -> None:
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise ValueError(f"{name} must be a positive number of steps, got {n!r}.")


def constant(lr: float) -> Schedule:
    """The same rate at every step.

    >>> pb.optim.constant(0.1)(7).item()
    0.1
    """
    return lambda step: _time(step) * 0.0 + lr


def step(lr: float, step_size: int, gamma: float = 0.1) -> Schedule:
    """`lr * gamma ** (step // step_size)`.

    >>> [round(pb.optim.step(1.0, 2)(n).item(), 3) for n in range(5)]
    [1.0, 1.0, 0.1, 0.1, 0.01]
    """
    _steps("step: step_size", step_size)
    return lambda step: lr * gamma ** floor(_time(step) / step_size)


def multistep(lr: float, milestones: Sequence[int], gamma: float = 0.1) -> Schedule:
    """`lr`, multiplied by `gamma` at each milestone.

    >>> [round(pb.optim.multistep(1.0, [1, 3], 0.5)(n).item(), 3) for n in range(5)]
    [1.0, 0.5, 0.5, 0.25, 0.25]
    """
    marks = sorted(milestones)

    def rate(step: Any) -> Any:
        t = _time(step)
        passed: Any = t * 0.0
        for mark in marks:
            passed = passed + where(t >= mark, 1.0, 0.0)
        return lr * gamma**passed

    return rate


def exponential(lr: float, gamma: float) -> Schedule:
    """`lr * gamma ** step`.

    >>> pb.optim.exponential(1.0, 0.5)(3).item()
    0.125
    """
    return lambda step: lr * gamma ** _time(step)


def linear(start: float, end: float, steps: int) -> Schedule:
    """From `start` to `end` in a straight line, then `end`.

    >>> [pb.optim.linear(0.0, 1.0, 4)(n).item() for n in (0, 1, 9)]
    [0.0, 0.25, 1.0]
    """
    _steps("linear: steps", steps)
    return lambda step: start + (end - start) * minimum(_time(step) / steps, 1.0)


def polynomial(lr: float, steps: int, power: float = 1.0, end: float = 0.0) -> Schedule:
    """From `lr` to `end` as `(1 - step / steps) ** power`.

    >>> pb.optim.polynomial(1.0, 4, power=2.0)(2).item()
    0.25
    """
    _steps("polynomial: steps", steps)
    return lambda step: end + (lr - end) * maximum(1.0 - _time(step) / steps, 0.0) ** power


def _half_cosine(t: Any) -> Any:
    """From 1 at 0 to 0 at 1."""
    return 0.5 + 0.5 * cos(math.pi * t)


def cosine(lr: float, steps: int, end: float = 0.0) -> Schedule:
    """From `lr` to `end` along half a cosine, then `end`.

    >>> pb.optim.cosine(1.0, 10)(5).item()
    0.5
    """
    _steps("cosine: steps", steps)
    return lambda step: end + (lr - end) * _half_cosine(minimum(_time(step) / steps, 1.0))


def cosine_restarts(lr: float, steps: int, factor: float = 1.0, end: float = 0.0) -> Schedule:
    """Half cosines that start again: the first takes `steps`, each later one `factor` times as long
    (arXiv:1608.03983).

    >>> [round(pb.optim.cosine_restarts(1.0, 2)(n).item(), 3) for n in range(4)]
    [1.0, 0.5, 1.0, 0.5]
    """
    _steps("cosine_restarts: steps", steps)
    checked("cosine_restarts: factor", factor, 1.0)

    def rate(step: Any) -> Any:
        t = _time(step)
        if factor == 1.0:
            part = t / steps - floor(t / steps)
        else:
            # Cycle k begins at steps * (factor**k - 1) / (factor - 1).
            k = floor(log(t / steps * (factor - 1.0) + 1.0) / math.log(factor) + 1e-12)
            start = steps * (factor**k - 1.0) / (factor - 1.0)
            part = (t - start) / (steps * factor**k)
        return end + (lr - end) * _half_cosine(part)

    return rate


def one_cycle(
    max_lr: float,
    total_steps: int,
    pct_start: float = 0.3,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    anneal: str = "cos",
) -> Schedule:
    """Up from `max_lr / div_factor` in the first part, then down to that over `final_div_factor`
    (arXiv:1708.07120); `anneal` is "cos" or "linear".

    >>> pb.optim.one_cycle(1.0, 10)(2).item()
    1.0
    """
    _steps("one_cycle: total_steps", total_steps)
    checked("one_cycle: pct_start", pct_start, 0.0, 1.0)
    if anneal not in ("cos", "linear"):
        raise ValueError(f'one_cycle: anneal must be "cos" or "linear", got {anneal!r}.')
    low, last = max_lr / div_factor, max_lr / div_factor / final_div_factor
    top = pct_start * total_steps - 1.0
    down = total_steps - 1.0 - top

    def between(a: float, b: float, t: Any) -> Any:
        t = clip(t, 0.0, 1.0)
        return b + (a - b) * (_half_cosine(t) if anneal == "cos" else 1.0 - t)

    def rate(step: Any) -> Any:
        t = _time(step)
        rising = between(low, max_lr, t / top) if top > 0 else _time(step) * 0.0 + max_lr
        falling = between(max_lr, last, (t - top) / down) if down > 0 else rising
        return where(t <= top, rising, falling)

    return rate


def cyclic(base_lr: float, max_lr: float, step_size: int, gamma: float = 1.0) -> Schedule:
    """A triangle wave between two rates, `step_size` steps up and as many down; its height shrinks
    by `gamma` each step (arXiv:1506.01186).

    >>> [pb.optim.cyclic(0.0, 1.0, 2)(n).item() for n in range(5)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    _steps("cyclic: step_size", step_size)

    def rate(step: Any) -> Any:
        t = _time(step)
        phase = t / (2.0 * step_size)
        phase = phase - floor(phase)
        height = minimum(phase, 1.0 - phase) * 2.0
        return base_lr + (max_lr - base_lr) * height * gamma**t

    return rate


def warm_up(schedule: Schedule | float, steps: int, start: float = 0.0) -> Schedule:
    """A straight rise from `start` times the schedule's first rate, then the schedule itself.

    >>> [pb.optim.warm_up(1.0, 4)(n).item() for n in (0, 1, 4, 9)]
    [0.0, 0.25, 1.0, 1.0]
    """
    _steps("warm_up: steps", steps)

    def rate(step: Any) -> Any:
        t = _time(step)
        first = rate_at(schedule, 0)
        rising = first * (start + (1.0 - start) * minimum(t / steps, 1.0))
        return where(t < steps, rising, rate_at(schedule, maximum(t - steps, 0.0)))

    return rate


def joined(schedules: Sequence[Schedule | float], boundaries: Sequence[int]) -> Schedule:
    """One schedule after another: the next begins, at its own step 0, at each boundary.

    >>> two = pb.optim.joined([1.0, pb.optim.linear(0.5, 0.0, 5)], [10])
    >>> [two(n).item() for n in (9, 10, 15)]
    [1.0, 0.5, 0.0]
    """
    if len(schedules) != len(boundaries) + 1 or sorted(boundaries) != list(boundaries):
        raise ValueError(
            "joined: needs one schedule more than increasing boundaries, got"
            f" {len(schedules)} schedules and boundaries {list(boundaries)}."
        )

    def rate(step: Any) -> Any:
        t = _time(step)
        found: Any = t * 0.0 + rate_at(schedules[0], step)
        for schedule, mark in zip(schedules[1:], boundaries, strict=True):
            found = where(t >= mark, rate_at(schedule, maximum(t - mark, 0.0)), found)
        return found

    return rate


@dataclass(frozen=True, kw_only=True)
class Plateau:
    """A factor for the learning rate that falls when a measure stops improving.

    `state = p.init()`, after each epoch `state = p.step(measure, state)`; multiply the learning
    rate by `state["scale"]`.

    >>> p = pb.optim.Plateau(factor=0.5, patience=0)
    >>> state = p.step(1.0, p.step(1.0, p.init()))
    >>> state["scale"].item()
    0.5
    """

    factor: float = 0.1
    patience: int = 10
    threshold: float = 1e-4
    cooldown: int = 0
    min_scale: float = 0.0
    maximize: bool = False

    def __post_init__(self) -> None:
        checked("Plateau: factor", self.factor, 0.0, 1.0, open_high=True)
        checked("Plateau: patience", self.patience, 0)

    def init(self) -> dict[str, Any]:
        """The state before the first measure."""
        numbers = {"best": np.inf, "scale": 1.0, "bad": 0.0, "resting": 0.0}
        return {k: as_array(np.float64(v), "Plateau") for k, v in numbers.items()}

    def step(self, measure: Any, state: dict[str, Any]) -> dict[str, Any]:
        """The state after one more measure."""
        value = _time(measure) * (-1.0 if self.maximize else 1.0)
        best = state["best"]
        finite = best < np.inf
        margin = self.threshold * where(finite, abs(where(finite, best, 0.0)), 0.0)
        better = value < best - margin
        resting = state["resting"]
        bad = where(better | (resting > 0.0), 0.0, state["bad"] + 1.0)
        fall = bad > self.patience
        return {
            "best": where(better, value, best),
            "scale": where(
                fall, maximum(state["scale"] * self.factor, self.min_scale), state["scale"]
            ),
            "bad": where(fall, 0.0, bad),
            "resting": where(fall, float(self.cooldown), maximum(resting - 1.0, 0.0)),
        }
