"""The solution of an equation as one operation: derivatives by the implicit function theorem.

Where `f(x; p) = 0`, a change of p moves x by `dx = -A^-1 df`, with A the derivative of f by x and
df its change for fixed x. Both are computed with operations at the solution itself, so that
derivatives of any order are right, and how the solution was found does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from pullback.autodiff.calls import Slots, call_node, with_item
from pullback.autodiff.checkpoints import Watched
from pullback.autodiff.forward import tangents
from pullback.autodiff.maps import ended
from pullback.autodiff.reverse import cotangents, fresh, with_recording, zeros
from pullback.autodiff.workspace import foreign
from pullback.ir.array import Array, Node, make, mode, next_order
from pullback.ir.op import another

__all__ = ["linear_solution", "root"]

Flat = Callable[[list[Any]], list[Any]]
Solve = Callable[[Flat, list[Any]], list[Any]]  # of A and b: the x with A(x) = b


class RootCall:
    """The operation of the node that a solved equation leaves behind."""

    def __init__(
        self, name: str, residual: Flat, solve: Solve, transpose: Solve, watched: Watched | None
    ):
        self.name = name
        self.watched = watched
        self.residual = residual
        self.solve = solve
        self.transpose = transpose

    def saved_tensors(self, node: Node) -> tuple[Any, ...]:
        """The solution."""
        return tuple(make(buf, av) for buf, av in node.live_saved())

    def _taped(self, node: Node) -> tuple[list[Any], list[Any]]:
        """The residual, recorded at variables that are equal to the solution."""
        if self.watched is not None:
            self.watched.check()
        saved = node.live_saved()
        xs = [make(buf, av) for buf, av in saved]
        if mode.recording:
            xs = [with_item(x, node, i, len(xs)) for i, x in enumerate(xs)]
        variables = [fresh(x) for x in xs]
        return with_recording(True, self.residual, [another(v) for v in variables]), variables

    def push(self, node: Node, incoming: Sequence[Any]) -> Slots:
        """`-A^-1 df`."""
        residual, variables = self._taped(node)
        starts = [make(None, n.aval, n) for n in node.edges if n is not None]
        seeds: list[Any] = [*incoming, *[None] * len(variables)]
        change = tangents(residual, [*starts, *variables], seeds, create_graph=mode.recording)
        right = [zeros(r._aval) if t is None else -t for t, r in zip(change, residual, strict=True)]
        a, _ = _derivative(residual, variables)
        return Slots(linear_solution(self.name, a, right, self.solve, self.transpose))

    def pull(self, node: Node, g: Slots, wanted: Container[Node] | None) -> list[Any]:
        """The cotangents of what f depends on, for `-A^-T g` at its result."""
        residual, variables = self._taped(node)
        _, at = _derivative(residual, variables)
        pairs = zip(g.values, variables, strict=True)
        right = [zeros(v._aval) if x is None else -x for x, v in pairs]
        weights = linear_solution(self.name, at, right, self.transpose, self.solve)
        ends = [make(None, n.aval, n) for n in node.edges if n is not None]
        found = cotangents(
            residual, weights, [*ends, *variables], retain=True, create_graph=mode.recording
        )
        return found[: len(ends)]


def _derivative(residual: Sequence[Any], variables: Sequence[Any]) -> tuple[Flat, Flat]:
    """The derivative of the residual by the variables, and its transpose, as functions."""

    def along(directions: list[Any]) -> list[Any]:
        found = tangents(residual, variables, directions, create_graph=mode.recording)
        pairs = zip(found, residual, strict=True)
        return [zeros(r._aval) if t is None else t for t, r in pairs]

    def back(weights: list[Any]) -> list[Any]:
        found = cotangents(residual, weights, variables, retain=True, create_graph=mode.recording)
        pairs = zip(found, variables, strict=True)
        return [zeros(v._aval) if g is None else g for g, v in pairs]

    return along, back


def root(
    name: str,
    residual: Flat,
    solution: Sequence[Array],
    solve: Solve,
    transpose: Solve,
    watched: Watched | None = None,
) -> list[Any]:
    """The solution of `residual(x) = 0`, connected to everything that the residual depends on.

    `watched` is what the residual captures.
    """
    start = next_order()
    xs = [make(x._buf, x._aval) for x in solution]
    if not mode.recording:
        return xs
    outs = residual([another(x) for x in xs])
    found = [n for n in foreign(outs, (), (), start) if not ended(n)]
    if not found or not xs:
        return xs
    call = RootCall(name, residual, solve, transpose, watched)
    saved = tuple([(x._buf, x._aval) for x in xs])
    node = call_node(call, found, [n.aval for n in found], xs[0]._aval, saved)
    return [with_item(x, node, i, len(xs)) for i, x in enumerate(xs)]


def linear_solution(
    name: str,
    a: Flat,
    b: Sequence[Any],
    solve: Solve,
    transpose: Solve,
    watched: Watched | None = None,
) -> list[Any]:
    """The x with `a(x) = b` for a linear function, as `solve` finds it."""
    found = with_recording(False, solve, a, list(b))

    def residual(xs: list[Any]) -> list[Any]:
        return [p - q for p, q in zip(a(xs), b, strict=True)]

    return root(name, residual, found, solve, transpose, watched)
