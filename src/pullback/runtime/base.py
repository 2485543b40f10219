"""What a runtime is: a device's memory, and a target for the compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from pullback.compile.program.index_plans import PlanCache
from pullback.compile.program.single import plan_copy, plan_single, plan_write
from pullback.compile.program.target import Target
from pullback.core.avals import Aval
from pullback.core.errors import DeviceError
from pullback.core.memory import Memory
from pullback.ir.op import Op
from pullback.ir.plans import Plan

__all__ = ["DeviceRuntime", "Runtime"]


class Runtime(Memory):
    """Runs single operations and whole graphs as programs of its target."""

    target: Target

    def plan(self, op: Op, avals: tuple[Aval, ...], static: dict[str, Any], out: Aval) -> Plan:
        """The operation as a program of its own."""
        return plan_single(self.target, op, avals, static, out)

    def writer(self, to: Aval, value: Aval) -> Callable[[Any, Any], Any]:
        """A function of two buffers that writes an array to a view whose shape it broadcasts to."""
        return plan_write(self.target, to, value)

    def copier(self, av: Aval) -> Callable[[Any], Any]:
        """A function of a buffer that gives the buffer of a dense copy."""
        return plan_copy(self.target, av).run


class DeviceRuntime(Runtime):
    """One whose memory the host can't read, and which keeps no plans of indices."""

    def __init__(self):
        self._plans = PlanCache(lambda *_: (0, 0, 0), lambda _: True)

    def memory(self, buf: Any, av: Aval, *, writable: bool) -> NoReturn:
        """NumPy can't look at the memory of a GPU."""
        raise DeviceError(
            f"{self.name}: the host can't share the memory of a GPU. Move the tensor to the CPU"
            ' with to_device("cpu").'
        )

    def index_plan(self, buf: Any, av: Aval, size: int, by: object) -> None:
        """Indices are arranged anew for every sum."""

    def index_plans(self) -> PlanCache:
        """All index plans that are kept: none."""
        return self._plans
