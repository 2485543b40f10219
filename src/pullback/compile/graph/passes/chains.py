"""Sums of embedded parts: the gradient of an array that is read piece by piece.

Each read leaves its cotangent in a box of zeros, and these arrays are added up. Where boxes do not
overlap there is nothing to add: the parts are put side by side. A part that is -0.0 stays so, where
adding zeros makes it 0.0.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from pullback.compile.graph.passes.boxes import Box, disjoint
from pullback.compile.graph.passes.rewriter import Rewriter, uses
from pullback.core.avals import Aval
from pullback.ir.graph import Equation, Graph, Var
from pullback.ops.arithmetic import add
from pullback.ops.movement import concat, embed

__all__ = ["joined_parts"]

Part = tuple[Box, Var]
MOST_PARTS = 32  # of those that do not divide one axis, and are compared pair by pair


def joined_parts(graph: Graph) -> Graph:
    """The graph with sums of disjoint parts as one concatenation, or as parts of one array."""
    if not any([eq.op is embed.op for eq in graph.equations]):
        return graph
    made = {v: eq for eq in graph.equations for v in eq.outs}
    roots = _chains(graph, made)
    if not roots:
        return graph
    joining = _Joining(graph, roots)
    result = joining.run()
    return result if joining.joined else graph


def _chains(graph: Graph, made: dict[Var, Equation]) -> dict[Var, list[Var]]:
    """The terms of every longest chain `((a + b) + c) + d` with embedded parts, by its last sum."""
    counts = uses(graph)
    found: dict[Var, list[Var]] = {}
    inside: set[Var] = set()
    for eq in reversed(graph.equations):
        if eq.op is not add.op or eq.out in inside:
            continue
        terms: list[Var] = []
        link: Equation | None = eq
        while link is not None:
            chained = [_link(v, eq.out.aval, made, counts) for v in link.inputs]
            k = 0 if chained[0] is not None else 1
            terms.append(link.inputs[1 - k])
            if chained[k] is None:
                terms.append(link.inputs[k])
            else:
                inside.add(link.inputs[k])
            link = chained[k]
        if sum(v in made and made[v].op is embed.op for v in terms) > 1:
            found[eq.out] = terms[::-1]
    return found


def _link(v: Var, av: Aval, made: dict[Var, Equation], counts: Any) -> Equation | None:
    """The equation of a sum of full shape that is only used here."""
    eq = made.get(v)
    if eq is None or eq.op is not add.op or counts[v] != 1 or v.aval is not av:
        return None
    return eq


class _Joining(Rewriter):
    """Rebuilds a graph with its chains replaced at their last sum; what led to it is dead."""

    def __init__(self, source: Graph, chains: dict[Var, list[Var]]):
        super().__init__(source)
        self.chains = chains
        self.joined = False

    def step(self, eq: Equation) -> tuple[Var, ...]:
        terms = self.chains.get(eq.outs[0]) if eq.outs else None
        return super().step(eq) if terms is None else (self._sum([self.env[v] for v in terms]),)

    def _sum(self, terms: list[Var]) -> Var:
        """The sum of the terms, added in their order, with neighbouring parts joined."""
        total: Var | None = None
        run: _Run | None = None
        for term in terms:
            part = self._part(term)
            if part is None:
                total, run = self._plus(self._closed(total, run), term), None
            elif run is not None and run.takes(self, part, first=total is None):
                self.joined = True
            else:
                total, run = self._closed(total, run), _Run(term.aval, part)
        result = self._closed(total, run)
        assert result is not None
        return result

    def _part(self, term: Var) -> Part | None:
        """Box and contents of a term that is zero elsewhere."""
        eq = self.maker(term, embed.op)
        if eq is None:
            return None
        zero, x = eq.inputs
        value = self.value(zero)
        if value is None or value != 0:
            return None
        return (eq.static["starts"], x.aval.shape, eq.static["steps"]), x

    def _closed(self, total: Var | None, run: _Run | None) -> Var | None:
        return total if run is None else self._plus(total, run.assembled(self))

    def _plus(self, total: Var | None, term: Var) -> Var:
        return term if total is None else self.emit(add.op, (total, term))


class _Run:
    """Disjoint parts of one array; `axis` is the only one that they divide, or None."""

    def __init__(self, av: Aval, part: Part):
        self.av = av
        self.axis = self._divided(part[0])
        self.parts = [part]
        self.starts = [] if self.axis is None else [part[0][0][self.axis]]

    def _divided(self, box: Box) -> int | None:
        starts, shape, steps = box
        cut = [d for d, n in enumerate(shape) if starts[d] or n != self.av.shape[d]]
        return cut[0] if len(cut) == 1 and all(t == 1 for t in steps) else None

    def takes(self, rw: _Joining, part: Part, first: bool) -> bool:
        """Add a part, if it is disjoint from the others, or (`first` in the sum) on top of one."""
        box, x = part
        if self.axis is None:
            at = len(self.parts)
            fits = at < MOST_PARTS and all(disjoint(box, b) for b, _ in self.parts)
            same = next((k for k, (b, _) in enumerate(self.parts) if b == box), None)
        else:
            if self._divided(box) != self.axis:
                return False
            start = box[0][self.axis]
            at = bisect_left(self.starts, start)
            near = self.parts[max(at - 1, 0) : at + 1]
            fits = all(disjoint(box, b) for b, _ in near)
            same = at if at < len(self.parts) and self.parts[at][0] == box else None
        if fits:
            self.parts.insert(at, part)
            self.starts.insert(at, 0 if self.axis is None else box[0][self.axis])
        elif same is not None and first:
            self.parts[same] = (box, rw.emit(add.op, (self.parts[same][1], x)))
        return fits or (same is not None and first)

    def assembled(self, rw: _Joining) -> Var:
        """The array that the parts make."""
        zero = rw.number(0, self.av)
        if self.axis is None or len(self.parts) == 1:
            result = zero
            for (starts, _, steps), x in self.parts:
                static = {"shape": self.av.shape, "starts": starts, "steps": steps}
                result = rw.emit(embed.op, (result, x), static)
            return result
        pieces: list[Var] = []
        at = 0
        for (starts, shape, _), x in self.parts:
            self._fill(rw, pieces, zero, starts[self.axis] - at)
            pieces.append(x)
            at = starts[self.axis] + shape[self.axis]
        self._fill(rw, pieces, zero, self.av.shape[self.axis] - at)
        return rw.emit(concat.op, tuple(pieces), {"axis": self.axis})

    def _fill(self, rw: _Joining, pieces: list[Var], zero: Var, size: int) -> None:
        if size:
            assert self.axis is not None
            shape = (*self.av.shape[: self.axis], size, *self.av.shape[self.axis + 1 :])
            pieces.append(rw.full(zero, shape))
