"""The engine of the passes: a graph rebuilt from its inputs on, equation by equation, by rules.

A rule looks at one operation with its (already rewritten) operands and returns a variable of the
same type that holds the same values, or None. It may look at the equations that made the operands
and may `emit` further ones. What no rule replaces is numbered: an equation equal to an earlier one
is that one. Every rule makes a graph smaller or moves it towards one normal form, so emitting ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from pullback.compile.graph.passes import constants
from pullback.core.avals import Aval, aval, symbolic
from pullback.ir.graph import Equation, Graph, Var, inferred
from pullback.ops.arithmetic import add, multiply, negative
from pullback.ops.logic import equal, logical_and, logical_or, not_equal
from pullback.ops.movement import broadcast_to, permute_dims, reshape

__all__ = ["Guarded", "Rewriter", "Rule", "Rules", "rebuilt", "uses"]

COMMUTATIVE = {f.op for f in (add, multiply, equal, not_equal, logical_and, logical_or)}
NOTABLE = {f.op for f in (broadcast_to, reshape, permute_dims, negative)}
DEEPEST = 40  # rules inside rules; the next round goes on from there
Static = dict[str, Any]


class Rewriter:
    """A graph being rebuilt; `env` maps the variables of the source to those of the new graph."""

    def __init__(self, source: Graph, rules: Rules | None = None):
        self.source = source
        self.rules = rules or {}
        self.graph = Graph(source.name)
        self.graph.structure = source.structure
        self.env: dict[Var, Var] = {}
        self.made: dict[Var, Equation] = {}  # the equation of every variable with one
        self.uniform: dict[Var, Var] = {}  # 0-d constants of variables with equal elements
        self.uses: dict[Var, int] = {}  # how often the source uses what this variable stands for
        self.chosen: dict[Var, Var] = {}  # arrays with one number in each row, and the numbers
        self.changed = False
        self.is_cut_short = False  # whether rules were not tried
        self.notable: set[Var] = (
            set()
        )  # constants, views and negated variables: what most rules look for
        self._depth = 0
        self._answers: set[tuple[Var, bool]] = set()  # what rules were told by `only_use`
        self._numbers: dict[tuple, tuple[Var, ...]] = {}
        self._known: dict[tuple, Var] = {}  # constants by their contents
        self._values: dict[Var, Any] = {}

    def run(self) -> Graph:
        """The rewritten graph; the source is left as it is."""
        counts = uses(self.source)
        for v in self.source.inputs:
            new = self.env[v] = self.graph.new_var(v.aval)
            self.uses[new] = counts[v]
            self.graph.inputs.append(new)
        for v in self.source.constants:
            if counts[v]:
                self._map(v, self.loaded(v), counts[v])
        env, used, step = self.env, self.uses, self.step
        for eq in self.source.equations:
            outs = step(eq)
            if len(outs) == 1:  # as most are
                (v,), (new,) = eq.outs, outs
                env[v] = new
                used[new] = used.get(new, 0) + counts[v]
            else:
                for v, new in zip(eq.outs, outs, strict=True):
                    self._map(v, new, counts[v])
        self.graph.outputs = [self._output(self.env[v]) for v in self.source.outputs]
        return self.graph

    def step(self, eq: Equation) -> tuple[Var, ...]:
        """The variables that take the place of an equation's."""
        env = self.env
        inputs = tuple([env[v] for v in eq.inputs])
        if len(eq.outs) == 1:
            return (self.emit(eq.op, inputs, eq.static, eq.outs[0].aval),)
        return self.append(eq.op, inputs, eq.static, [v.aval for v in eq.outs])

    def _map(self, old: Var, new: Var, count: int) -> None:
        self.env[old] = new
        self.uses[new] = self.uses.get(new, 0) + count

    def _output(self, var: Var) -> Var:
        """A uniform output is a constant: one element, seen from everywhere."""
        value = self.uniform.get(var)
        if value is None or value is var or not var.aval.size:
            return var
        buf, av, _ = value.constant
        seen = aval(var.aval.shape, av.dtype, av.device, (0,) * var.aval.ndim)
        return self.constant(buf, seen, ("uniform", value, var.aval))

    # -- building ----------------------------------------------------------------------------

    def emit(
        self, op: Any, inputs: tuple[Var, ...], static: Static | None = None, av: Aval | None = None
    ) -> Var:
        """The variable that holds `op(*inputs, **static)`."""
        static = {} if static is None else static
        if av is None:
            ((shape, dtype),) = inferred(op, [v.aval for v in inputs], static)
            av = symbolic(shape, dtype, inputs[0].aval.device)
        rules = self.rules.get(op)
        if not rules or (type(rules) is Guarded and not rules.concern(self, inputs)):
            pass
        elif self._depth < DEEPEST:  # rules emit, and what they emit has rules
            self._depth += 1
            for rule in rules:
                found = rule(self, op, inputs, static, av)
                if found is not None:
                    assert found.aval is av, f"{op.name}: {av} became {found.aval}"
                    self._depth -= 1
                    self.changed = True
                    return found
            self._depth -= 1
        else:
            self.is_cut_short = True
        return self.append(op, inputs, static, (av,))[0]

    def append(
        self, op: Any, inputs: tuple[Var, ...], static: Static, avals: Sequence[Aval]
    ) -> tuple[Var, ...]:
        """The variables of a new equation, or of an equal one that is there already."""
        key = _key(op, inputs, static)
        found = self._numbers.get(key)
        if found is not None:
            self.changed = True
            return found
        new_var = self.graph.new_var
        outs = (new_var(avals[0]),) if len(avals) == 1 else tuple(map(new_var, avals))
        eq = Equation(op, inputs, static, outs)
        self.graph.equations.append(eq)
        for v in outs:
            self.made[v] = eq
        if op in NOTABLE:
            self.notable.update(outs)
        self._numbers[key] = outs
        if op is broadcast_to.op and inputs[0] in self.uniform:
            self.uniform[outs[0]] = self.uniform[inputs[0]]
        return outs

    def constant(self, buf: Any, av: Aval, key: tuple, node: Any = None) -> Var:
        """A constant; those with equal keys are one."""
        found = self._known.get(key)
        if found is None:
            found = self.graph.new_var(symbolic(av.shape, av.dtype, av.device), (buf, av, node))
            self.graph.constants.append(found)
            self._known[key] = found
            self.notable.add(found)
            if av.ndim == 0 and node is None:
                self.uniform[found] = found
        return found

    def loaded(self, old: Var) -> Var:
        """A constant of the source in the new graph, as small as it can be."""
        return self.broadcast(self.constant(*constants.reduced(old)), old.aval.shape)

    def number(self, value: Any, like: Aval) -> Var:
        """The 0-d constant of a number, in the dtype and on the device of `like`."""
        return self.constant(*constants.scalar(like.dtype.numpy.type(value), like))

    def full(self, value: Var, shape: tuple[int, ...]) -> Var:
        """An array of one 0-d constant."""
        return self.broadcast(value, shape)

    def broadcast(self, x: Var, shape: tuple[int, ...]) -> Var:
        """`x` broadcast to `shape`, if it does not have it."""
        return x if x.aval.shape == shape else self.emit(broadcast_to.op, (x,), {"shape": shape})

    def reshape(self, x: Var, shape: tuple[int, ...]) -> Var:
        """`x` reshaped, if it does not have the shape."""
        return x if x.aval.shape == shape else self.emit(reshape.op, (x,), {"shape": shape})

    # -- looking -----------------------------------------------------------------------------

    def maker(self, x: Var, op: Any) -> Equation | None:
        """The equation that made `x`, if it is one of `op`."""
        eq = self.made.get(x)
        return eq if eq is not None and eq.op is op else None

    def found(self, op: Any, inputs: tuple[Var, ...], static: Static) -> Var | None:
        """The variable of an equation that is there already."""
        outs = self._numbers.get(_key(op, inputs, static))
        return None if outs is None else outs[0]

    def value(self, x: Var) -> Any:
        """The number in all elements, as a NumPy scalar; None if they aren't known to be equal."""
        c = self.uniform.get(x)
        if c is None:
            return None
        found = self._values.get(c)
        if found is None:
            found = self._values[c] = constants.contents(c)[()]
        return found

    def only_use(self, x: Var) -> bool:
        """Whether what `x` stands for is used at most once."""
        found = self.uses.get(x, 0) <= 1
        self._answers.add((x, found))
        return found

    def is_final(self, result: Graph) -> bool:
        """Whether the rules would find nothing to do in the rewritten graph, without what is dead.

        They look at what operands are made of, which was rewritten before them, and at how often
        those are used, of which the source may have told something else.
        """
        if self.is_cut_short or result.has_more_than(self.graph):
            return False
        counts = uses(result) if self._answers else {}
        return all([(counts[v] <= 1) is told for v, told in self._answers])


