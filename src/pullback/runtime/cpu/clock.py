"""Reading the clock between the steps of a program."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from pullback.compile.program.stages import Node
from pullback.compile.program.target import Timing
from pullback.runtime.cpu.host_calls import HostKernel, host_stage

__all__ = ["Clock"]


class Clock:
    """Stages that read the clock, to be put between the steps of a program.

    A reading is a call of Python and takes about a microsecond, that is measured first and left
    out.
    """

    SPARE = 4  # readings with nothing between them: the quickest tells what one takes

    def __init__(self):
        self._times: list[float] = []
        self._function = HostKernel(self._read, (), 0)

    def _read(self, arrays: list[Any]) -> None:
        self._times.append(time.perf_counter())

    def start(self) -> None:
        """Forget earlier readings."""
        self._times.clear()

    def between(self, stages: Sequence[Node], steps: Sequence[range]) -> list[Node]:
        """The stages with readings around each step, of which the stages in these ranges are."""
        reading = host_stage(self._function)
        found: list[Node] = [reading] * self.SPARE
        at = 0
        for step in steps:
            found += [*stages[at : step.stop], reading]
            at = step.stop
        return [*found, *stages[at:]]

    def timings(self, kernels: Sequence[tuple[str, int]]) -> list[Timing]:
        """The steps, by name and bytes, after a run of the program."""
        if len(self._times) != self.SPARE + len(kernels):
            raise KeyboardInterrupt  # which came before a reading, and was lost in native code
        spare = self._times[: self.SPARE]
        cost = min(b - a for a, b in pairwise(spare))
        marks = self._times[self.SPARE - 1 :]
        rows = zip(pairwise(marks), kernels, strict=True)
        return [Timing(name, a, max(b - a - cost, 0.0), n) for (a, b), (name, n) in rows]
