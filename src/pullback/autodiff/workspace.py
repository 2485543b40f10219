"""The traced body of a loop or a branch, with one tape for derivatives of all orders.

A body is traced once. Derivatives of a call are swept over the tape that the trace left, in the
same graph, so its `detach`, `no_grad` and custom rules count at every order, and its Python
function never runs again. Each equation of control flow is then cut out of that graph: the part
from certain inputs to certain outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, NamedTuple
from weakref import ref

from pullback.autodiff.calls import Item
from pullback.autodiff.reverse import ancestors, cotangents, depends
from pullback.autodiff.series import Terms, expanded
from pullback.core.avals import Aval, aval
from pullback.core.errors import PullbackError
from pullback.ir.array import Array, Node, make, mode, next_order, variable_node
from pullback.ir.control import may_raise
from pullback.ir.graph import Equation, Graph, Var
from pullback.ir.op import REGISTRY

__all__ = [
    "BodyCut",
    "Workspace",
    "assembled",
    "expanded_at",
    "foreign",
    "moved_carries",
    "pulled",
    "reached",
]


class _BodyGraph(Graph):
    """A graph that remembers the handles of captured arrays, which somebody may watch."""

    def __init__(self, name: str):
        super().__init__(name)
        self._handles: dict[Var, ref[Array]] = {}

    def capture(self, array: Array) -> Var:
        var = super().capture(array)
        if var.constant is not None and var not in self._handles:
            self._handles[var] = ref(array)
        return var

    def outer(self, var: Var) -> Any:
        """The captured array of a constant."""
        buf, av, node = var.constant
        found = self._handles[var]()
        if found is None or found._buf is not buf or found._node is not node:
            return make(buf, av, node)
        return found


class BodyCut(NamedTuple):
    """A part of a workspace: its equations, and the variables that it needs from outside."""

    equations: list[Equation]
    needed: list[Var]


class Workspace:
    """A traced function: `graph` only ever grows; inputs in `given` stand for arrays outside."""

    def __init__(self, name: str):
        self.graph = _BodyGraph(name)
        self.given: dict[Var, Array] = {}
        self.checks: list[Var] = []  # of equations that may raise, though nobody needs them
        self._start = next_order()

    def trace(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result of a function whose operations go here, also those of outer values only."""
        before = mode.scope
        mode.scope = self.graph
        try:
            return function(*args)
        finally:
            mode.scope = before

    def variable(self, av: Aval, tracked: bool) -> Any:
        """A new input like `av`; with `tracked`, derivatives can be taken by it."""
        x = self.graph.add_input(av)
        if tracked and av.dtype.is_inexact:
            x._node = variable_node(x._aval)
        return x

    def constant(self, array: Array) -> Any:
        """A new input that stands for an array outside, which may be younger than this graph."""
        x = self.variable(array._aval, mode.recording and array._node is not None)
        self.given[x._buf] = array
        return x

    def variables_of(self, arrays: Iterable[Array]) -> list[Var]:
        """The variables of results, some of which may come from outside."""
        return [self.graph.capture(a) for a in arrays]

    def close(self) -> None:
        """End of the traced function: from now on only derivatives are added."""
        self.checks = [v for eq in self.graph.equations if may_raise(eq) for v in eq.outs]

    def outer(self, var: Var) -> Any:
        """The array outside that a variable stands for, None if it varies inside."""
        return self.graph.outer(var) if var.constant is not None else self.given.get(var)

    # -- the tape ----------------------------------------------------------------------------------

    def foreign(self, outputs: Iterable[Array], own: Iterable[Node]) -> list[Node]:
        """The nodes outside that outputs depend on: those of captured arrays, and older ones."""
        ends = {v.constant[2] for v in self.graph.constants if v.constant[2] is not None}
        return foreign(outputs, own, ends, self._start)

    def pulled(
        self, outputs: Sequence[Array], weights: Sequence[Any], targets: Sequence[Node]
    ) -> list[Any]:
        """The cotangents at the nodes `targets`, None for zero."""
        return pulled(outputs, weights, targets)

    def expanded(
        self, outputs: Sequence[Array], targets: Sequence[Node], series: Sequence[Terms]
    ) -> list[list[Any]]:
        """The Taylor coefficients of outputs, for those at the nodes `targets`."""
        return expanded_at(outputs, targets, series)

    # -- cutting -----------------------------------------------------------------------------------

    def definitions(self) -> dict[Var, tuple[int, Equation]]:
        """Where each variable is computed."""
        equations = enumerate(self.graph.equations)
        return {v: (i, eq) for i, eq in equations for v in eq.outs}

    def cut(
        self,
        outputs: Iterable[Var],
        definitions: dict[Var, tuple[int, Equation]],
        stop: Callable[[Var], bool] = lambda var: False,
    ) -> BodyCut:
        """What computes `outputs`, not going beyond variables for which `stop` holds."""
        needed: dict[Var, None] = {}
        chosen: dict[int, Equation] = {}
        stack = list(outputs)
        seen: set[Var] = set()
        while stack:
            var = stack.pop()
            if var in seen:
                continue
            seen.add(var)
            if var not in definitions or stop(var):
                needed[var] = None
                continue
            i, eq = definitions[var]
            if i not in chosen:
                chosen[i] = eq
                stack += eq.inputs
        ordered = [chosen[i] for i in sorted(chosen)]
        return BodyCut(ordered, sorted(needed, key=lambda v: v.number))


