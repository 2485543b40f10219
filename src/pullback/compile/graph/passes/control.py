"""The graphs inside `scan`, `while` and `cond`, optimised with what is known outside.

Inside, a graph has no constants of its own. While it is optimised, inputs that are known outside
are constants of it; those that are left become inputs again. What nobody uses goes: inputs,
outputs, and carries that matter to none of them; a carry that never changes becomes an input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pullback.compile.graph.passes.constants import FOLDED_BYTES, is_known
from pullback.compile.graph.passes.dead import live
from pullback.compile.graph.passes.rewriter import Rewriter, uses
from pullback.core.avals import Aval, aval
from pullback.ir.control import COND, CONTROL, SCAN, WHILE, may_raise
from pullback.ir.cost import is_cheap
from pullback.ir.graph import Equation, Graph, Var
from pullback.ops.selection import where

__all__ = ["with_optimised_bodies"]

MOST_SLIGHT = 32  # operations of a branch at most: a jump takes some 5 ns, as long as they do
SLIGHT_SIZE = 4  # elements of an array in such a branch, at most

Pass = Callable[[Graph], Graph]
Known = tuple[Any, Aval, None]  # the constant of a variable


def with_optimised_bodies(graph: Graph, optimise: Pass) -> Graph:
    """The graph with `optimise` applied to the graphs inside it, which lose what nobody uses."""
    if not any(eq.op in CONTROL for eq in graph.equations):
        return graph
    return _Bodies(graph, optimise).run()


class _Bodies(Rewriter):
    """Rebuilds a graph with smaller control flow."""

    def __init__(self, source: Graph, optimise: Pass):
        super().__init__(source)
        self.optimise = optimise
        self.counts = uses(source)

    def step(self, eq: Equation) -> tuple[Var, ...]:
        if eq.op not in CONTROL:
            return super().step(eq)
        inputs = [self.env[v] for v in eq.inputs]
        used = [bool(self.counts[v]) for v in eq.outs]
        return {SCAN: self._scan, WHILE: self._while, COND: self._cond}[eq.op](eq, inputs, used)

    def _scan(self, eq: Equation, inputs: list[Var], used: list[bool]) -> tuple[Var, ...]:
        body = eq.static["body"]
        loop = _Loop(self, eq, inputs, used, [body])
        n, m = loop.constants, loop.constants + loop.carries
        given = self._given_rows(eq, inputs, m)
        first: dict[Var, int] = {}  # the first y of each body variable
        for k in range(loop.carries, len(used)):
            if used[k] and k not in given:
                first.setdefault(body.outputs[k], k)
        ys = list(first.values())
        loop.close([body.outputs[k] for k in ys])
        for v, x in zip(body.inputs[m:], inputs[m:], strict=True):
            if x in self.uniform and x.aval.size:
                loop.known[v] = _one_element(self.uniform[x], v.aval)
        xs = [k for k in range(m, len(inputs)) if loop.reads(body.inputs[k])]
        outputs = [body.outputs[k] for k in (*loop.kept, *ys)]
        ends = [body.inputs[k] for k in (*[n + k for k in loop.kept], *xs)]
        (new,), fixed = loop.optimised([(body, outputs)], ends)
        static = {**eq.static, "body": new, "constants": len(fixed), "carries": len(loop.kept)}
        operands = (*fixed, *[inputs[n + k] for k in loop.kept], *[inputs[k] for k in xs])
        avals = [eq.outs[k].aval for k in (*loop.kept, *ys)]
        placed = self._placed(eq, operands, static, avals, [*loop.kept, *ys], loop.same | given)
        twins = {k: first[v] for k, v in enumerate(body.outputs) if v in first}
        later = range(loop.carries, len(used))
        return tuple(
            placed[twins[k]] if k in later and k in twins and k not in given else v
            for k, v in enumerate(placed)
        )

    def _given_rows(self, eq: Equation, inputs: list[Var], rows: int) -> dict[int, Var]:
        """The ys of a scan that are one of its xs, or a constant, as they are outside."""
        body = eq.static["body"]
        found = {}
        for k in range(eq.static["carries"], len(body.outputs)):
            if body.outputs[k] not in body.inputs:
                continue
            place = body.inputs.index(body.outputs[k])
            if place >= rows:
                found[k] = inputs[place]
            elif place < eq.static["constants"]:
                found[k] = self.broadcast(inputs[place], eq.outs[k].aval.shape)
        return found

    def _while(self, eq: Equation, inputs: list[Var], used: list[bool]) -> tuple[Var, ...]:
        test, body = eq.static["test"], eq.static["body"]
        loop = _Loop(self, eq, inputs, used, [body, test])
        loop.close(test.outputs)
        n = loop.constants
        ends = [body.inputs[n + k] for k in loop.kept]
        wanted = [(body, [body.outputs[k] for k in loop.kept]), (test, test.outputs)]
        (new, tested), fixed = loop.optimised(wanted, ends)
        static = {"test": tested, "body": new, "constants": len(fixed), "carries": len(loop.kept)}
        operands = (*fixed, *[inputs[n + k] for k in loop.kept])
        avals = [eq.outs[k].aval for k in loop.kept]
        return self._placed(eq, operands, static, avals, loop.kept, loop.same)

    def _cond(self, eq: Equation, inputs: list[Var], used: list[bool]) -> tuple[Var, ...]:
        then, otherwise = eq.static["then"], eq.static["otherwise"]
        choice = self.value(inputs[0])
        if choice is not None:
            return self._inlined(then if choice else otherwise, inputs[1:])
        kept = [k for k, u in enumerate(used) if u]
        branches = _Branches(self, inputs[1:], [then, otherwise])
        wanted = [(g, [g.outputs[k] for k in kept]) for g in (then, otherwise)]
        (first, second), fixed = branches.optimised(wanted, [])
        operands = (inputs[0], *fixed)
        avals = [eq.outs[k].aval for k in kept]
        if is_slight(first) and is_slight(second):
            sides = [self._inlined(g, fixed) for g in (first, second)]
            pairs = zip(kept, *sides, strict=True)
            chosen = {k: self.emit(where.op, (inputs[0], x, y)) for k, x, y in pairs}
            return self._placed(eq, operands, {}, [], [], chosen)
        return self._placed(eq, operands, {"then": first, "otherwise": second}, avals, kept, {})

    def _inlined(self, graph: Graph, inputs: Sequence[Var]) -> tuple[Var, ...]:
        """The outputs of a graph whose equations become equations of this one."""
        env = dict(zip(graph.inputs, inputs, strict=True))
        for eq in graph.equations:
            operands = tuple(env[v] for v in eq.inputs)
            outs = self.append(eq.op, operands, eq.static, [v.aval for v in eq.outs])
            env.update(zip(eq.outs, outs, strict=True))
        return tuple(env[v] for v in graph.outputs)

    def _placed(
        self,
        eq: Equation,
        operands: tuple[Var, ...],
        static: dict[str, Any],
        avals: Sequence[Aval],
        kept: Sequence[int],
        same: dict[int, Var],
    ) -> tuple[Var, ...]:
        """The variables for all outputs of `eq`, of which the equation now has the `kept` ones."""
        made = self.append(eq.op, operands, static, avals) if kept or may_raise(eq) else ()
        outs = {**dict(zip(kept, made, strict=True)), **same}
        unused = next(iter(outs.values()), self.env[eq.inputs[0]])  # nobody reads it
        return tuple(outs.get(k, unused) for k in range(len(eq.outs)))


def is_slight(graph: Graph) -> bool:
    """Whether a branch takes less time than a jump: both sides are then computed."""
    equations = graph.equations
    return len(equations) <= MOST_SLIGHT and all(
        is_cheap(eq) and eq.out.aval.size <= SLIGHT_SIZE for eq in equations
    )


class _Branches:
    """Graphs that share their inputs, some of which are known."""

    def __init__(self, rw: _Bodies, inputs: Sequence[Var], graphs: Sequence[Graph]):
        self.rw = rw
        self.inputs = inputs
        self.graphs = graphs
        self.known: dict[Var, Known] = {}  # by the variables of the first graph

    def optimised(
        self, wanted: Sequence[tuple[Graph, Sequence[Var]]], ends: Sequence[Var]
    ) -> tuple[list[Graph], list[Var]]:
        """The graphs for these outputs, and the constants they take before the inputs `ends`."""
        main = wanted[0][0]
        after = [main.inputs.index(v) for v in ends]
        reading = [live(g, outs) for g, outs in wanted]
        fixed: dict[Var, list[int]] = {}  # where each constant outside is an input
        for k, x in enumerate(self.inputs):
            if k in after or not any(
                g.inputs[k] in r for (g, _), r in zip(wanted, reading, strict=True)
            ):
                continue
            if main.inputs[k] not in self.known and not self._learn(main.inputs[k], x):
                fixed.setdefault(x, []).append(k)
        position = {v: k for k, v in enumerate(main.inputs)}
        smaller = []
        for g, outs in wanted:
            known = {g.inputs[position[v]]: c for v, c in self.known.items()}
            kept = [g.inputs[k] for k in (*[places[0] for places in fixed.values()], *after)]
            same = {g.inputs[k]: g.inputs[p[0]] for p in fixed.values() for k in p[1:]}
            smaller.append(self.rw.optimise(copied(g, kept, known, outs, same)))
        return self._lifted(smaller, list(fixed))

    def _learn(self, var: Var, outer: Var) -> bool:
        """Note that an input is known, if it is small."""
        value = self.rw.uniform.get(outer)
        if value is not None and outer.aval.size:
            self.known[var] = _one_element(value, var.aval)
            return True
        if is_known(outer) and outer.aval.nbytes <= FOLDED_BYTES:
            self.known[var] = outer.constant
            return True
        return False

    def _lifted(self, graphs: Sequence[Graph], fixed: list[Var]) -> tuple[list[Graph], list[Var]]:
        """The graphs with their constants as inputs, the same for all, after the fixed ones."""
        found: dict[tuple, tuple[Any, Aval, Any]] = {}
        for g in graphs:
            for v in g.constants:
                buf, av, _ = v.constant
                found[id(buf), av] = v.constant
        result = []
        for g in graphs:
            own = {(id(v.constant[0]), v.constant[1]): v for v in g.constants}
            lifted = [own.get(key) or _unread(g, av) for key, (_, av, _) in found.items()]
            inputs = [*g.inputs[: len(fixed)], *lifted, *g.inputs[len(fixed) :]]
            result.append(copied(g, inputs, {}, g.outputs))
        rw = self.rw
        outer = [rw.constant(b, av, ("buffer", id(b), av)) for b, av, _ in found.values()]
        return result, [*fixed, *outer]


class _Loop(_Branches):
    """The graphs of a loop: `kept` are the carries that matter, `same` those that never change."""

    def __init__(
        self,
        rw: _Bodies,
        eq: Equation,
        inputs: Sequence[Var],
        used: Sequence[bool],
        graphs: Sequence[Graph],
    ):
        super().__init__(rw, inputs, graphs)
        self.constants, self.carries = eq.static["constants"], eq.static["carries"]
        body = graphs[0]
        first = self.constants
        self.same = {
            k: inputs[first + k]
            for k in range(self.carries)
            if body.outputs[k] is body.inputs[first + k]
        }
        self.kept = [k for k in range(self.carries) if used[k] and k not in self.same]
        self._reading: set[Var] = set()

    def close(self, others: Sequence[Var]) -> None:
        """Keep every carry that the kept ones and the `others` among the outputs depend on."""
        body = self.graphs[0]
        while True:
            reading: set[Var] = set()
            for g in self.graphs:
                outs = [body.outputs[k] for k in self.kept] if g is body else []
                mine = [v for v in others if v in set(g.outputs)]
                read = live(g, [*outs, *mine])
                reading.update(w for w, v in zip(body.inputs, g.inputs, strict=True) if v in read)
            needed = [
                k
                for k in range(self.carries)
                if k not in self.same
                and (k in self.kept or body.inputs[self.constants + k] in reading)
            ]
            if needed == self.kept:
                self._reading = reading
                return
            self.kept = needed

    def reads(self, var: Var) -> bool:
        """Whether an input of the body is needed as an input."""
        return var in self._reading and var not in self.known


def _one_element(value: Var, av: Aval) -> Known:
    """The constant of a uniform array: one element, seen from everywhere."""
    buf, own, _ = value.constant
    return buf, aval(av.shape, own.dtype, own.device, (0,) * av.ndim), None


def _unread(graph: Graph, av: Aval) -> Var:
    """An input that a graph has only because another one reads it."""
    return graph.new_var(av)


def copied(
    graph: Graph,
    inputs: Sequence[Var],
    known: dict[Var, Known],
    outputs: Sequence[Var],
    same: dict[Var, Var] | None = None,
) -> Graph:
    """The part of a graph from `inputs` to `outputs`; the `known` variables become constants.

    `same` maps inputs that are left out to others with the same values.
    """
    needed = live(graph, outputs, inputs)
    result = Graph(graph.name)
    result.structure = graph.structure
    env: dict[Var, Var] = {}
    for v in inputs:
        env[v] = result.new_var(v.aval)
        result.inputs.append(env[v])
    env.update((v, env[kept]) for v, kept in (same or {}).items())
    constants = [(v, v.constant) for v in graph.constants] + list(known.items())
    for v, constant in constants:
        if v in needed and v not in env:
            env[v] = result.new_var(v.aval, constant)
            result.constants.append(env[v])
    for eq in graph.equations:
        if any(v in needed and v not in env for v in eq.outs) or may_raise(eq):
            outs = tuple(result.new_var(v.aval) for v in eq.outs)
            env.update(zip(eq.outs, outs, strict=True))
            operands = tuple(env[v] for v in eq.inputs)
            result.equations.append(Equation(eq.op, operands, eq.static, outs))
    result.outputs = [env[v] for v in outputs]
    return result
