"""Taylor mode: truncated power series carried along recorded nodes, oldest first.

A curve `x(t) = x + x1 t + x2 t**2 + ...` through the variables becomes one through every node.
Where an operation is affine in what moves, each coefficient of the result comes from that of the
operands alone; products convolve; an operation may give its own recurrence. For all others there is
the rule of forward mode, `y' = J(x, y) x'`, as a recorded expression: its coefficient n - 1 gives
coefficient n of y. That expression reads lower orders only, so it is expanded order by order, and
values that occur in it again (y itself in `exp' = exp`, the sine in the rule of the cosine) are
shared. Order k then takes O(k**2) operations, where nested derivatives take O(2**k).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any

from pullback.autodiff.calls import Expanding, Slots, call_node
from pullback.autodiff.forward import push, tangents
from pullback.autodiff.reverse import depends_on_others, with_recording, without_history, zeros
from pullback.core.avals import Aval
from pullback.ir.array import Array, Node, make
from pullback.ir.op import Op, bind

__all__ = ["Terms", "expanded", "filled_from", "is_zero", "lowest"]

Terms = Sequence[Any]  # the coefficients of orders 1, 2, ...; None for zero


def expanded(
    outputs: Sequence[Array],
    variables: Sequence[Array],
    series: Sequence[Terms],
    create_graph: bool | None = None,
) -> list[list[Any]]:
    """For each output its Taylor coefficients of orders 1, 2, ... along the curves through
    `variables` with the coefficients `series`, all of one length; None for zero.

    `create_graph=None` decides by itself, as in `cotangents`.
    """
    order = len(series[0]) if series else 0
    if order == 1:
        seeds = [terms[0] for terms in series]
        moved = [(v, t) for v, t in zip(variables, seeds, strict=True) if t is not None]
        found = tangents(outputs, [v for v, _ in moved], [t for _, t in moved], create_graph)
        return [[t] for t in found]
    expansion = Expansion(order)
    for v, terms in zip(variables, series, strict=True):
        if v._node is not None and not is_zero(terms):
            expansion.start(v._node, terms)
    own = set(expansion.known)
    roots = [o._node for o in outputs if o._node is not None]
    nodes = [n for root in roots for n in expansion.added(root)]
    if create_graph is None:
        seeds = [t for terms in series for t in terms if t is not None]
        create_graph = depends_on_others([*expansion.constant, *own], own) or any(
            t._node is not None for t in seeds
        )
    with_recording(create_graph, expansion.advance, nodes, order)
    found = [[None] * order if o._node is None else expansion.terms(o._node) for o in outputs]
    if create_graph:
        return found
    return [without_history(terms) for terms in found]


def is_zero(terms: Terms) -> bool:
    """Whether a series is known to have no coefficient but that of order 0."""
    return all(t is None for t in terms)


def lowest(series: Sequence[Terms]) -> int:
    """The position of the first coefficient that is not zero in all of the series."""
    order = len(series[0])
    return min((i for terms in series for i in range(order) if terms[i] is not None), default=order)


def filled_from(first: int, terms: Terms, av: Aval) -> list[Any]:
    """A series with zeros as arrays from position `first` on."""
    return [zeros(av) if t is None and i >= first else t for i, t in enumerate(terms)]


class _Velocity:
    """The operation of a node that stands for the derivative of a curve; the array itself is that
    of the coefficient of order 1.
    """

    name = "velocity"

    def pull(self, node: Node, g: Any, wanted: Container[Node] | None) -> list[Any]:
        return [g]

    def push(self, node: Node, incoming: Sequence[Any]) -> Any:
        return incoming[0]


VELOCITY = _Velocity()


class _Moving:
    """A node that moves with the curve, with the coefficients found so far; that of order 0 is not
    kept here.
    """

    __slots__ = ("node", "rate", "rate_nodes", "source", "terms", "velocity")

    def __init__(self, node: Node, source: _Moving | None = None):
        self.node = node
        self.terms: list[Any] = [None]
        self.source = source  # of a velocity: what it is the derivative of
        self.velocity: Any = None  # the array that stands for the derivative of this curve
        self.rate: Any = None  # the same, by the rule of the operation
        self.rate_nodes: list[Node] = []

    def term(self, n: int) -> Any:
        """Coefficient n >= 1, known or that of the derivative of what is known."""
        if self.source is not None:
            for i in range(len(self.terms), n + 1):
                self.terms.append(_scaled(self.source.term(i + 1), i + 1))
        return self.terms[n]


class Expansion:
    """One sweep: which nodes move, and which don't."""

    def __init__(self, order: int):
        self.order = order
        self.known: dict[Node, _Moving] = {}
        self.constant: set[Node] = set()
        self._same: dict[tuple, _Moving] = {}  # by what they compute

    def start(self, node: Node, terms: Terms) -> None:
        """A variable with its coefficients."""
        moving = _Moving(node)
        moving.terms += terms
        self.known[node] = moving

    def terms(self, node: Node) -> list[Any]:
        """The coefficients of a node that has been advanced."""
        moving = self.known.get(node)
        return [None] * self.order if moving is None else moving.terms[1 : self.order + 1]

    def added(self, root: Node) -> list[Node]:
        """The moving nodes that `root` was computed from, if not yet known, oldest first."""
        found: dict[Node, None] = {}
        stack = [root]
        while stack:
            node = stack.pop()
            if node in found or node in self.known or node in self.constant:
                continue
            found[node] = None
            stack += [e for e in node.edges if e is not None]
        moving = []
        for node in sorted(found, key=lambda n: n.order):
            if any(e in self.known for e in node.edges if e is not None):
                moving.append(node)
                self.known[node] = self._shared(node)
            else:
                self.constant.add(node)
        return moving

    def _shared(self, node: Node) -> _Moving:
        """The record of a node, the same for nodes that compute the same."""
        op = node.op
        if not isinstance(op, Op) or node.saved is None:
            return _Moving(node)
        operands: list[Any] = []
        for edge, buf in zip(node.edges, node.saved[:-1], strict=True):
            if edge in self.known:
                operands.append(self.known[edge])
            elif buf is None:
                return _Moving(node)
            else:
                operands.append(id(buf))
        key = (op, *operands, *node.static.values())
        return self._same.setdefault(key, _Moving(node))

    # -- coefficients ------------------------------------------------------------------------------

    def advance(self, nodes: Sequence[Node], order: int) -> None:
        """Find the coefficients up to `order` of nodes, oldest first, those of older ones being
        known.
        """
        for node in nodes:
            moving = self.known[node]
            while len(moving.terms) <= order:
                self._extend(moving, order)

    def _extend(self, moving: _Moving, order: int) -> None:
        """Find the next coefficient, or all of those up to `order`."""
        node, n = moving.node, len(moving.terms)
        if isinstance(node.op, Expanding):
            orders = range(1, order + 1)
            series = [[self._term(e, i) for i in orders] for e in node.edges]
            moving.terms[1:] = node.op.expand(node, series)
        else:
            moving.terms.append(self._next(moving, n))

    def _term(self, edge: Node | None, n: int) -> Any:
        """Coefficient n >= 1 of a node."""
        moving = self.known.get(edge)  # type: ignore[arg-type]
        return None if moving is None else moving.term(n)

    def _next(self, moving: _Moving, n: int) -> Any:
        node = moving.node
        op = node.op
        if self._is_affine(node):
            incoming = [self._term(e, n) for e in node.edges]
            return None if is_zero(incoming) else push(node, incoming)
        if isinstance(op, Op) and op.series is not None:
            return self._by_recurrence(op, moving, n)
        if isinstance(op, Op) and op.jvp == "multilinear":
            return self._convolved(op, node, n)
        return self._by_rate(moving, n)

    def _is_affine(self, node: Node) -> bool:
        """Whether the derivative of an operation does not read anything that moves."""
        op = node.op
        if not isinstance(op, Op):
            return getattr(op, "linear", False)
        if op.jvp == "linear":
            return True
        moving = {op.name_of(i) for i, e in enumerate(node.edges) if e in self.known}
        if op.jvp == "multilinear":
            return sum(e in self.known for e in node.edges) == 1
        rules = op.push_rules if isinstance(op.jvp, dict) else op.pull_rules
        used = [rules[name] for name in moving if name in rules]
        return not any(r.reads_output or moving.intersection(r.reads) for r in used)

    def _by_recurrence(self, op: Op, moving: _Moving, n: int) -> Any:
        node = moving.node
        columns = [
            [
                None if buf is None else node.saved_operand(i),
                *[self._term(edge, k) for k in range(1, n + 1)],
            ]
            for i, (edge, buf) in enumerate(zip(node.edges, node.live_saved(), strict=False))
        ]
        out = [None, *moving.terms[1:]]
        if node.live_saved()[-1] is not None:
            out[0] = node.saved_operand(len(node.edges))
        return op.series(n, out, *columns, **node.static)  # type: ignore[misc]

    def _convolved(self, op: Op, node: Node, n: int) -> Any:
        """The sum over all products of coefficients whose orders add up to n."""
        places = [i for i, e in enumerate(node.edges) if e in self.known]
        operands = [node.saved_operand(i) for i in range(len(node.edges))]
        total = None
        for orders in _splits(n, len(places)):
            terms = [
                self._term(node.edges[i], k) if k else operands[i]
                for i, k in zip(places, orders, strict=True)
            ]
            if any(t is None for t in terms):
                continue
            chosen = list(operands)
            for i, t in zip(places, terms, strict=True):
                chosen[i] = t
            product = bind(op, *chosen, **node.static)
            total = product if total is None else total + product
        return total

    # -- rates -------------------------------------------------------------------------------------

    def _by_rate(self, moving: _Moving, n: int) -> Any:
        """Coefficient n - 1 of the derivative that the rule of the operation gives."""
        if n == 1:
            incoming = [self._velocity(e) for e in moving.node.edges]
            moving.rate = with_recording(True, push, moving.node, incoming)
            values = moving.rate.values if isinstance(moving.rate, Slots) else [moving.rate]
            roots = [v._node for v in values if v is not None and v._node is not None]
            moving.rate_nodes = [n for root in roots for n in self.added(root)]
            return moving.rate
        self.advance(moving.rate_nodes, n - 1)
        if not isinstance(moving.rate, Slots):
            return self._of_rate(moving.rate, n)
        return Slots([self._of_rate(v, n) for v in moving.rate.values])

    def _of_rate(self, rate: Any, n: int) -> Any:
        return None if rate is None else _scaled(self._term(rate._node, n - 1), 1.0 / n)

    def _velocity(self, edge: Node | None) -> Any:
        """The derivative of the curve through a node, as an array; of a call as several."""
        if edge not in self.known:
            return None
        assert edge is not None
        moving = self.known[edge]
        if moving.velocity is None:
            first = self._term(edge, 1)
            if first is None:
                first = zeros(edge.aval)
            av = first._aval
            node = call_node(VELOCITY, (first._node,), (av,), av, (None, None))
            self.known[node] = _Moving(node, moving)
            moving.velocity = make(first._buf, av, node)
        return moving.velocity


def _scaled(x: Any, factor: float) -> Any:
    return x if x is None or factor == 1 else x * factor


def _splits(n: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All tuples of so many orders that add up to n."""
    if parts == 1:
        yield (n,)
        return
    for first in range(n + 1):
        for rest in _splits(n - first, parts - 1):
            yield (first, *rest)