def foreign(
    outputs: Iterable[Array], own: Iterable[Node], ends: Container[Node], start: int
) -> list[Node]:
    """The nodes outside of a function that its outputs depend on: `ends`, and those made before
    `start`; the walk does not go beyond the function's `own` nodes.
    """
    inside = set(own)
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = [o._node for o in outputs if o._node is not None]
    while stack:
        node = stack.pop()
        if node in seen or node in inside:
            continue
        seen.add(node)
        edges = [e for e in node.edges if e is not None]
        # an output of an older call may have got its node late, and calls have no cotangent
        late = isinstance(node.op, Item) and edges[0].order < start
        if node in ends or late or node.order < start:
            found[node] = None
        else:
            stack += edges
    return sorted(found, key=lambda n: n.order)


def pulled(outputs: Sequence[Array], weights: Sequence[Any], targets: Sequence[Node]) -> list[Any]:
    """The cotangents at the nodes `targets`, None for zero.

    Hooks of arrays outside wait for the whole cotangent, which the sweep outside delivers.
    """
    ends = [make(None, n.aval, n) for n in targets]
    recorded, quiet = mode.recording, set(targets)
    return cotangents(outputs, weights, ends, retain=True, create_graph=recorded, quiet=quiet)


def expanded_at(
    outputs: Sequence[Array], targets: Sequence[Node], series: Sequence[Terms]
) -> list[list[Any]]:
    """The Taylor coefficients of outputs from order 1 on, None for zero, for those at the nodes
    `targets`.
    """
    starts = [make(None, n.aval, n) for n in targets]
    if not starts:
        return [[] for _ in outputs]
    return expanded(outputs, starts, series, create_graph=mode.recording)


def reached(outputs: Sequence[Array], targets: Iterable[Node], ends: Iterable[Node]) -> list[bool]:
    """Which outputs depend on one of the nodes `targets`; the tape ends at `ends`."""
    nodes = ancestors([o._node for o in outputs if o._node is not None], stop=ends)
    found = depends(nodes, set(targets))
    return [o._node in found for o in outputs]


def moved_carries(
    results: Sequence[Array], carries: dict[int, Node], starts: Sequence[Node]
) -> set[int]:
    """The carries of a loop that move if the nodes `starts` do: some of `carries`, the nodes of
    those that can, or nodes of other values of a step.
    """
    ends = {*carries.values(), *starts}
    moved = {k for k, node in carries.items() if node in starts}
    while True:
        sources = {*starts, *[carries[k] for k in moved]}
        live = reached(results, sources, ends)
        more = {k for k in carries if live[k]} - moved
        if not more:
            return moved
        moved |= more


# -- assembling ------------------------------------------------------------------------------------


def _one_element(array: Array) -> bool:
    """Whether an untracked array is one element, seen from everywhere."""
    av = array._aval
    if av.is_symbolic or av.size <= 1 or array._node is not None:
        return False
    return all(s == 0 for n, s in zip(av.shape, av.strides or (), strict=True) if n > 1)


def assembled(
    name: str,
    constants: dict[Var, Array],
    inputs: Sequence[Var],
    equations: Sequence[Equation],
    outputs: Sequence[Var],
) -> tuple[Graph, list[Any]]:
    """A graph of its own with the given equations, and the arrays for its first inputs: constants.

    Constants that repeat one element come in as that element and are spread inside.
    """
    graph = Graph(name)
    new: dict[Var, Var] = {}
    arrays: list[Any] = []
    spread: list[tuple[Var, Var]] = []
    for var, array in constants.items():
        if _one_element(array):
            av = array._aval
            array = make(array._buf, aval((), av.dtype, av.device))
            spread.append((var, graph.add_input(array._aval)._buf))
        else:
            new[var] = graph.add_input(var.aval)._buf
        arrays.append(array)
    for var in inputs:
        new[var] = graph.add_input(var.aval)._buf
    for var, element in spread:
        new[var] = graph.new_var(var.aval)
        static = {"shape": var.aval.shape}
        op = REGISTRY["broadcast_to"]
        graph.equations.append(Equation(op, (element,), static, (new[var],)))
    for eq in equations:
        for v in eq.outs:
            new[v] = graph.new_var(v.aval)
        if any(v not in new for v in eq.inputs):
            raise PullbackError(f"{name}: a value of another trace is used in `{eq}`.")
        operands = tuple(new[v] for v in eq.inputs)
        graph.equations.append(Equation(eq.op, operands, eq.static, tuple(new[v] for v in eq.outs)))
    graph.outputs = [new[v] for v in outputs]
    return graph, arrays
