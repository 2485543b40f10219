"""A graph ready to run: compiled by the runtime of its device, except what needs no computing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pullback.compile.program.executable import Executable
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
    needed = {id(v) for v in outputs}
    kept: list[Equation] = []
    for eq in reversed(list(equations)):
        if any(id(v) in needed for v in eq.outs) or has_effect(eq) or (checks and may_raise(eq)):
            kept.append(eq)
            needed.update(id(v) for v in eq.inputs)
    graph.inputs, graph.outputs, graph.equations = list(inputs), list(outputs), kept[::-1]
    given = {id(v) for v in inputs}
    used = [v for eq in graph.equations for v in eq.inputs] + graph.outputs
    constants = {id(v): v for v in used if v.constant is not None and id(v) not in given}
    graph.constants = list(constants.values())
    return graph


class Compiled:
    """A graph as a function from buffers to buffers.

    `sources` says for each output where it comes from: ("computed", i), ("input", i) or
    ("constant", (buffer, aval)). Only what is computed is compiled; an output that is an input
    keeps that input's buffer and strides. What is allocated stays within the `budget`, in bytes.
    The target is that of the graph's device unless another one is given.
    """

    @paused_collector()
    def __init__(self, graph: Graph, budget: int | None = None, target: Target | None = None):
        began = time.perf_counter()
        self.graph = graph
        inputs = {id(v): i for i, v in enumerate(graph.inputs)}
        computed: dict[int, int] = {}
        self.sources: list[tuple[str, Any]] = []
        for v in graph.outputs:
            if id(v) in inputs:
                self.sources.append(("input", inputs[id(v)]))
            elif v.constant is not None:
                self.sources.append(("constant", v.constant[:2]))
            else:
                self.sources.append(("computed", computed.setdefault(id(v), len(computed))))
        unique = {id(v): v for v in graph.outputs if id(v) in computed}
        outputs = list(unique.values())
        self.avals = [aval(v.aval.shape, v.aval.dtype, v.aval.device) for v in outputs]
        self.plain = [s for s, _ in self.sources] == ["computed"] * len(outputs)
        self.run: Callable[[Sequence[Any], Sequence[Aval]], list[Any]] = _nothing
        self.executable: Executable | None = None
        if outputs or any(map(may_raise, graph.equations)):
            computing = part(graph.name, graph.inputs, graph.equations, outputs)
            own = target or computing.equations[-1].inputs[0].aval.device.runtime.target
            self.executable = self.run = Executable(computing, own, budget)
        self.seconds = time.perf_counter() - began

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


def _nothing(buffers: Sequence[Any], avals: Sequence[Aval]) -> list[Any]:
    return []
