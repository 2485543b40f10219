"""Functions of which only the arguments are kept: derivatives compute the rest again.

A derivative is computed by a function that is itself a checkpoint where it is recorded, so that
derivatives of every order keep arguments only.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from pullback.autodiff.batching import Example
from pullback.autodiff.calls import Expanding, Slots, call_node, with_item
from pullback.autodiff.maps import ended
from pullback.autodiff.reverse import close, cotangents, fresh, with_recording
from pullback.autodiff.series import Terms, expanded
from pullback.autodiff.workspace import foreign, reached
from pullback.core.captures import Captures
from pullback.core.errors import GradientError
from pullback.ir.array import Array, Node, make, mode, next_order, variable_node
from pullback.ir.op import REGISTRY, another, bind

__all__ = ["Watched", "checkpointed"]

Flat = Callable[[list[Any]], list[Any]]


class Watched:
    """What a function captures, which must be the same when the function runs again."""

    def __init__(self, name: str, function: Callable[..., Any]):
        self.name = name
        self._function = function
        self._captures = _captures(function)
        self._arrays = [(x, x._buf) for x in self._captures.arrays]

    def _changed(self) -> bool:
        if self._captures.changed(lists=False):  # a list may be a log
            return True
        now = _captures(self._function).arrays
        return len(now) != len(self._arrays) or any(
            x is not y or x._buf is not buf for x, (y, buf) in zip(now, self._arrays, strict=True)
        )

    def check(self) -> None:
        """Raise if something was changed."""
        if self._changed():
            raise GradientError(
                f"{self.name}: something that the function captures was changed between the call"
                " and this derivative of it, for which it runs again. Pass it as an argument, or"
                " change it later."
            )


def _captures(function: Callable[..., Any]) -> Captures:
    return Captures(function, lambda x: isinstance(x, Array))


class CheckpointCall(Expanding):
    """The operation of the node that a call leaves behind."""

    name = "checkpoint"

    def __init__(self, function: Flat, watched: Watched | None, tracked: Sequence[int]):
        self.function = function
        self.watched = watched
        self.tracked = list(tracked)  # positions of the arguments that have an edge

    def saved_tensors(self, node: Node) -> tuple[Any, ...]:
        """The arguments."""
        return tuple(make(buf, av) for buf, av in node.live_saved())

    def _arguments(self, node: Node) -> list[Any]:
        """The arguments as they were, connected to their nodes if that is recorded."""
        if self.watched is not None:
            self.watched.check()
        found = [make(buf, av) for buf, av in node.live_saved()]
        if mode.recording:
            for i, edge in zip(self.tracked, node.edges, strict=False):
                found[i]._node = edge
        return found

    def _again(self, arguments: list[Any], after: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The results, computed again once `after` is known, and variables for the arguments."""
        arguments = [_behind(x, after) for x in arguments]
        for i in self.tracked:
            arguments[i] = fresh(arguments[i])
        outs = with_recording(True, self.function, [another(x) for x in arguments])
        return outs, [arguments[i] for i in self.tracked]

    def _captured(self, node: Node) -> list[Any]:
        """Handles on what the function captured."""
        captured = node.edges[len(self.tracked) :]
        return [make(None, n.aval, n) for n in captured if n is not None]

    def _derived(self, node: Node, given: Sequence[Any], derive: Callable[..., Any]) -> list[Any]:
        """`derive(arguments, given)`, of which nothing is kept either; None is zero."""
        arguments = self._arguments(node)
        count, present = len(arguments), []

        def flat(xs: list[Any]) -> list[Any]:
            found = derive(xs[:count], xs[count:])
            present[:] = [x is not None for x in found]
            return [x for x in found if x is not None]

        run = checkpointed if mode.recording else lambda f, xs: f(xs)
        values = iter(run(flat, [*arguments, *given]))
        return [next(values) if here else None for here in present]

    def pull(self, node: Node, g: Slots, wanted: Container[Node] | None) -> list[Any]:
        """The cotangents, by running the function again."""
        places = [i for i, v in enumerate(g.values) if v is not None]

        def derive(arguments: list[Any], weights: list[Any]) -> list[Any]:
            outs, variables = self._again(arguments, weights)
            ends = [*variables, *self._captured(node)]
            found = cotangents(
                [outs[i] for i in places], weights, ends, retain=False, create_graph=mode.recording
            )
            close(variables)
            return found

        return self._derived(node, [g.values[i] for i in places], derive)

    def expand(self, node: Node, series: Sequence[Terms]) -> list[Slots]:
        """The Taylor coefficients, by running the function again."""
        order = len(series[0])
        places = [(i, k) for k, ts in enumerate(series) for i in range(order) if ts[i] is not None]

        def derive(arguments: list[Any], given: list[Any]) -> list[Any]:
            outs, variables = self._again(arguments, given)
            starts = [*variables, *self._captured(node)]
            seeds: list[list[Any]] = [[None] * order for _ in starts]
            for (i, k), t in zip(places, given, strict=True):
                seeds[k][i] = t
            found = expanded(outs, starts, seeds, create_graph=mode.recording)
            close(variables)
            return [terms[i] for i in range(order) for terms in found]

        flat = self._derived(node, [series[k][i] for i, k in places], derive)
        count = len(flat) // order
        return [Slots(flat[i * count : (i + 1) * count]) for i in range(order)]


def _behind(x: Any, after: Sequence[Any]) -> Any:
    """A traced array that is not known before the arrays `after` are: else the compiler would find
    that everything has been computed before, and keep it.
    """
    first = next((a for a in after if a._aval.size), None)
    if first is None or not x._aval.is_symbolic:
        return x
    while isinstance(first._buf, Example) and not first._buf.level.holds(x):
        first = first._buf.value  # what is the same for all examples is computed once
    if not first._aval.size:
        return x
    flat = bind(REGISTRY["reshape"], first, shape=(first._aval.size,))
    one = REGISTRY["primitive.getitem"].function(flat, 0)
    return REGISTRY["primitive.barrier"].function(x, make(one._buf, one._aval))


def checkpointed(
    function: Flat, arrays: Sequence[Any], watched: Watched | None = None
) -> list[Any]:
    """`function(arrays)`, of which nothing but the arrays is kept for derivatives."""
    if not mode.recording:
        return function([another(x) for x in arrays])
    start = next_order()
    inner = [make(x._buf, x._aval) for x in arrays]
    tracked = [i for i, x in enumerate(arrays) if x._node is not None and x._aval.dtype.is_inexact]
    for i in tracked:
        inner[i]._node = variable_node(inner[i]._aval)
    own = [inner[i]._node for i in tracked]
    outs = function([another(x) for x in inner])
    found = [n for n in foreign(outs, own, (), start) if not ended(n)]
    plain = [make(o._buf, o._aval) for o in outs]
    close([inner[i] for i in tracked])
    edges = [*[arrays[i]._node for i in tracked], *found]
    if not edges or not outs:
        return plain
    live = reached(outs, [*own, *found], [*own, *found])
    saved = tuple([(x._buf, x._aval) for x in arrays])
    call = CheckpointCall(function, watched, tracked)
    avals = [*[arrays[i]._aval for i in tracked], *[n.aval for n in found]]
    node = call_node(call, edges, avals, outs[0]._aval, saved)
    return [
        with_item(o, node, i, len(outs)) if here and o._aval.dtype.is_inexact else o
        for i, (o, here) in enumerate(zip(plain, live, strict=True))
    ]
