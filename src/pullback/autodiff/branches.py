"""A traced choice between two functions as one equation, with derivatives of any order.

The derivative of a choice is the same choice between derivatives, which compute again what they
read. A branch keeps to itself even what it computes from outer values only: that must not happen,
nor be differentiated, when the other branch is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

from pullback.autodiff.calls import Expanding, Slots, call_node, with_item
from pullback.autodiff.reverse import zeros
from pullback.autodiff.series import Terms, is_zero
from pullback.autodiff.workspace import Workspace, assembled
from pullback.core.avals import Aval, symbolic
from pullback.ir.array import Array, Node, mode
from pullback.ir.control import COND
from pullback.ir.graph import Graph, Var
from pullback.ir.op import bind, newest_graph

__all__ = ["CondCall", "staged_cond"]


class CondEntry(NamedTuple):
    """Something that a call can be differentiated by."""

    inside: tuple[Node | None, Node | None]  # what stands for it on the tapes of the branches
    edge: Node | None  # its node outside
    aval: Aval


class BranchTrace:
    """One side: a workspace, its inputs (one for each operand of the call) and its results."""

    def __init__(self, name: str, other: BranchTrace | None = None):
        self.space = Workspace(name) if other is None else other.space
        self.inputs: list[Any] = [] if other is None else list(other.inputs)
        self.results: list[Any] = []


class CondCall(Expanding):
    """One choice: between the traced functions themselves, or between derivatives of them."""

    name = "cond"

    def __init__(self, predicate: Any, parent: CondCall | None = None):
        self.predicate = predicate
        self.parent = parent
        names = ("then", "otherwise")
        others = (None, None) if parent is None else parent.branches
        self.branches = tuple(BranchTrace(n, b) for n, b in zip(names, others, strict=True))
        self.operands: list[Any] = [] if parent is None else list(parent.operands)
        self.entries: list[CondEntry] = [] if parent is None else list(parent.entries)

    def add_operand(self, array: Any) -> tuple[Any, Any]:
        """A new operand, as each branch sees it."""
        tracked = mode.recording and array._node is not None
        first, second = (b.space.variable(array._aval, tracked) for b in self.branches)
        for branch, x in zip(self.branches, (first, second), strict=True):
            branch.inputs.append(x)
        self.operands.append(array)
        if first._node is not None:
            self.entries.append(CondEntry((first._node, second._node), array._node, array._aval))
        return first, second

    def close(self, then: Sequence[Any], otherwise: Sequence[Any]) -> list[Any]:
        """Add the equation; its results are connected to the tape outside."""
        for branch, results in zip(self.branches, (then, otherwise), strict=True):
            branch.results = list(results)
        if mode.recording:
            self._find_constants()
        operands, static = self._built()
        graph = newest_graph(operands)
        avals = [symbolic(r._aval.shape, r._aval.dtype, r._aval.device) for r in then]
        outs = graph.add(COND, operands, static, avals)
        if not mode.recording or not self.entries or not outs:
            return outs
        edges, given = [e.edge for e in self.entries], [e.aval for e in self.entries]
        node = call_node(self, edges, given, avals[0], ())
        pairs = list(zip(then, otherwise, strict=True))
        return [
            o if all(r._node is None for r in pairs[i]) else with_item(o, node, i, len(outs))
            for i, o in enumerate(outs)
        ]

    def _find_constants(self) -> None:
        known = [[e.inside[i] for e in self.entries] for i in (0, 1)]
        found = [
            b.space.foreign(b.results, [n for n in nodes if n is not None])
            for b, nodes in zip(self.branches, known, strict=True)
        ]
        for n in dict.fromkeys([*found[0], *found[1]]):
            inside = (n if n in found[0] else None, n if n in found[1] else None)
            self.entries.append(CondEntry(inside, n, n.aval))

    def _built(self) -> tuple[list[Any], dict[str, Any]]:
        """The operands and static parameters of the equation."""
        outputs = [b.space.variables_of(b.results) for b in self.branches]
        checks = [b.space.checks if self.parent is None else [] for b in self.branches]
        cuts = [
            b.space.cut([*o, *c], b.space.definitions())
            for b, o, c in zip(self.branches, outputs, checks, strict=True)
        ]
        inputs = [[x._buf for x in b.inputs] for b in self.branches]
        used = [
            k
            for k, pair in enumerate(zip(*inputs, strict=True))
            if pair[0] in cuts[0].needed or pair[1] in cuts[1].needed
        ]
        constants: dict[Var, Any] = {}
        for branch, cut in zip(self.branches, cuts, strict=True):
            outer = branch.space.outer
            constants |= {v: outer(v) for v in cut.needed if outer(v) is not None}
        graphs: list[Graph] = []
        fixed: list[Any] = []
        for branch, cut, given, outs in zip(self.branches, cuts, inputs, outputs, strict=True):
            chosen = [given[k] for k in used]
            name = branch.space.graph.name
            graph, fixed = assembled(name, constants, chosen, cut.equations, outs)
            graphs.append(graph)
        static = {"then": graphs[0], "otherwise": graphs[1]}
        return [self.predicate, *fixed, *[self.operands[k] for k in used]], static

    # -- derivatives -------------------------------------------------------------------------------

    def pull(self, node: Node, g: Slots, wanted: Container[Node] | None) -> list[Any]:
        """The cotangents, by the same choice."""
        back = CondCall(self.predicate, self)
        given = [i for i, v in enumerate(g.values) if v is not None]
        weights = [back.add_operand(g.values[i]) for i in given]
        asked = [e.edge is not None and (wanted is None or e.edge in wanted) for e in self.entries]
        found = [self._pulled(side, given, [w[side] for w in weights]) for side in (0, 1)]
        places = [
            i for i, want in enumerate(asked) if want and any(f[i] is not None for f in found)
        ]
        result: list[Any] = [None] * len(self.entries)
        if places:
            sides = [self._filled([f[i] for i in places], places) for f in found]
            for i, out in zip(places, back.close(*sides), strict=True):
                result[i] = out
        return result

    def _pulled(self, side: int, given: list[int], weights: list[Any]) -> list[Any]:
        branch = self.branches[side]
        targets = [e.inside[side] for e in self.entries]
        outs = [branch.results[i] for i in given]
        pairs = [(o, w) for o, w in zip(outs, weights, strict=True) if o._node is not None]
        present = [n for n in targets if n is not None]
        pulled = branch.space.trace(
            branch.space.pulled, [o for o, _ in pairs], [w for _, w in pairs], present
        )
        by_node = dict(zip(present, pulled, strict=True))
        return [None if n is None else by_node[n] for n in targets]

    def _filled(self, values: list[Any], places: list[int]) -> list[Any]:
        avals = [self.entries[i].aval for i in places]
        return [zeros(av) if v is None else v for v, av in zip(values, avals, strict=True)]

    def expand(self, node: Node, series: Sequence[Terms]) -> list[Slots]:
        """The Taylor coefficients, by the same choice."""
        along = CondCall(self.predicate, self)
        moved = [
            (e, [None if t is None else along.add_operand(t) for t in terms])
            for e, terms in zip(self.entries, series, strict=True)
            if not is_zero(terms)
        ]
        found = []
        for side, branch in enumerate(self.branches):
            present = [(e.inside[side], seeds) for e, seeds in moved if e.inside[side] is not None]
            nodes = [n for n, _ in present]
            own = [[None if t is None else t[side] for t in seeds] for _, seeds in present]
            space = branch.space
            terms = space.trace(space.expanded, branch.results, nodes, own)
            found.append([t or [None] * len(series[0]) for t in terms])
        avals = [r._aval for r in self.branches[0].results]
        places = [
            (i, k)
            for k in range(len(avals))
            for i in range(len(series[0]))
            if any(f[k][i] is not None for f in found)
        ]
        values: list[list[Any]] = [[None] * len(avals) for _ in series[0]]
        if places:
            sides = [[f[k][i] if f[k][i] is not None else zeros(avals[k]) for i, k in places]
                     for f in found]  # fmt: skip
            for (i, k), out in zip(places, along.close(*sides), strict=True):
                values[i][k] = out
        return [Slots(v) for v in values]


def staged_cond(
    predicate: Any,
    then: Callable[[list[Any]], list[Any]],
    otherwise: Callable[[list[Any]], list[Any]],
    operands: Sequence[Any],
    check: Callable[[Sequence[Any], Sequence[Any]], None] | None = None,
) -> list[Any]:
    """The results of one of two functions, as one equation; `check` sees the results of both."""
    call = CondCall(predicate)
    for array in operands:
        call.add_operand(array)
    first, second = call.branches
    chosen = first.space.trace(then, list(first.inputs))
    other = second.space.trace(otherwise, list(second.inputs))
    first.space.close()
    second.space.close()
    if check is not None:
        check(chosen, other)
    return call.close(chosen, other)


def _run_cond(arrays: Sequence[Array], then: Graph, otherwise: Graph) -> list[Any]:
    """An equation of a graph that is run on traced arrays; a known predicate chooses at once."""
    predicate, operands = arrays[0], arrays[1:]
    if not predicate._aval.is_symbolic:
        return COND.evaluate(arrays, then=then, otherwise=otherwise)
    return staged_cond(
        predicate,
        lambda xs: then.run(*xs, bind=bind),
        lambda xs: otherwise.run(*xs, bind=bind),
        operands,
    )


COND.stage = _run_cond
