"""A graph as one program of a target, compiled for the layout of its inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, NamedTuple

from pullback.compile.program.budgeted import FusedGraph, Rounds
from pullback.compile.program.calls import Calls, Surroundings
from pullback.compile.program.frame import Frame, inner_graphs
from pullback.compile.program.slots import Planned, SlotTable
from pullback.compile.program.stages import Program
from pullback.compile.program.target import Clock, Fault, Target, Timing, ending
from pullback.compile.program.waits import waits_of
from pullback.compile.schedule.budget import GroupedRung, ladder
from pullback.compile.schedule.fusion import fuse
from pullback.compile.schedule.groups import Region
from pullback.compile.schedule.timeline import Timeline
from pullback.compile.schedule.traffic import least_bytes
from pullback.core.avals import Aval, aval
from pullback.core.errors import MemoryBudgetError
from pullback.ir.graph import Graph, Var
from pullback.ir.lowering import Intrinsic

__all__ = ["Assembled", "Executable"]


class Assembled(NamedTuple):
    """A program as its target encoded it, and what is around it.

    It takes the inputs, then `constants`, variables of the graph and of graphs inside. An output is
    "out", "input", "constant" or "empty", with a position (of "out" a byte) and bytes after that.
    """

    program: Callable[..., Any]
    constants: Sequence[Var]
    outputs: Sequence[tuple[str, int, int]]
    errors: Sequence[tuple[str, Fault]]
    labels: Sequence[tuple[str, range]]  # what is computed by which stages


class Made(NamedTuple):
    """What became of a graph: its stages and slots, the program, and that as its target runs it."""

    frame: Frame
    table: SlotTable
    program: Program
    run: Callable[..., Any]


def _calls_python(target: Target, op: Any) -> bool:
    low = getattr(op, "lowering", None)
    return isinstance(low, Intrinsic) and target.routines[low.name].calls_python


class Executable:
    """A compiled graph: called with buffers and their avals, it returns the buffers of the outputs.

    It is compiled for dense inputs, and again for every other layout that it meets. With a budget,
    no call allocates more bytes: see `Version.within`.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        budget: int | None = None,
        made: Callable[[Version], None] | None = None,
    ):
        self.graph, self.target, self.budget = graph, target, budget
        self._made = made  # called with each version
        self._versions: dict[tuple[Aval, ...], Version] = {}
        dense = [aval(v.aval.shape, v.aval.dtype, v.aval.device) for v in graph.inputs]
        self._first = self._version(tuple(dense))

    def __call__(self, buffers: Sequence[Any], avals: Sequence[Aval]) -> list[Any]:
        version = self._versions.get(tuple(avals))
        if version is None:
            version = self.version(tuple(avals))
        return version.run(buffers)

    def version(self, avals: tuple[Aval, ...]) -> Version:
        """What there is for inputs of these layouts."""
        return self._versions.get(avals) or self._version(avals)

    def _version(self, avals: tuple[Aval, ...]) -> Version:
        version = self._versions[avals] = Version(self.graph, self.target, avals, self.budget)
        if self._made is not None:
            self._made(version)
        return version

    def timed(
        self, buffers: Sequence[Any], avals: Sequence[Aval]
    ) -> tuple[list[Any], list[Timing]]:
        """The buffers of the outputs, and what each step took; plans of indices are not used."""
        version = self.version(tuple(avals))
        return version.timed(buffers)

    @property
    def peak_bytes(self) -> int:
        """Bytes of the outputs and of all temporaries together, for dense inputs."""
        return self._first.peak_bytes

    @property
    def timeline(self) -> Timeline:
        """When and where everything lives, for dense inputs."""
        return self._first.timeline

    def assembled(self) -> Assembled:
        """The program for dense inputs."""
        return self._first.parts()

    def ladder(self) -> list[GroupedRung]:
        """All ways to run it for dense inputs, from the fastest to the one in least memory."""
        return ladder([way for found in self._first.rounds() for way in found])

    def describe(self) -> str:
        """Kernels, places of values and compile time, for dense inputs."""
        return self._first.describe()


