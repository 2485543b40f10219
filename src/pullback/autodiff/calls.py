"""Nodes of calls with several outputs: one for the whole call, and a small one per output.

`Slots` is what travels between them: one cotangent (or tangent) per output.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from pullback.core.avals import Aval
from pullback.ir.array import Node, make, next_order

__all__ = ["Expanding", "Item", "Slots", "call_node", "item_node", "with_item"]


class Slots:
    """One value per output, None for zero."""

    def __init__(self, values: Sequence[Any]):
        self.values = tuple(values)

    def __add__(self, other: Slots) -> Slots:
        return Slots([_plus(a, b) for a, b in zip(self.values, other.values, strict=True)])


def _plus(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a + b


class Expanding:
    """An operation of calls that carries all Taylor coefficients at once: those of the outputs
    from order 1 on, for those of the operands, by `expand(node, series)`. Tangents are those of
    order 1.
    """

    def expand(self, node: Node, series: Sequence[Sequence[Any]]) -> list[Slots]:
        raise NotImplementedError

    def push(self, node: Node, incoming: Sequence[Any]) -> Slots:
        """The tangents of the outputs."""
        return self.expand(node, [[t] for t in incoming])[0]


class Item:
    """The operation of a node that stands for output `position` of a call."""

    name = "item"
    linear = True

    def __init__(self, position: int, count: int):
        self.position = position
        self.count = count

    def pull(self, node: Node, g: Any, wanted: Container[Node] | None) -> list[Any]:
        values = [None] * self.count
        values[self.position] = g
        return [Slots(values)]

    def push(self, node: Node, incoming: Sequence[Any]) -> Any:
        return incoming[0].values[self.position]


def call_node(
    op: Any, edges: Sequence[Node | None], avals: Sequence[Aval], av: Aval, saved: tuple
) -> Node:
    """The node of a whole call."""
    node = Node()
    node.op, node.static, node.extra, node.saved = op, {}, None, saved
    node.edges, node.avals, node.aval = tuple(edges), tuple(avals), av
    node.order = next_order()
    return node


def item_node(call: Node, position: int, count: int, av: Aval) -> Node:
    """The node of the output at `position` of the `count` outputs of a call."""
    return call_node(Item(position, count), (call,), (av,), av, (None, None))


def with_item(out: Any, call: Node, position: int, count: int) -> Any:
    """An output of a call as a new array, connected to the call."""
    return make(out._buf, out._aval, item_node(call, position, count, out._aval))
