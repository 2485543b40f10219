"""The limited-memory quasi-Newton method of Broyden, Fletcher, Goldfarb and Shanno."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pullback.control import scan, while_loop
from pullback.core import dtypes as dt
from pullback.core import pytrees
from pullback.core.dtypes import promote
from pullback.core.errors import DTypeError, GradientError, expect_function
from pullback.ir.array import Array
from pullback.ir.convert import as_array
from pullback.ops.arithmetic import abs as absolute
from pullback.ops.creation import zeros
from pullback.ops.movement import concat, reshape
from pullback.ops.parts import astype
from pullback.ops.selection import minimum, where
from pullback.optim.base import as_like, as_real, checked
from pullback.optim.line_search import strong_wolfe
from pullback.transforms import value_and_grad

__all__ = ["LBFGS"]


class _Vector(NamedTuple):
    """How a tree of parameters is one vector, and back."""

    chosen: pytrees.Parameters
    dtype: Any

    @property
    def leaves(self) -> list[Any]:
        return self.chosen.leaves

    def join(self, leaves: list[Any]) -> Any:
        return concat([reshape(astype(as_real(x), self.dtype), (-1,)) for x in leaves])

    def split(self, vector: Any) -> Any:
        found, start = [], 0
        for like in self.leaves:
            twice = like._aval.dtype.is_complex
            shape = (*like._aval.shape, 2) if twice else like._aval.shape
            size = int(np.prod(shape))
            found.append(as_like(reshape(vector[start : start + size], shape), like))
            start += size
        return self.chosen.replaced(found)


def _vector(params: Any) -> _Vector:
    chosen = pytrees.Parameters(params)
    if not chosen.leaves:
        raise GradientError("LBFGS: there are no parameters in the tree.")
    for x in chosen.leaves:
        if not isinstance(x, Array) or not x._aval.dtype.is_inexact:
            raise DTypeError(f"LBFGS: parameters must be floating arrays, got {x!r}.")
    dtype = dt.float32
    for x in chosen.leaves:
        dtype = promote(dtype, x._aval.dtype.real)
    return _Vector(chosen, dtype)


@dataclass(frozen=True, kw_only=True)
class LBFGS:
    """Steps `-H g` with H, an estimate of the inverse Hessian, from the last steps and gradients.

    `params, state = opt.minimize(loss, params)` goes on until the gradient or the steps are small;
    `opt.step(loss, params, state)` is one iteration. Both are pure functions that jit. `loss` takes
    the parameters. `line_search` is "strong_wolfe", or None for steps of length `lr`.

    >>> opt = pb.optim.LBFGS()
    >>> p, state = opt.minimize(lambda p: ((p - 3.0) ** 4).sum(), pb.tensor([0.0, 1.0]))
    >>> bool(pb.all(pb.abs(p - 3.0) < 0.1))
    True
    """

    lr: float = 1.0
    history_size: int = 10
    max_iter: int = 100
    tolerance_grad: float = 1e-7
    tolerance_change: float = 1e-9
    line_search: str | None = "strong_wolfe"

    def __post_init__(self) -> None:
        checked("LBFGS: lr", self.lr, 0.0)
        checked("LBFGS: history_size", self.history_size, 1)
        checked("LBFGS: max_iter", self.max_iter, 0)
        if self.line_search not in ("strong_wolfe", None):
            raise ValueError(
                f'LBFGS: line_search must be "strong_wolfe" or None, got {self.line_search!r}.'
            )

    def init(self, loss: Callable[[Any], Any], params: Any) -> dict[str, Any]:
        """The state before the first step: loss and gradient there, and an empty history."""
        form = _vector(params)
        value, gradient = self._evaluator(loss, form)(form.join(form.leaves))
        n, m = gradient._aval.shape[0], self.history_size
        dev = gradient._aval.device
        empty = {"s": (m, n), "y": (m, n), "rho": (m,)}
        history = {k: zeros(shape, dtype=form.dtype, device=dev) for k, shape in empty.items()}
        counters = {k: as_array(np.int64(0), "LBFGS", dev=dev) for k in ("step", "evaluations")}
        change = as_array(np.inf, "LBFGS", dev=dev)
        return {
            "value": value,
            "gradient": gradient,
            "change": astype(change, form.dtype),
            **history,
            **counters,
        }

    def step(
        self, loss: Callable[[Any], Any], params: Any, state: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Parameters and state after one iteration."""
        expect_function("LBFGS.step", loss, "the loss must be")
        if not isinstance(state, dict) or "gradient" not in state:
            raise DTypeError("LBFGS.step: the state must be what init(loss, params) gave.")
        form = _vector(params)
        x, state = self._iterate(self._evaluator(loss, form), form.join(form.leaves), state)
        return form.split(x), state

    def minimize(self, loss: Callable[[Any], Any], params: Any) -> tuple[Any, dict[str, Any]]:
        """Parameters at which the gradient or the last change is small, and the last state."""
        form = _vector(params)
        evaluate = self._evaluator(loss, form)

        def unfinished(carry: Any) -> Any:
            _, s = carry
            steep = absolute(s["gradient"]).max() > self.tolerance_grad
            return (s["step"] < self.max_iter) & steep & (s["change"] > self.tolerance_change)

        start = (form.join(form.leaves), self.init(loss, params))
        x, state = while_loop(unfinished, lambda c: self._iterate(evaluate, *c), start)
        return form.split(x), state

    def _evaluator(self, loss: Callable[[Any], Any], form: _Vector) -> Callable[[Any], Any]:
        def evaluate(x: Any) -> tuple[Any, Any]:
            value, gradient = value_and_grad(loss)(form.split(x))
            return astype(value, form.dtype), form.join(form.chosen.of(gradient))

        return evaluate

    def _iterate(
        self, evaluate: Callable[[Any], Any], x: Any, state: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        g = state["gradient"]
        d = -_times_inverse_hessian(g, state)
        slope = (g * d).sum()
        downhill = slope < 0.0
        d, slope = where(downhill, d, -g), where(downhill, slope, -(g * g).sum())
        first = state["step"] == 0
        length = where(first, minimum(1.0 / (absolute(g).sum() + 1e-30), 1.0), 1.0) * self.lr
        if self.line_search:
            t, value, gradient, tries = strong_wolfe(
                evaluate, x, d, state["value"], g, slope, length
            )
        else:
            t, tries = length, 1
            value, gradient = evaluate(x + t * d)
        s, y = t * d, gradient - g
        sy = (s * y).sum()
        useful = sy > 1e-10 * (y * y).sum()
        rho = where(useful, 1.0 / where(useful, sy, 1.0), 0.0)
        return x + s, {
            "value": value,
            "gradient": gradient,
            "change": absolute(s).max(),
            "s": _pushed(state["s"], s, useful),
            "y": _pushed(state["y"], y, useful),
            "rho": _pushed(state["rho"], rho, useful),
            "step": state["step"] + 1,
            "evaluations": state["evaluations"] + tries,
        }


def _pushed(history: Any, new: Any, useful: Any) -> Any:
    """The history with a new last entry in place of its oldest one, if the new one is useful."""
    return where(useful, concat([history[1:], new[None]]), history)


def _times_inverse_hessian(g: Any, state: dict[str, Any]) -> Any:
    """The product of the estimate with g by the two-loop recursion; unused entries have rho 0."""
    s, y, rho = state["s"], state["y"], state["rho"]

    def backward(q: Any, entry: Any) -> Any:
        s, y, rho = entry
        alpha = rho * (s * q).sum()
        return q - alpha * y, alpha

    def forward(r: Any, entry: Any) -> Any:
        s, y, rho, alpha = entry
        return r + (alpha - rho * (y * r).sum()) * s, None

    q, alpha = scan(backward, g, (s, y, rho), reverse=True)
    yy = (y[-1] * y[-1]).sum()
    some = rho[-1] > 0.0
    gamma = where(some, 1.0 / where(some, rho[-1] * yy, 1.0), 1.0)
    r, _ = scan(forward, q * gamma, (s, y, rho, alpha))
    return r
