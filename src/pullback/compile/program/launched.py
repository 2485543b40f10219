"""What targets have in common whose programs are launches on a device that runs behind the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pullback.compile.program.clock import HostClock
from pullback.compile.program.host_calls import HostCall
from pullback.compile.program.stages import Node, Stage
from pullback.compile.program.target import Clock, Tuning, WantedPlan, no_flat_programs
from pullback.core.dtypes import DType

__all__ = ["DEVICE_TUNING", "LaunchedTarget"]

# Groups are the same as on the CPU, up to where a device keeps much of a row.
DEVICE_TUNING = Tuning(
    block_bytes=1 << 17,
    local_bytes=1 << 19,
    line=64,
    task_elements=1 << 16,
    task_work=400_000,
    least_rows=8,
    rows_together=4,
    copied_bytes=1 << 20,
    light_elements=1 << 16,
    light_bytes=1 << 16,
    light_values=1 << 15,
)


class LaunchedTarget:
    """Has no programs of earlier processes, no plans of indices and no loops in one function."""

    kept = None
    flat = staticmethod(no_flat_programs)
    tuning = DEVICE_TUNING

    def __init__(self, host_stage: Callable[[HostCall], Sequence[Node]]):
        self._host_stage = host_stage  # of a call of the host

    def scalar_loop(self, *given: Any) -> list[Stage] | None:
        """Loops are run stage by stage."""

    def gather_plan(self, *given: Any) -> WantedPlan | None:
        """Indices are looked at again on every read."""

    def scatter_plan(self, *given: Any) -> WantedPlan | None:
        """Indices are sorted anew for every sum."""

    def plan_arrays(self, indices: Any, dtype: DType, wanted: WantedPlan) -> Sequence[Any] | None:
        """There are no plans."""

    def clock(self) -> Clock:
        """A clock that waits for the device."""
        return HostClock(self._host_stage)

    def together(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Kernels are compiled when their program is encoded."""
        return function(*args)
