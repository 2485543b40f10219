"""What all optimisers share: a rule for one array, carried over trees, steps, schedules and complex
numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core import pytrees
from pullback.core.errors import DTypeError, ShapeError, briefly
from pullback.ir.array import Array
from pullback.ir.convert import as_array
from pullback.missing_names import OPTIMIZER_HINTS, missing
from pullback.ops.arrangement import stack
from pullback.ops.creation import zeros_like
from pullback.ops.parts import astype, imag, real

__all__ = ["Optimizer", "Schedule", "checked", "of_one_structure", "rate_at", "tree_zeros"]

Schedule = Callable[[Any], Any]


def checked(
    name: str, value: Any, low: float, high: float = np.inf, open_high: bool = False
) -> None:
    """Refuse a hyperparameter outside [low, high]; arrays and schedules are taken as they are."""
    if callable(value) or isinstance(value, Array):
        return
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise DTypeError(f"{name} must be a number, got {value!r}.")
    inside = low <= value < high if open_high else low <= value <= high
    if not inside:
        bounds = f"[{low:g}, {high:g}{')' if open_high else ']'}"
        raise ShapeError(f"{name} must be in {bounds}, got {value!r}.")


def of_one_structure(name: str, params: Any, grads: Any) -> None:
    """Refuse gradients that do not look like the parameters."""
    chosen, other = pytrees.Parameters(params), pytrees.flatten(grads)[1]
    if chosen.structure != other:
        raise ShapeError(
            f"{name}: gradients must have the structure of the parameters:"
            f" {pytrees.difference(chosen.structure, other, 'grads')}."
        )
    rows = zip(chosen.paths(""), chosen.leaves, chosen.of(grads), strict=True)
    for place, p, g in rows:
        if not isinstance(p, Array) or not p._aval.dtype.is_inexact:
            got = p._aval if isinstance(p, Array) else type(p).__name__
            raise DTypeError(
                f"{name}: parameters must be floating arrays, got {got} at params{place}."
            )
        if not isinstance(g, Array) or g._aval.shape != p._aval.shape:
            got = g._aval.shape if isinstance(g, Array) else type(g).__name__
            raise ShapeError(
                f"{name}: a gradient must have its parameter's shape {p._aval.shape},"
                f" got {got} at grads{place}."
            )


def as_real(x: Any) -> Any:
    """A complex array as a real one with a last axis of two; real ones as they are."""
    return stack([real(x), imag(x)], axis=-1) if x._aval.dtype.is_complex else x


def as_like(x: Any, like: Any) -> Any:
    """The inverse of `as_real`, in the dtype of `like`."""
    if like._aval.dtype.is_complex:
        x = astype(x[..., 0], like._aval.dtype) + 1j * astype(x[..., 1], like._aval.dtype)
    return astype(x, like._aval.dtype)


def tree_zeros(params: Any) -> Any:
    """Zeros in the shape of each parameter (of its real form)."""
    chosen = pytrees.Parameters(params)
    return chosen.replaced([zeros_like(as_real(p)) for p in chosen.leaves], zeros_like)


def rate_at(lr: Any, step: Any) -> Any:
    """The learning rate of a step, which counts from 0."""
    return lr(step) if callable(lr) else lr


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """A pure rule: `state = opt.init(p)`, then `p, state = opt.step(p, grads, state)`.

    `lr` is a number, an array, or a schedule: a function of the step, which counts from 0.
    Parameters, gradients and state are trees of arrays, so a step can be jitted, differentiated,
    and kept in a file. `maximize` climbs instead of descending.
    """

    lr: Any
    weight_decay: float = 0.0
    maximize: bool = False

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the arrays that the rule keeps for each parameter, all zero at first."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        name = type(self).__name__
        checked(f"{name}: lr", self.lr, 0.0)
        checked(f"{name}: weight_decay", self.weight_decay, 0.0)
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "betas":
                for beta in value:
                    checked(f"{name}: betas", beta, 0.0, 1.0, open_high=True)
            elif field.name == "eps":
                checked(f"{name}: eps", value, 0.0)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # The class is not a dataclass yet, and has no constructor of its own.
        cls.__new__ = _without_parameters  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        raise missing(type(self).__name__, name, OPTIMIZER_HINTS, dir(type(self)))

    @briefly
    def init(self, params: Any) -> dict[str, Any]:
        """The state before the first step."""
        for path, x in zip(*_named_leaves(params), strict=True):
            if not isinstance(x, Array):
                raise DTypeError(
                    f"{type(self).__name__}.init: parameters must be arrays, got"
                    f" {type(x).__name__} at params{path}."
                )
        state: dict[str, Any] = {"step": as_array(np.int64(0), "init")}
        for name in self.kept:
            state[name] = tree_zeros(params)
        return state

    @briefly
    def step(self, params: Any, grads: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The parameters and the state after one step along the gradients."""
        of_one_structure(f"{type(self).__name__}.step", params, grads)
        chosen = pytrees.Parameters(params)
        count = state["step"] + 1
        rate = rate_at(self.lr, state["step"])
        kept = {name: chosen.of(state[name]) for name in self.kept}
        new_leaves, new_kept = [], {name: [] for name in self.kept}
        for i, (p, g) in enumerate(zip(chosen.leaves, chosen.of(grads), strict=True)):
            x, slope = as_real(p), astype(as_real(g), p._aval.dtype.real)
            if self.maximize:
                slope = -slope
            x, now = self.update(
                x, slope, {n: v[i] for n, v in kept.items()}, _StepClock(count, rate, x._aval.dtype)
            )
            new_leaves.append(as_like(x, p))
            for name in self.kept:
                new_kept[name].append(now[name])
        trees = {n: chosen.replaced(v) for n, v in new_kept.items()}
        return chosen.replaced(new_leaves), {**state, "step": count, **trees}

    def update(
        self, p: Any, g: Any, kept: dict[str, Any], at: _StepClock
    ) -> tuple[Any, dict[str, Any]]:
        """The rule for one real array: its new value and what is kept with it."""
        raise NotImplementedError

    def decayed(self, p: Any, g: Any) -> Any:
        """The gradient of the loss with a penalty of half the weight decay times p squared."""
        return g + self.weight_decay * p if _given(self.weight_decay) else g

    def shrunk(self, p: Any, at: _StepClock) -> Any:
        """Parameters after decoupled weight decay."""
        return p * (1.0 - at.rate * self.weight_decay) if _given(self.weight_decay) else p


def _without_parameters(cls: type, *args: Any, **options: Any) -> Any:
    if args:
        raise DTypeError(
            f"{cls.__name__}: options are given by name, and parameters to init and step, got"
            f" {type(args[0]).__name__}. Write {cls.__name__}(lr=...)."
        )
    return object.__new__(cls)


def _named_leaves(params: Any) -> tuple[list[str], list[Any]]:
    chosen = pytrees.Parameters(params)
    return chosen.paths(""), chosen.leaves


def _given(x: Any) -> bool:
    return isinstance(x, Array) or x != 0


class _StepClock:
    """The number of the step (from 1) and the learning rate, in the dtype of a parameter."""

    def __init__(self, count: Any, rate: Any, dtype: dt.DType):
        self.dtype = dtype
        self.count = astype(count, dt.float64)
        self.rate = astype(rate, dtype) if isinstance(rate, Array) else rate

    def cast(self, x: Any) -> Any:
        """A number worked out in float64, for use with the parameter."""
        return astype(x, self.dtype)

    def unbiased(self, beta: float) -> Any:
        """`1 - beta ** step`, what a running mean that began at zero is divided by."""
        return self.cast(1.0 - beta**self.count)
