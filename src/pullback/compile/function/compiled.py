"""A graph ready to run: compiled by the runtime of its device, except what needs no computing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from pullback.compile.program.executable import Executable
from pullback.compile.program.kept import KeptExecutable, Key, Source, read, write
from pullback.compile.program.target import Target
from pullback.core.avals import Aval, aval
from pullback.core.collector import paused_collector
from pullback.ir.array import mode
from pullback.ir.control import may_raise
from pullback.ir.effects import has_effect
from pullback.ir.graph import Equation, Graph, Var
from pullback.ir.plans import active

__all__ = ["Compiled", "part"]


def part(
    name: str,
    inputs: Sequence[Var],
    equations: Iterable[Equation],
    outputs: Sequence[Var],
    checks: bool = True,
) -> Graph:
    """The graph of those `equations` that the outputs need, with the constants that they use.

    Those that act on the world stay too, and with `checks` those that check indices.
    """
    graph = Graph(name)
    needed = set(outputs)
    kept: list[Equation] = []
    for eq in reversed(list(equations)):
        wanted = not needed.isdisjoint(eq.outs)
        if wanted or has_effect(eq) or (checks and may_raise(eq)):
            kept.append(eq)
            needed.update(eq.inputs)
    graph.inputs, graph.outputs, graph.equations = list(inputs), list(outputs), kept[::-1]
    given = set(inputs)
    used = [v for eq in graph.equations for v in eq.inputs] + graph.outputs
    constants = dict.fromkeys([v for v in used if v.constant is not None])
    graph.constants = [v for v in constants if v not in given]
    return graph


class Compiled:
    """A graph as a function from buffers to buffers.

    `sources` says for each output where it comes from: ("computed", i), ("input", i) or
    ("constant", (buffer, aval)). Only what is computed is compiled; an output that is an input
    keeps that input's buffer and strides. What is allocated stays within the `budget`, in bytes.
    The target is that of the graph's device unless another one is given.

    With a key, what an earlier process made of the graph is read from the disk, and the function
    that gives the graph is not called before somebody looks at it.
    """

    @paused_collector()
    def __init__(
        self,
        graph: Graph | Callable[[], Graph],
        budget: int | None = None,
        target: Target | None = None,
        key: Key | None = None,
    ):
        began = time.perf_counter()
        self._graph, self._budget, self._target, self._key = graph, budget, target, key
        self.run: Callable[[Sequence[Any], Sequence[Aval]], list[Any]] = _nothing
        self.executable: Executable | KeptExecutable | None = None
        if key is None or not self._restored(key):
            self._compile()
        self.plain = [s for s, _ in self.sources] == ["computed"] * len(self.avals)
        self.seconds = time.perf_counter() - began

    @property
    def graph(self) -> Graph:
        """The graph that was compiled."""
        if not isinstance(self._graph, Graph):
            self._graph = self._graph()
        return self._graph

    def _restored(self, key: Key) -> bool:
        """Whether the program was found on disk."""
        target: Target = key.device.runtime.target  # type: ignore[attr-defined]
        found = read(key, target)
        if found is None:
            return False
        self.sources, self.avals = found.sources, found.avals
        self.executable = self.run = KeptExecutable(key, found, target, self._executable)
        return True

    def _compile(self) -> None:
        graph = self.graph
        inputs = {id(v): i for i, v in enumerate(graph.inputs)}
        outputs = _computed(graph)
        computed = {id(v): i for i, v in enumerate(outputs)}
        self.sources: list[Source] = []
        for v in graph.outputs:
            if id(v) in inputs:
                self.sources.append(("input", inputs[id(v)]))
            elif v.constant is not None:
                self.sources.append(("constant", v.constant[:2]))
            else:
                self.sources.append(("computed", computed[id(v)]))
        self.avals = [aval(v.aval.shape, v.aval.dtype, v.aval.device) for v in outputs]
        if not outputs and not any(map(may_raise, graph.equations)):
            return
        self.executable = self.run = self._executable()

    def _executable(self) -> Executable:
        """What is computed, compiled."""
        graph = self.graph
        computing = part(graph.name, graph.inputs, graph.equations, _computed(graph))
        own = self._target or computing.equations[-1].inputs[0].aval.device.runtime.target
        key, keep = self._key, None
        if key is not None:
            keep = partial(write, key, own, self.sources, self.avals)
        return Executable(computing, own, self._budget, keep)

    def __call__(self, buffers: Sequence[Any], avals: Sequence[Aval]) -> list[tuple[Any, Aval]]:
        """Buffer and aval of every output."""
        observer = mode.observer if active else None
        if observer is None or self.executable is None:
            computed = self.run(buffers, avals)
        else:
            computed = observer.program(self, buffers, avals)
        if self.plain:
            return list(zip(computed, self.avals, strict=True))
        found = []
        for kind, where in self.sources:
            if kind == "computed":
                found.append((computed[where], self.avals[where]))
            elif kind == "input":
                found.append((buffers[where], avals[where]))
            else:
                found.append(where)
        return found

    def describe(self) -> str:
        """Kernels and memory plan, as the runtime tells them."""
        if self.executable is None:
            return "nothing to compute"
        return self.executable.describe()


def _computed(graph: Graph) -> list[Var]:
    """The outputs that are neither inputs nor constants, each once."""
    inputs = {id(v) for v in graph.inputs}
    found = {id(v): v for v in graph.outputs if id(v) not in inputs and v.constant is None}
    return list(found.values())


def _nothing(buffers: Sequence[Any], avals: Sequence[Aval]) -> list[Any]:
    return []
