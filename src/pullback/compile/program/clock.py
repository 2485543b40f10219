"""Reading the clock between the steps of a program: the host waits for the device at each of them.

A reading takes tens or hundreds of microseconds, which is measured first and left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

from pullback.compile.program.host_calls import HostCall, HostRun
from pullback.compile.program.stages import Node
from pullback.compile.program.target import Timing

__all__ = ["HostClock"]

SPARE = 4  # readings with nothing between them: the quickest tells what one takes


class HostClock:
    """See `target.Clock`; `stage` makes a stage of a call of the host."""

    def __init__(self, stage: Callable[[HostCall], Sequence[Node]]):
        self._times: list[float] = []
        self._stage = stage

    def _read(self, run: HostRun) -> None:
        run.wait()
        self._times.append(time.perf_counter())

    def start(self) -> None:
        """Forget earlier readings."""
        self._times.clear()

    def between(self, stages: Sequence[Node], steps: Sequence[range]) -> list[Node]:
        """The stages with readings around each step, of which the stages in these ranges are."""
        (reading,) = self._stage(HostCall(self._read))
        found: list[Node] = [reading] * SPARE
        at = 0
        for step in steps:
            found += [*stages[at : step.stop], reading]
            at = step.stop
        return [*found, *stages[at:]]

    def timings(self, kernels: Sequence[tuple[str, int]]) -> list[Timing]:
        """The steps, by name and bytes, after a run of the program."""
        cost = min(b - a for a, b in pairwise(self._times[:SPARE]))
        rows = zip(pairwise(self._times[SPARE - 1 :]), kernels, strict=True)
        return [Timing(name, a, max(b - a - cost, 0.0), n) for (a, b), (name, n) in rows]
