"""Averages of parameters along training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.core import pytrees
from pullback.ir.convert import as_array
from pullback.ops.creation import zeros_like
from pullback.ops.parts import astype
from pullback.optim.base import checked

__all__ = ["EMA"]


@dataclass(frozen=True, kw_only=True)
class EMA:
    """The exponential moving average of parameters, corrected for its start at zero.

    >>> ema = pb.optim.EMA(decay=0.5)
    >>> state = ema.init(pb.zeros(1))
    >>> for w in (1.0, 4.0):
    ...     state = ema.step(pb.tensor([w]), state)
    >>> ema.params(state)
    tensor([3.], float32, cpu)
    """

    decay: float = 0.999

    def __post_init__(self) -> None:
        checked("EMA: decay", self.decay, 0.0, 1.0, open_high=True)

    def init(self, params: Any) -> dict[str, Any]:
        """The state before the first step."""
        chosen = pytrees.Parameters(params)
        zero = chosen.replaced([zeros_like(as_array(p, "EMA")) for p in chosen.leaves], zeros_like)
        return {"step": as_array(np.int64(0), "EMA"), "sum": zero}

    def step(self, params: Any, state: dict[str, Any]) -> dict[str, Any]:
        """The state after one more step; what is fixed in `params` is taken as it is."""
        old = iter(pytrees.Parameters(params).of(state["sum"]))
        chosen = pytrees.Parameters(params)
        moved = [next(old) * self.decay + p * (1.0 - self.decay) for p in chosen.leaves]
        return {"step": state["step"] + 1, "sum": chosen.replaced(moved)}

    def params(self, state: dict[str, Any]) -> Any:
        """The averaged parameters; there must have been a step."""
        share = 1.0 - self.decay ** astype(state["step"], "float64")
        chosen = pytrees.Parameters(state["sum"])
        return chosen.mapped(lambda s: s / astype(share, s._aval.dtype.real))
