"""An optimiser that looks ahead with another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.core import pytrees
from pullback.ir.convert import as_array
from pullback.ir.op import another
from pullback.ops.selection import where
from pullback.optim.base import Optimizer, checked

__all__ = ["Lookahead"]


@dataclass(frozen=True)
class Lookahead:
    """Every `k` steps of `inner`, slow parameters go `alpha` of the way to the fast ones, which
    start again from there (arXiv:1907.08610).

    >>> opt = pb.optim.Lookahead(pb.optim.SGD(lr=1.0), k=1, alpha=0.5)
    >>> p = pb.tensor([1.0])
    >>> opt.step(p, pb.tensor([1.0]), opt.init(p))[0]
    tensor([0.5], float32, cpu)
    """

    inner: Optimizer
    k: int = 5
    alpha: float = 0.5

    def __post_init__(self) -> None:
        checked("Lookahead: k", self.k, 1)
        checked("Lookahead: alpha", self.alpha, 0.0, 1.0)

    def init(self, params: Any) -> dict[str, Any]:
        """The state before the first step."""
        chosen = pytrees.Parameters(params)
        return {
            "step": as_array(np.int64(0), "Lookahead"),
            "inner": self.inner.init(params),
            "slow": chosen.mapped(lambda p: another(as_array(p, "Lookahead"))),
        }

    def step(self, params: Any, grads: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The parameters and the state after one step along the gradients."""
        fast, inner = self.inner.step(params, grads, state["inner"])
        count = state["step"] + 1
        meet = count % self.k == 0

        def slow(old: Any, new: Any) -> Any:
            return where(meet, old + self.alpha * (new - old), old)

        anchors = pytrees.Parameters(state["slow"]).mapped(slow, fast)
        fast = pytrees.Parameters(fast).mapped(lambda f, s: where(meet, s, f), anchors)
        return fast, {"step": count, "inner": inner, "slow": anchors}
