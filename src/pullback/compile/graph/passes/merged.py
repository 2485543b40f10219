"""Control flow that repeats other control flow, done once.

A forward-mode derivative of a loop carries tangents beside the values, which the loop itself has
carried before: where all carries of a loop are found among those of another one, only that one
runs. Choices by one predicate become one choice, in which the branches share what they compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pullback.compile.graph.passes.rewriter import rebuilt
from pullback.ir.control import COND, WHILE, may_raise
from pullback.ir.graph import Equation, Graph, Var

__all__ = ["with_merged_control"]


def with_merged_control(graph: Graph, late: int = 0) -> Graph:
    """The graph without loops that another one contains, and with one choice for each predicate.

    What depends on the last `late` inputs, which are known later than the others, stays apart from
    what does not.
    """
    while True:
        waiting = _waiting(graph, late)
        merged = _without_a_loop(graph, waiting) or _with_a_choice_less(graph, waiting)
        if merged is None:
            return graph
        graph = rebuilt(merged)


def _waiting(graph: Graph, late: int) -> set[Equation]:
    """The equations that depend on the last `late` inputs."""
    values, found = set(graph.inputs[len(graph.inputs) - late :]), set()
    for eq in graph.equations:
        if not values.isdisjoint(eq.inputs):
            values.update(eq.outs)
            found.add(eq)
    return found


# -- loops -----------------------------------------------------------------------------------------


def _without_a_loop(graph: Graph, waiting: set[Equation]) -> Graph | None:
    loops = [eq for eq in graph.equations if eq.op is WHILE]
    for small in loops if len(loops) > 1 else ():
        if may_raise(small):  # what it checks is not checked again by its derivatives
            continue
        for large in loops:
            if large is small or (large in waiting) != (small in waiting):
                continue
            places = _Numbers().places(small, large)
            order = None if places is None else _order(graph, small, large, large)
            if places is not None and order is not None:
                outs = {v: large.outs[k] for v, k in zip(small.outs, places, strict=True)}
                return _replaced(graph, order, outs)
    return None


class _Numbers:
    """Equal numbers for values that are equal whatever the inputs of their graphs are."""

    def __init__(self) -> None:
        self._table: dict[tuple, int] = {}
        self._closed: dict[Graph, tuple] = {}

    def _of(self, *key: Any) -> int:
        return self._table.setdefault(key, len(self._table))

    def _values(self, graph: Graph, inputs: Sequence[int]) -> dict[Var, int]:
        found = dict(zip(graph.inputs, inputs, strict=True))
        found |= {v: self._of("constant", id(v.constant[0]), v.aval) for v in graph.constants}
        for eq in graph.equations:
            key = (eq.op, self._static(eq), *[found[v] for v in eq.inputs])
            for i, v in enumerate(eq.outs):
                found[v] = self._of(i, *key)
        return found

    def _static(self, eq: Equation) -> tuple:
        return tuple(
            (k, self._graph(x) if isinstance(x, Graph) else (type(x), repr(x)))
            for k, x in sorted(eq.static.items())
        )

    def _graph(self, graph: Graph) -> tuple:
        """A graph as a function of its inputs."""
        if graph not in self._closed:
            inputs = [self._of("input", i, v.aval) for i, v in enumerate(graph.inputs)]
            found = self._values(graph, inputs)
            self._closed[graph] = (len(inputs), *[found[v] for v in graph.outputs])
        return self._closed[graph]

    def places(self, small: Equation, large: Equation) -> list[int] | None:
        """For each carry of a loop the place of an equal one of another loop, in every step.

        Carries that start equal are taken for equal until a step tells them apart.
        """
        loops = (small, large)
        ends = [[v for v in eq.inputs[eq.static["constants"] :]] for eq in loops]
        kinds = [[self._of("start", id(v)) for v in starts] for starts in ends]
        if not set(kinds[0]) <= set(kinds[1]):
            return None
        while True:
            count = len({*kinds[0], *kinds[1]})
            values = [self._step(eq, own) for eq, own in zip(loops, kinds, strict=True)]
            kinds = [
                [self._of("step", *pair) for pair in zip(own, after, strict=True)]
                for own, (after, _) in zip(kinds, values, strict=True)
            ]
            if not set(kinds[0]) <= set(kinds[1]):
                return None
            if len({*kinds[0], *kinds[1]}) == count:
                break
        if values[0][1] != values[1][1]:
            return None
        return [kinds[1].index(k) for k in kinds[0]]

    def _step(self, eq: Equation, carries: Sequence[int]) -> tuple[list[int], int]:
        """The carries after a step, and what the test says before it."""
        fixed = eq.inputs[: eq.static["constants"]]
        inputs = [*[self._of("outside", id(v)) for v in fixed], *carries]
        body, test = eq.static["body"], eq.static["test"]
        found, tested = self._values(body, inputs), self._values(test, inputs)
        return [found[v] for v in body.outputs], tested[test.outputs[0]]


# -- choices ---------------------------------------------------------------------------------------


def _with_a_choice_less(graph: Graph, waiting: set[Equation]) -> Graph | None:
    latest: dict[tuple[Var, bool], Equation] = {}
    for eq in graph.equations:
        if eq.op is not COND:
            continue
        kind = eq.inputs[0], eq in waiting
        first = latest.get(kind)
        if first is not None:
            both = _both(first, eq)
            order = _order(graph, first, eq, both)
            if order is not None:
                return _replaced(graph, order, {})
        latest[kind] = eq
    return None


def _both(first: Equation, second: Equation) -> Equation:
    """Two choices by one predicate as one."""
    operands = list(dict.fromkeys([*first.inputs[1:], *second.inputs[1:]]))
    static = {}
    for name in ("then", "otherwise"):
        sides = [(eq.static[name], eq.inputs[1:]) for eq in (first, second)]
        static[name] = _joined(sides, operands)
    return Equation(COND, (first.inputs[0], *operands), static, (*first.outs, *second.outs))


def _joined(sides: Sequence[tuple[Graph, tuple[Var, ...]]], operands: Sequence[Var]) -> Graph:
    """A graph of `operands` with the outputs of several, each of operands of its own."""
    joined = Graph(sides[0][0].name)
    given = {v: joined.add_input(v.aval)._buf for v in operands}
    for graph, own in sides:
        new = {v: given[x] for v, x in zip(graph.inputs, own, strict=True)}
        for v in graph.constants:
            new[v] = joined.new_var(v.aval, v.constant)
            joined.constants.append(new[v])
        for eq in graph.equations:
            inputs = tuple([new[v] for v in eq.inputs])
            new |= {v: joined.new_var(v.aval) for v in eq.outs}
            outs = tuple([new[v] for v in eq.outs])
            joined.equations.append(Equation(eq.op, inputs, eq.static, outs))
        joined.outputs += [new[v] for v in graph.outputs]
    return joined


# -- order -----------------------------------------------------------------------------------------


def _order(graph: Graph, one: Equation, other: Equation, merged: Equation) -> list | None:
    """The equations with `merged` in the place of two, as early as the first of them, after what
    the second one needs; None if that needs the first one.
    """
    equations = graph.equations
    start, end = sorted((equations.index(one), equations.index(other)))
    needed, before = set(equations[end].inputs), []
    for eq in reversed(equations[start:end]):
        if needed.isdisjoint(eq.outs):
            continue
        if eq is equations[start]:
            return None
        before.append(eq)
        needed.update(eq.inputs)
    skipped = {*before, one, other}
    rest = [eq for eq in equations[start:] if eq not in skipped]
    return [*equations[:start], *reversed(before), merged, *rest]


def _replaced(graph: Graph, equations: Sequence[Equation], instead: dict[Var, Var]) -> Graph:
    """The graph with these equations, and some variables in the place of others."""
    found = Graph(graph.name)
    found.structure = graph.structure
    found.inputs, found.constants = graph.inputs, graph.constants
    for eq in equations:
        inputs = tuple([instead.get(v, v) for v in eq.inputs])
        found.equations.append(Equation(eq.op, inputs, eq.static, eq.outs))
    found.outputs = [instead.get(v, v) for v in graph.outputs]
    return found
