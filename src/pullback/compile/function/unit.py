"""A traced function, compiled for one signature.

Called on tracked arrays it leaves one node, whose derivatives are compiled too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Sequence
from typing import Any

from pullback.autodiff.calls import Expanding, Slots, call_node, item_node
from pullback.autodiff.series import Terms
from pullback.compile.function.compiled import Compiled
from pullback.compile.function.derivatives import (
    Linearised,
    pullback_of,
    series_of,
    symbolic_of,
)
from pullback.compile.function.keys import key_of
from pullback.compile.function.traced import Traced, first
from pullback.compile.graph.passes import optimise
from pullback.core.avals import Aval
from pullback.core.errors import GradientError
from pullback.ir.array import Node, make, mode
from pullback.ir.convert import to_numpy
from pullback.ir.graph import Graph
from pullback.ir.plans import active

__all__ = ["Unit"]


class Unit:
    """What is known of a function for one signature."""

    def __init__(
        self, trace: Traced, jit: Any, described: dict[str, str], budget: int | None = None
    ):
        self.budget = budget  # bytes that a call may allocate
        self.flat = trace.flat
        self.graph = trace.graph
        self.lifted = trace.lifted
        self.watched = trace.watched
        self.captures = trace.captures
        self.snapshots = trace.snapshots
        self.looked = trace.looked
        self.suspected = trace.suspected if trace.made or trace.looked else []
        self.captured = bool(trace.watched or trace.lifted or trace.captures or trace.snapshots)
        self.written = trace.written
        self.made = trace.made
        # whether the graph may depend on lifted arrays, which had these contents
        self.suspect = bool(trace.lifted and (trace.made or trace.looked))
        self._contents = [x._buf for x in trace.lifted]
        self.build = trace.build
        self.seconds = trace.seconds
        self.described = described
        self.used = 0
        # what a call needs if it is a plain one; None if it is not, or not compiled yet
        self.execute: Callable[[Sequence[Any], Sequence[Aval]], list[Any]] | None = None
        self.avals: list[Aval] = []
        self.single: Aval | None = None
        self._lock = threading.RLock()
        self._optimised: Graph | None = None
        self._program: Compiled | None = None
        self._linear: dict[tuple[int, ...], Linearised] = {}
        self._jit = jit
        self._derived: dict[tuple, Any] = {}

    @property
    def optimised(self) -> Graph:
        with self._lock:
            if self._optimised is None:
                self._optimised = optimise(self.graph, self._jit.exact)
            return self._optimised

    @property
    def program(self) -> Compiled:
        """The compiled graph, without derivatives."""
        if self._program is None:
            with self._lock:
                if self._program is None:
                    self._program = self._compiled()
        return self._program

    def _compiled(self) -> Compiled:
        key = key_of(self.graph, "unit", self._jit.exact, self.budget)
        program = Compiled(lambda: self.optimised, self.budget, key=key)
        self.avals = program.avals
        if self.build is first:
            self.single = program.avals[0] if program.plain else None
        if program.plain and not (self.lifted or self.written):
            self.execute = program.run
        return program

    def stale(self) -> bool:
        """Whether something captured is not what it was during the trace."""
        for known, buf, node in self.watched:
            array = known()
            if array is not None and (array._buf is not buf or array._node is not node):
                return True
        if self.lifted:
            inputs = self.graph.inputs[-len(self.lifted) :]
            pairs = zip(self.lifted, inputs, strict=True)
            if any(symbolic_of(x) is not v.aval for x, v in pairs):
                return True
            then = zip(self.lifted, self._contents, strict=True)
            if self.suspect and any(x._buf is not buf for x, buf in then):
                return True
        for known in (self.snapshots, self.suspected):
            if known and any([s.changed() for s in known]):
                return True
        return self.captures.changed()

    def compare(self, older: Unit) -> None:
        """Trust the constants if they came out the same for other contents of lifted arrays."""
        if not self.looked and len(self.made) == len(older.made):
            pairs = zip(self.made, older.made, strict=True)
            self.suspect = not all(a._aval is b._aval and _same_bits(a, b) for a, b in pairs)
            if not self.suspect:
                self.suspected = []

    def linearised(self, tracked: tuple[int, ...]) -> Linearised:
        found = self._linear.get(tracked)
        if found is None:
            with self._lock:
                found = self._linear.get(tracked)
                if found is None:
                    found = self._linear[tracked] = Linearised(self.flat, tracked, self._jit.exact)
        return found

    def derived(
        self, make_function: Callable[..., Any], *which: tuple[Any, ...]
    ) -> Callable[..., tuple[Any, ...]]:
        """A derivative as a jitted function of flat arrays."""
        key = (make_function, *which)
        with self._lock:
            if key not in self._derived:
                self._derived[key] = self._jit(make_function(self.flat, *which), memory=self.budget)
            return self._derived[key]

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """The outputs, as arrays; tracked arrays leave one node."""
        if mode.recording:
            for a in arrays:
                if a._node is not None:
                    return self._run_tracked(arrays)
        bufs, avals = [a._buf for a in arrays], tuple([a._aval for a in arrays])
        if self.execute is not None and not active:
            return list(map(make, self.execute(bufs, avals), self.avals))
        return [make(buf, av) for buf, av in self.program(bufs, avals)]

    def _run_tracked(self, arrays: Sequence[Any]) -> list[Any]:
        tracked = tuple(i for i, a in enumerate(arrays) if a._node is not None)
        linear = self.linearised(tracked)
        # with a budget only arguments are kept, and a derivative computes all else within it
        program = linear.forward if self.budget is None else self.program
        pairs = program([a._buf for a in arrays], tuple([a._aval for a in arrays]))
        count = len(self.graph.outputs)
        results = [make(buf, av) for buf, av in pairs[:count]]
        if linear.connected:
            call = call_node(
                UnitCall(self, linear),
                [a._node for a in arrays],
                [a._aval for a in arrays],
                results[linear.connected[0]]._aval,
                ([a._buf for a in arrays], pairs[count:]),
            )
            for i in linear.connected:
                results[i]._node = item_node(call, i, count, results[i]._aval)
        return results


def _same_bits(a: Any, b: Any) -> bool:
    return a._buf is b._buf or to_numpy(a).tobytes() == to_numpy(b).tobytes()


class UnitCall(Expanding):
    """The operation of the node that a call on tracked arrays leaves behind."""

    def __init__(self, unit: Unit, linear: Linearised):
        self.name = linear.name
        self.unit = unit
        self.linear = linear

    def saved_tensors(self, node: Node) -> tuple[Any, ...]:
        _, residuals = node.live_saved()
        return (*self._operands(node), *[make(buf, av) for buf, av in residuals])

    def _operands(self, node: Node) -> list[Any]:
        """The arguments as they were, connected to their nodes if that is recorded."""
        edges = node.edges if mode.recording else [None] * len(node.edges)
        return [make(*x) for x in zip(node.live_saved()[0], node.avals, edges, strict=True)]

    def _arguments(self, node: Node) -> list[Any]:
        """The operands without those that the function captures, which must be as they were."""
        flat = self.unit.flat
        operands = self._operands(node)
        captured = zip(operands[len(flat.inputs) :], flat.lifted, strict=True)
        if self.unit.stale() or any(then._buf is not now._buf for then, now in captured):
            raise GradientError(
                f"{self.name}: something that the jitted function captures was changed between the"
                " call and this derivative of it. Pass it as an argument, or change it later."
            )
        return operands[: len(flat.inputs)]

    def pull(self, node: Node, g: Slots, wanted: Container[Node] | None) -> list[Any]:
        """The cotangents of the arguments: by `backward`, or by a jitted function if recorded, or
        if it becomes a part of something that is traced, or within a budget.
        """
        linear = self.linear
        edges = [node.edges[i] for i in linear.tracked]
        mask = tuple(e is not None and (wanted is None or e in wanted) for e in edges)
        present = tuple(g.values[i] is not None for i in linear.connected)
        cots = [v for v in g.values if v is not None]
        result: list[Any] = [None] * len(node.edges)
        again = mode.recording or self.unit.budget is not None
        if again or any(c._aval.is_symbolic for c in cots):
            to = tuple(i for i, here in zip(linear.tracked, mask, strict=True) if here)
            of = tuple(i for i, here in zip(linear.connected, present, strict=True) if here)
            pulled = self.unit.derived(pullback_of, of, to)(*self._arguments(node), *cots)
            for i, x in zip(to, pulled, strict=True):
                result[i] = _allowed(x)
            return result
        bufs, residuals = node.live_saved()
        program = linear.backward(present, mask)
        pairs = program(
            [*bufs, *[buf for buf, _ in residuals], *[c._buf for c in cots]],
            (*node.avals, *[av for _, av in residuals], *[c._aval for c in cots]),
        )
        found = linear.aligned(mask, [make(buf, av) for buf, av in pairs])
        for i, x in zip(linear.tracked, found, strict=True):
            result[i] = x
        return result

    def expand(self, node: Node, series: Sequence[Terms]) -> list[Slots]:
        """The Taylor coefficients of the outputs, by a jitted function."""
        order = len(series[0])
        moved = tuple(
            (k, i) for k, terms in enumerate(series) for i in range(order) if terms[i] is not None
        )
        along = self.unit.derived(series_of, moved, (order,))
        found = along(*self._arguments(node), *[series[k][i] for k, i in moved])
        count = len(self.unit.flat.outputs)
        values = [_allowed(t) for t in found]
        return [Slots(values[i * count : (i + 1) * count]) for i in range(order)]


def _allowed(x: Any) -> Any:
    """A result of a derivative, with its link to what it was computed from if that is recorded."""
    return x if x is None or mode.recording else make(x._buf, x._aval)