class Version:
    """A graph compiled for one layout of its inputs."""

    def __init__(
        self, graph: Graph, target: Target, avals: Sequence[Aval], budget: int | None = None
    ):
        began = time.perf_counter()
        self._target = target
        self.grouped = fuse(graph, avals, ending=ending(target))
        inside = list(inner_graphs(graph))
        inner = [v for g in inside for v in g.constants]
        read = {id(s) for g in self.grouped.groups for s in g.values_read()}
        known = zip(graph.constants, self.grouped.constants, strict=True)
        used = [*(v for v, s in known if id(s) in read), *inner]
        self._graph, self._used, self.avals = graph, used, avals
        passed = [v.constant[0] for v in used]
        constants = [v.constant[0] for v in graph.constants]
        work = sum(s.aval.size for s in self.grouped.computed())
        # a stage that calls Python waits for its lock, which whoever runs the program must not hold
        python = any(_calls_python(target, op) for op in {eq.op for eq in graph.equations})
        self._heavy = work > target.tuning.light_values or python or bool(inside)
        made = self.assembled(())
        self._fused = FusedGraph.of(made.frame)
        if budget is not None and made.frame.peak_bytes > budget:
            made = self.within(budget)
        frame, table, self.program, self._program = made
        self.plan, self.errors, self.stages = frame.plan, table.errors, frame.stages
        self.steps = frame.steps
        self.arena_nbytes = table.arena_nbytes
        self.peak_bytes = frame.peak_bytes
        self.planned = list(table.plannable)
        if self.planned:
            self._programs: dict[tuple[bool, ...], Any] = {}
            self._program, self._unplanned = self._run_planned, self._program
        self._outputs = [self._where(r) for r in self.grouped.outputs]
        self.around = Surroundings(passed, constants, self._outputs, not self.stages)
        self.run_program = self._program
        calls = Calls(target, self._program, self.around, lambda: self.errors)
        self.run, self.run_other = calls.run, calls.run_other
        self._timing = Lock()
        self._timed: Timed | None = None
        self.seconds = time.perf_counter() - began

    def assembled(self, planned: Sequence[Planned], clock: Clock | None = None) -> Made:
        """The program; one with plans takes their arrays after all other buffers.

        With a clock, that is read before and after each step.
        """
        in_params = self._target.tuning.slots_in_params
        table = SlotTable(len(self._graph.inputs), self._used, in_params, planned)
        frame = self._target.together(Frame, self.grouped, table, self._target, self._graph)
        stages = frame.stages
        if clock is not None:
            stages = clock.between(stages, [s.stages for s in frame.steps])
        beside = self._target.tuning.side_by_side
        program = Program(
            table.n_inputs,
            frame.plan.out_nbytes,
            (table.arena_nbytes,),
            table.pointers,
            stages,
            self._heavy or clock is not None,
            waits_of(frame) if beside and clock is None else (),
        )
        return Made(frame, table, program, self._target.encode(program, table.errors))

    def parts(self) -> Assembled:
        """See `Executable.assembled`."""
        labels = [(s.label, s.stages) for s in self.steps]
        return Assembled(self._program, self._used, self._outputs, self.errors, labels)

    def rounds(self) -> Rounds:
        """The ways to run the graph."""
        return Rounds(self._graph, self.avals, self._used, self._target, self._fused)

    def within(self, budget: int) -> Made:
        """The fastest program that allocates so many bytes at most, outputs included."""
        least = None
        for found in self.rounds():
            for way in found:
                least = way if least is None or way.peak_bytes < least.peak_bytes else least
                if way.peak_bytes <= budget:
                    self.grouped = way.grouped
                    made = self.assembled(())
                    if made.frame.peak_bytes <= budget:
                        return made
        assert least is not None
        outputs = sum(s.nbytes for s in least.grouped.computed() if s.is_output)
        raise MemoryBudgetError(
            f"jit: `{self._graph.name}` can't run in a memory of {budget} bytes. The least possible"
            f" peak is {least.peak_bytes} bytes, {outputs} of them for its results. Give it as"
            " much, or call it with fewer examples at a time.",
            least.peak_bytes,
        )

    def _run_planned(self, *buffers: Any) -> Any:
        """Uses the plans that there are of these buffers, by the rule of single operations."""
        find = self._target.plan_arrays
        found = [find(buffers[p.slot - 1], p.dtype, p.wanted) for p in self.planned]
        known = tuple(f is not None for f in found)
        if not any(known):
            return self._unplanned(*buffers)
        if known not in self._programs:
            chosen = [p for p, is_known in zip(self.planned, known, strict=True) if is_known]
            self._programs[known] = self.assembled(chosen).run
        arrays = [array for arrays in found if arrays is not None for array in arrays]
        return self._programs[known](*buffers, *arrays)

    def timed(self, buffers: Sequence[Any]) -> tuple[list[Any], list[Timing]]:
        """See `Executable.timed`."""
        with self._timing:
            if self._timed is None:
                self._timed = Timed(self, self._target)
            return self._timed.run(buffers)

    @property
    def timeline(self) -> Timeline:
        used = [(s.label, s.scratch_nbytes) for s in self.steps]
        return Timeline.of(self.plan, used, self.arena_nbytes)

    def _where(self, r: Region) -> tuple[str, int, int]:
        if r.stored.origin != "computed":
            return r.stored.origin, r.stored.position, r.offset * r.aval.dtype.itemsize
        if r.aval.size == 0:
            return "empty", 0, 0
        return "out", self.plan.places[r.stored].offset, 0

    def describe(self) -> str:
        lines = [
            str(self.grouped),
            f"{len(self.stages)} stages, compiled in {self.seconds * 1e3:.1f} ms",
        ]
        out = self.plan.out_nbytes
        lines.append(f"arena {self.peak_bytes - out} bytes, outputs {out} bytes")
        for value, place in self.plan.places.items():
            lines.append(f"  {place.area} {place.offset:>10} {value}")
        return "\n".join(lines)


class Timed:
    """A version that reads the clock between its steps."""

    def __init__(self, version: Version, target: Target):
        self._version = version
        self._clock = target.clock()
        frame, _, _, self._program = version.assembled((), self._clock)
        self._kernels = [
            (s.label, least_bytes(s.group, frame.local.get(id(s.group), ()))) for s in frame.steps
        ]

    def run(self, buffers: Sequence[Any]) -> tuple[list[Any], list[Timing]]:
        """The outputs, and what each step took."""
        self._clock.start()
        outputs = self._version.run_other(self._program, buffers)
        return outputs, self._clock.timings(self._kernels)
