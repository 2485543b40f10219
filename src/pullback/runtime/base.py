"""What a runtime is: a device's memory, and a target for the compiler."""

from __future__ import annotations

from typing import Any

from pullback.compile.program.single import plan_single
from pullback.compile.program.target import Target
from pullback.core.avals import Aval
from pullback.core.memory import Memory
from pullback.ir.op import Op
from pullback.ir.plans import Plan

__all__ = ["Runtime"]


class Runtime(Memory):
    """Runs single operations and whole graphs as programs of its target."""

    target: Target

    def plan(self, op: Op, avals: tuple[Aval, ...], static: dict[str, Any], out: Aval) -> Plan:
        """The operation as a program of its own."""
        return plan_single(self.target, op, avals, static, out)
