"""A traced while loop as one equation, with forward-mode derivatives of any order."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

from pullback.autodiff.calls import Expanding, Slots, call_node, with_item
from pullback.autodiff.reverse import with_recording, zeros
from pullback.autodiff.series import Terms, filled_from, is_zero, lowest
from pullback.autodiff.workspace import Workspace, assembled, moved_carries, reached
from pullback.core.avals import symbolic
from pullback.core.errors import GradientError
from pullback.ir.array import Array, Node, mode
from pullback.ir.control import WHILE
from pullback.ir.graph import Graph, Var
from pullback.ir.op import bind, newest_graph

__all__ = ["WhileCall", "staged_while"]


class WhileEntry(NamedTuple):
    """Something that a call can be differentiated by."""

    inside: Node  # what stands for it on the tape of the body
    edge: Node | None  # its node outside
    position: int  # among the carries, -1 for what stays the same


class WhileCall(Expanding):
    """One while loop: of the traced functions, or the loop that carries tangents beside values."""

    name = "while_loop"

    def __init__(self, test: Workspace, body: Workspace, parent: WhileCall | None = None):
        self.test = test
        self.body = body
        self.parent = parent
        self.tested: list[Any] = [] if parent is None else parent.tested  # what the test looks at
        self.answer: Any = None if parent is None else parent.answer
        self.carries: list[Any] = [] if parent is None else list(parent.carries)
        self.init: list[Any] = [] if parent is None else list(parent.init)
        self.results: list[Any] = [] if parent is None else list(parent.results)
        self.entries: list[WhileEntry] = [] if parent is None else list(parent.entries)

    def add_carry(self, init: Any) -> Any:
        """A new carry that starts as `init`."""
        x = self.body.variable(init._aval, mode.recording)
        self.carries.append(x)
        self.init.append(init)
        return x

    def close(
        self, results: Sequence[Any], instead: Callable[[], list[Any]] | None = None
    ) -> list[Any]:
        """Add the equation; its results are connected to the tape outside."""
        self.results += results
        live = self._find_entries() if mode.recording else []
        if instead is not None and any(e.edge is not None for e in self.entries):
            return instead()
        operands, static = self._built()
        graph = newest_graph(operands)
        avals = [symbolic(r._aval.shape, r._aval.dtype, r._aval.device) for r in self.results]
        outs = graph.add(WHILE, operands, static, avals)
        if not live or all(e.edge is None for e in self.entries):
            return outs
        edges = [e.edge for e in self.entries]
        node = call_node(self, edges, [e.inside.aval for e in self.entries], avals[0], ())
        return [
            with_item(o, node, i, len(outs)) if live[i] and o._aval.dtype.is_inexact else o
            for i, o in enumerate(outs)
        ]

    def _find_entries(self) -> list[bool]:
        """Complete the list of what to differentiate by; which of the results depend on it."""
        own = [x._node for x in self.carries if x._node is not None]
        known = {e.inside for e in self.entries if e.position < 0}
        found = self.body.foreign(self.results, [*known, *own])
        self.entries += [WhileEntry(n, n, -1) for n in found]
        known.update(found)
        ends = [*known, *own]
        varying = {k for k, a in enumerate(self.init) if a._node is not None}
        while True:  # a carry varies if it starts so, or becomes so in a step
            nodes = [self.carries[k]._node for k in varying if self.carries[k]._node is not None]
            live = reached(self.results, [*known, *nodes], ends)
            more = {k for k, here in enumerate(live) if here} - varying
            if not more:
                break
            varying |= more
        listed = {e.position for e in self.entries}
        for k in sorted(varying - listed):
            node = self.carries[k]._node
            if node is not None:
                self.entries.append(WhileEntry(node, self.init[k]._node, k))
        return [k in varying for k in range(len(self.results))]

    def _built(self) -> tuple[list[Any], dict[str, Any]]:
        """The operands and static parameters of the equation."""
        answer = self.test.variables_of([self.answer])
        results = self.body.variables_of(self.results)
        checks = [s.checks if self.parent is None else [] for s in (self.test, self.body)]
        tested = self.test.cut([*answer, *checks[0]], self.test.definitions())
        computed = self.body.cut([*results, *checks[1]], self.body.definitions())
        carries = [x._buf for x in self.carries]
        inputs = [x._buf for x in self.tested]
        first = {v: self.test.outer(v) for v in tested.needed if v not in inputs}
        second = {v: self.body.outer(v) for v in computed.needed if v not in carries}
        constants = {**first, **second}
        added = [Var(self.test.graph, -1, v.aval) for v in carries[len(inputs) :]]
        body, fixed = assembled(
            self.body.graph.name, constants, carries, computed.equations, results
        )
        test, _ = assembled(
            self.test.graph.name, constants, [*inputs, *added], tested.equations, answer
        )
        static = {"test": test, "body": body, "constants": len(fixed), "carries": len(carries)}
        return [*fixed, *self.init], static

    def pull(self, node: Node, g: Slots, wanted: Container[Node] | None) -> list[Any]:
        raise GradientError(
            "while_loop: reverse mode needs a bound on the number of steps, got none."
            " Pass max_steps, use scan or fori_loop with static bounds, or use forward mode (jvp)."
        )

    def expand(self, node: Node, series: Sequence[Terms]) -> list[Slots]:
        """The Taylor coefficients, by a loop that carries all of them beside the values."""
        along = WhileCall(self.test, self.body, self)
        order, first = len(series[0]), lowest(series)
        starts = [e.inside for e, t in zip(self.entries, series, strict=True) if not is_zero(t)]
        carries = {e.position: e.inside for e in self.entries if e.position >= 0}
        moved = moved_carries(self.results, carries, starts)
        targets: list[Node] = []
        seeds: list[list[Any]] = []
        moving: list[int] = []
        for e, terms in zip(self.entries, series, strict=True):
            if e.position in moved:
                filled, add = filled_from(first, terms, e.inside.aval), along.add_carry
                moving.append(e.position)
            elif e.position < 0 and not is_zero(terms):
                filled, add = terms, along.add_constant
            else:
                continue
            targets.append(e.inside)
            seeds.append([None if t is None else add(t) for t in filled])
        values: list[list[Any]] = [[None] * len(self.results) for _ in series[0]]
        if moving:
            found = self.body.expanded([self.results[k] for k in moving], targets, seeds)
            pairs = list(zip(moving, found, strict=True))
            places = [(i, k, terms[i]) for k, terms in pairs for i in range(first, order)]
            results = [zeros(self.results[k]._aval) if t is None else t for _, k, t in places]
            outs = along.close(results)[len(self.results) :]
            for (i, k, _), out in zip(places, outs, strict=True):
                values[i][k] = out
        return [Slots(v) for v in values]

    def add_constant(self, array: Any) -> Any:
        """A new value that is the same in each step."""
        x = self.body.constant(array)
        if x._node is not None:
            self.entries.append(WhileEntry(x._node, array._node, -1))
        return x


def staged_while(
    test: Callable[[list[Any]], Any],
    body: Callable[[list[Any]], list[Any]],
    init: Sequence[Any],
    name: str = "while",
    instead: Callable[[], list[Any]] | None = None,
) -> list[Any]:
    """The final carries of `while test(carries): carries = body(carries)`, as one equation.

    Where `instead` is given, it is what a loop that depends on tracked arrays is replaced by.
    """
    call = WhileCall(Workspace(f"{name}_test"), Workspace(f"{name}_body"))
    call.tested = [call.test.variable(a._aval, False) for a in init]
    call.answer = with_recording(False, test, call.tested)
    carries = [call.add_carry(a) for a in init]
    results = body(carries)
    call.test.close()
    call.body.close()
    return call.close(results, instead)


def _run_while(
    arrays: Sequence[Array], test: Graph, body: Graph, constants: int, carries: int
) -> list[Any]:
    """An equation of a graph that is run on traced arrays."""
    fixed = arrays[:constants]
    return staged_while(
        lambda carry: test.run(*fixed, *carry, bind=bind)[0],
        lambda carry: body.run(*fixed, *carry, bind=bind),
        arrays[constants:],
        body.name.removesuffix("_body"),
    )


WHILE.stage = _run_while
