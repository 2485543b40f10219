"""Operations that act on the world: functions of the host that are called with values, in order.

Their result is a token, which is read by the next one of the same graph: that keeps them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from pullback.core.avals import Aval, symbolic
from pullback.core.dtypes import DType, bool_
from pullback.ir.array import Array, make
from pullback.ir.convert import to_numpy
from pullback.ir.graph import Equation, Graph
from pullback.ir.lowering import Intrinsic
from pullback.ir.op import REGISTRY, bind, newest_graph

__all__ = ["EFFECT", "Effect", "Receiver", "has_effect"]


class Receiver:
    """A function of the host, called with the values of `count` arrays.

    In a map over examples, `sizes` are the numbers of examples, for each of which it is called.
    Receivers are compared by identity: two calls are never one.
    """

    def __init__(
        self, function: Callable[[Sequence[Any]], None], count: int, sizes: tuple[int, ...] = ()
    ):
        self.function = function
        self.count = count
        self.sizes = sizes

    def __call__(self, values: Sequence[Any]) -> None:
        """Call the function with NumPy arrays; axes of examples may have size 1."""
        for place in product(*map(range, self.sizes)):
            self.function([_example(x, place) for x in values])

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", "function")


def _example(x: Any, place: tuple[int, ...]) -> Any:
    return x[tuple(min(i, n - 1) for i, n in zip(place, x.shape, strict=False))]


class Effect:
    """The operation that gives values to a receiver: at once, or when the traced program runs."""

    name = "effect"
    names = ("xs",)
    variadic = True
    # What it finds in its operands may be an error: so it stays, although nobody reads the token.
    lowering = Intrinsic("effect", raises=True)
    raises = True

    def __init__(self):
        self.plans: dict[tuple, Any] = {}  # stays empty: `bind` takes the slow path, `run`
        self.vjp: dict[str, Any] = {}

    def infer(self, *avals: Aval, receiver: Receiver) -> tuple[tuple[int, ...], DType]:
        return (), bool_

    def inferred(
        self, avals: tuple[Aval, ...], static: dict[str, Any]
    ) -> list[tuple[tuple[int, ...], DType]]:
        """See `Op.inferred`."""
        return [self.infer(*avals, **static)]

    def run(self, arrays: Sequence[Array], static: dict[str, Any]) -> Any:
        """A token."""
        receiver: Receiver = static["receiver"]
        values = list(arrays)[len(arrays) - receiver.count :]
        if any(x._aval.is_symbolic for x in values):
            return self.add(newest_graph(values), values, receiver)
        receiver([to_numpy(x) for x in values])
        return _no_token()

    def add(self, graph: Graph, values: Sequence[Array], receiver: Receiver) -> Any:
        """The token of an equation of a graph, which comes after others of its kind."""
        earlier = [eq.out for eq in graph.equations if eq.op is self]
        before = make(earlier[-1], earlier[-1].aval) if earlier else _no_token()
        token = symbolic((), bool_, before._aval.device)
        return graph.add(self, [before, *values], {"receiver": receiver}, [token])[0]

    def batch(self, xs: Sequence[Any], examples: int, receiver: Receiver) -> Any:
        """Tokens of many examples, whose values are the rows of arrays."""
        inner = Receiver(receiver.function, receiver.count, (examples, *receiver.sizes))
        token = bind(EFFECT, *xs, receiver=inner)
        return REGISTRY["broadcast_to"].function(token, (examples,))

    def __repr__(self) -> str:
        return f"<op {self.name}>"


def has_effect(eq: Equation) -> bool:
    """Whether the equation, or one inside it, acts on the world."""
    graphs = [g for g in eq.static.values() if isinstance(g, Graph)]
    return eq.op is EFFECT or any(has_effect(e) for g in graphs for e in g.equations)


def _no_token() -> Any:
    return REGISTRY["zeros"].function((), dtype=bool_)


EFFECT: Any = Effect()
