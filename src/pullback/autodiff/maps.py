"""A function mapped over examples as one operation, with derivatives of any order.

The function leaves a tape of one example. A derivative of the call is a sweep over that tape, for
all examples at once, and is again such a call; what all examples share gets the sum of their
cotangents.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, NamedTuple

import pullback.autodiff.batched_control  # noqa: F401  (gives control flow its rules)
from pullback.autodiff.batching import Level
from pullback.autodiff.calls import Expanding, Slots, call_node, with_item
from pullback.autodiff.series import Terms, is_zero
from pullback.autodiff.workspace import expanded_at, foreign, pulled, reached
from pullback.core.avals import Aval, aval
from pullback.ir.array import LEAF, Array, Node, mode, variable_node
from pullback.ir.op import REGISTRY, bind

__all__ = ["MapCall", "ended"]


class MapEntry(NamedTuple):
    """Something that a call can be differentiated by."""

    inside: Node  # what stands for it on the tape of one example
    edge: Node | None  # its node outside
    mapped: bool  # whether each example has its own


class MapCall(Expanding):
    """One call: of the function itself, or of a derivative of it."""

    name = "vmap"

    def __init__(self, level: Level, entries: Sequence[MapEntry] = ()):
        self.level = level
        self.entries = list(entries)

    def add(self, array: Array) -> Any:
        """The value of one example, of an array that has the examples along its first axis."""
        x = self.level.argument(array)
        if mode.recording and array._node is not None and x._aval.dtype.is_inexact:
            x._node = variable_node(x._aval)
            self.entries.append(MapEntry(x._node, array._node, True))
        return x

    def add_shared(self, array: Array) -> Any:
        """An array that all examples share."""
        if array._node is not None:
            self.level.captured[array._node] = None
        return array

    def close(self, results: Sequence[Any]) -> list[Any]:
        """The results of all examples, along the first axis, connected to the tape outside."""
        if mode.recording:
            own = {e.inside for e in self.entries}
            level = self.level
            found = foreign(results, own, level.captured, level.start)
            self.entries += [MapEntry(n, n, False) for n in found if not ended(n)]
        outs = [self.level.spread(r) for r in results]
        edges = [e.edge for e in self.entries]
        if not mode.recording or not outs or all(e is None for e in edges):
            return outs
        inside = [e.inside for e in self.entries]
        live = reached(results, inside, inside)
        avals = [self._outside(e) for e in self.entries]
        node = call_node(self, edges, avals, outs[0]._aval, (tuple(results),))
        return [
            with_item(o, node, i, len(outs)) if here and o._aval.dtype.is_inexact else o
            for i, (o, here) in enumerate(zip(outs, live, strict=True))
        ]

    def _outside(self, entry: MapEntry) -> Aval:
        """Shape and dtype of what an entry stands for."""
        av = entry.inside.aval
        return aval((self.level.size, *av.shape), av.dtype, av.device) if entry.mapped else av

    def saved_tensors(self, node: Node) -> tuple[Any, ...]:
        """Nothing that has a meaning outside."""
        return ()

    def pull(self, node: Node, g: Slots, wanted: Container[Node] | None) -> list[Any]:
        """The cotangents of all examples, by a sweep over the tape of one."""
        (results,) = node.live_saved()
        back = MapCall(self.level, self.entries)
        given = [i for i, v in enumerate(g.values) if v is not None]
        asked = [
            k
            for k, e in enumerate(self.entries)
            if e.edge is not None and (wanted is None or e.edge in wanted)
        ]
        weights = [back.add(g.values[i]) for i in given]
        targets = [self.entries[k].inside for k in asked]
        found = self.level.within(pulled, [results[i] for i in given], weights, targets)
        places = [(k, x) for k, x in zip(asked, found, strict=True) if x is not None]
        outs = back.close([x for _, x in places])
        values: list[Any] = [None] * len(self.entries)
        for (k, _), out in zip(places, outs, strict=True):
            values[k] = out if self.entries[k].mapped else _summed(out)
        return values

    def expand(self, node: Node, series: Sequence[Terms]) -> list[Slots]:
        """The Taylor coefficients of all examples, by a sweep over the tape of one."""
        (results,) = node.live_saved()
        along = MapCall(self.level, self.entries)
        targets: list[Node] = []
        seeds: list[list[Any]] = []
        for e, terms in zip(self.entries, series, strict=True):
            if not is_zero(terms):
                add = along.add if e.mapped else along.add_shared
                targets.append(e.inside)
                seeds.append([None if t is None else add(t) for t in terms])
        found = self.level.within(expanded_at, list(results), targets, seeds)
        places = [
            (i, k, t) for k, ts in enumerate(found) for i, t in enumerate(ts) if t is not None
        ]
        values: list[list[Any]] = [[None] * len(results) for _ in series[0]]
        for (i, k, _), out in zip(places, along.close([t for *_, t in places]), strict=True):
            values[i][k] = out
        return [Slots(v) for v in values]


def ended(node: Node) -> bool:
    """Whether a node is a variable of a transform that nobody can differentiate by any more."""
    return node.op is LEAF and node.extra is not None and bool(node.extra.get("closed"))


def _summed(array: Any) -> Any:
    """The sum over all examples."""
    return bind(REGISTRY["sum"], array, axes=(0,), keepdims=False)