Rule = Callable[[Rewriter, Any, tuple[Var, ...], Static, Aval], "Var | None"]
Rules = Mapping[Any, Sequence[Rule]]


class Guarded(tuple[Rule, ...]):
    """Rules that only look at notable operands, or at equal ones."""

    __slots__ = ()

    def concern(self, rw: Rewriter, inputs: tuple[Var, ...]) -> bool:
        """Whether any of them can find something to do."""
        return not rw.notable.isdisjoint(inputs) or (len(inputs) > 1 and inputs[0] is inputs[1])


def uses(graph: Graph) -> Counter[Var]:
    """How many operands and outputs each variable is."""
    operands = [eq.inputs for eq in graph.equations]
    return Counter(chain(graph.outputs, chain.from_iterable(operands)))


def _key(op: Any, inputs: tuple[Var, ...], static: Static) -> tuple:
    """What equal equations have in common; operands in any order where that changes no bit."""
    numbers = [v.number for v in inputs]
    if op in COMMUTATIVE:
        numbers.sort()
    if not static:
        return (op, *numbers)
    items = static.items()
    return (
        op,
        *numbers,
        frozenset(map(_exact, items) if float in map(type, static.values()) else items),
    )


def _exact(item: tuple[str, Any]) -> tuple[str, Any]:
    """A static parameter as part of a key: 0.0 and -0.0 are equal, but not the same."""
    return (item[0], repr(item[1])) if type(item[1]) is float else item


def rebuilt(graph: Graph, rules: Rules | None = None) -> Graph:
    """The graph with the rules applied, verified."""
    result = Rewriter(graph, rules).run()
    result.verify()
    return result
