"""`Array`, the handle that operations see, and `Node`, what a recorded operation leaves behind.

A handle is a buffer, an aval and a node. Buffers never change. A handle may be bound to another
buffer (`x[i] = v`), so nodes hold buffers and other nodes, never handles.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Sequence
from itertools import count
from typing import Any, Protocol

from pullback.core.avals import Aval
from pullback.core.errors import GradientError

__all__ = [
    "LEAF",
    "Array",
    "Mode",
    "Node",
    "Operation",
    "handle",
    "is_variable",
    "leaf_node",
    "make",
    "mode",
    "next_order",
    "variable_node",
]


class Mode(threading.local):
    """What this thread does with operations."""

    recording = True
    scope: Any = None  # the graph of the branch being traced, for all that is traced
    level: Any = None  # the innermost map over examples that this thread is inside of
    binds: list | None = (
        None  # collects the (op, arrays, static, plan) of binds, for whoever set it
    )
    observer: Any = None  # who runs operations in this block: see `observing`


mode = Mode()
next_order = count().__next__


class Array:
    """A handle: `_buf` holds the contents (or a traced variable), `_node` how it was computed."""

    __slots__ = ("__weakref__", "_aval", "_buf", "_node")

    _buf: Any
    _aval: Aval
    _node: Node | None


class LeafOperation:
    """The operation of a node that was not computed: a variable derivatives are taken with respect
    to.
    """

    name = "leaf"

    def __repr__(self) -> str:
        return "leaf"


LEAF = LeafOperation()


class Operation(Protocol):
    """What a node knows of what made it: an operation, a call, or one output of a call."""

    name: str

    def pull(self, node: Node, g: Any, wanted: Container[Node] | None) -> Sequence[Any]:
        """The cotangents of the operands; None where none is wanted or it is zero."""
        ...


class Node:
    """A recorded operation: its operands' nodes, and the buffers that its rules need.

    `saved` has one buffer per operand, then the output's; None stands for what no rule needs.
    """

    __slots__ = ("__weakref__", "aval", "avals", "edges", "extra", "op", "order", "saved", "static")

    op: Operation | Any
    edges: tuple[Node | None, ...]
    avals: tuple[Aval, ...]
    aval: Aval
    static: dict[str, Any]
    saved: tuple | None
    order: int
    extra: dict[str, Any] | None  # hooks, retained gradient: rare, so one slot for all

    @property
    def name(self) -> str:
        """The name of the operation."""
        return self.op.name

    @property
    def inputs(self) -> tuple[Aval, ...]:
        """Shape and dtype of each operand."""
        return self.avals

    @property
    def input_grad_fns(self) -> tuple[Node | None, ...]:
        """The nodes of the operands; None for an operand that needs no gradient."""
        return self.edges

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The values that the rules of this node keep alive, operands first, then the output."""
        listed = getattr(self.op, "saved_tensors", None)
        if listed is not None:
            return listed(self)
        kept = enumerate(self.live_saved())
        return tuple(self.saved_operand(i) for i, buf in kept if buf is not None)

    def live_saved(self) -> tuple:
        if self.saved is None:
            raise GradientError(
                f"{self.name}: the saved values of this operation were released by an earlier"
                " backward pass."
                " Pass retain_graph=True (or create_graph=True) to the first one."
            )
        return self.saved

    def saved_operand(self, position: int) -> Any:
        """Operand `position` (or, after the last operand, the output) as it was, connected to its
        own node.
        """
        buf = self.live_saved()[position]
        if position == len(self.edges):
            return make(buf, self.aval, self)
        return make(buf, self.avals[position], self.edges[position])

    def __repr__(self) -> str:
        return self.tree(1)

    def tree(self, depth: int = 8) -> str:
        """The recorded graph under this node, drawn with shapes, down to `depth` levels."""
        lines: list[str] = []
        seen: set[int] = set()
        stack: list[tuple[Node | None, str, str, int]] = [(self, "", "", 0)]
        while stack:
            node, lead, indent, level = stack.pop()
            if node is None:
                lines.append(f"{lead}constant")
                continue
            again = id(node) in seen
            seen.add(id(node))
            static = "".join(f" {k}={v}" for k, v in node.static.items())
            more = (
                " (above)"
                if again and node.edges
                else " ..."
                if level >= depth and node.edges
                else ""
            )
            lines.append(f"{lead}{node.name} {node.aval}{static}{more}")
            if again or level >= depth:
                continue
            last = len(node.edges) - 1
            for i in range(last, -1, -1):
                branch, bar = ("└─ ", "   ") if i == last else ("├─ ", "│  ")
                stack.append((node.edges[i], indent + branch, indent + bar, level + 1))
        return "\n".join(lines)


class handle:  # noqa: N801  (a namespace of one variable, cheap to read)
    """`cls` is the class of the handles that operations return: the public Tensor, once that is
    defined.
    """

    cls: type[Array] = Array


def make(buf: Any, av: Aval, node: Node | None = None) -> Any:
    """A new handle."""
    out = handle.cls()
    out._buf = buf
    out._aval = av
    out._node = node
    return out


def is_variable(node: Node) -> bool:
    """Whether a leaf belongs to a transform: then a handle on it may be updated like a result."""
    return node.extra is not None and "closed" in node.extra


def variable_node(av: Aval) -> Node:
    """A fresh variable of a transform, which says with `closed` when it has ended."""
    node = leaf_node(av)
    node.extra = {"closed": False}
    return node


def leaf_node(av: Aval) -> Node:
    """A fresh variable to differentiate with respect to."""
    node = Node()
    node.op, node.edges, node.avals, node.aval = LEAF, (), (), av
    node.static, node.saved, node.extra = {}, (None,), None
    node.order = next_order()
    return node
