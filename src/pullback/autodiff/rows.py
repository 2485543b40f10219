"""The rows of an array for a loop in Python: their cotangents are stacked once, not added up."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from pullback.autodiff.calls import Slots, call_node, with_item
from pullback.autodiff.reverse import with_recording, zeros
from pullback.ir.array import Array, Node, mode
from pullback.ir.control import row
from pullback.ir.op import REGISTRY

__all__ = ["rows_of"]


class Rows:
    """The operation of the node of an array that was taken apart into rows."""

    name = "rows"
    linear = True

    def pull(self, node: Node, g: Slots, wanted: Container[Node] | None) -> list[Any]:
        like = next(v for v in g.values if v is not None)
        return [
            REGISTRY["stack"].function([zeros(like._aval) if v is None else v for v in g.values])
        ]

    def push(self, node: Node, incoming: Sequence[Any]) -> Slots:
        (t,) = incoming
        return Slots([row(t, i) for i in range(t._aval.shape[0])])


def rows_of(x: Array) -> list[Any]:
    """`x[0], x[1], ...`, connected to `x`."""
    count = x._aval.shape[0]
    if not mode.recording or x._node is None or count == 0:
        return [row(x, i) for i in range(count)]
    rows = with_recording(False, lambda: [row(x, i) for i in range(count)])
    call = call_node(Rows(), (x._node,), (x._aval,), x._aval, ())
    return [with_item(r, call, i, count) for i, r in enumerate(rows)]
