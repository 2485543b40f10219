"""Functions with a forward-mode rule of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import update_wrapper
from typing import Any

from pullback.autodiff.calls import Slots, call_node, with_item
from pullback.autodiff.reverse import transposed, zeros
from pullback.core import pytrees
from pullback.core.avals import Aval
from pullback.core.errors import DTypeError, GradientError, ShapeError, briefly, expect_function
from pullback.ir.array import Array, Node, make, mode
from pullback.ir.convert import as_array
from pullback.ir.op import another, own_handles

__all__ = ["custom_jvp"]


class PushCall:
    """The operation of the node that a call of a `custom_jvp` function leaves behind."""

    def __init__(
        self,
        name: str,
        rule: Callable[..., Any],
        arguments: pytrees.Structure,
        outputs: Sequence[Aval],
        result: pytrees.Structure,
    ):
        self.name = name
        self.rule = rule
        self.arguments = arguments
        self.outputs = outputs
        self.result = result

    def saved_tensors(self, node: Node) -> tuple[Any, ...]:
        """The arguments."""
        return tuple(self._primals(node))

    def _primals(self, node: Node) -> list[Any]:
        return [make(*x) for x in zip(node.live_saved(), node.avals, node.edges, strict=True)]

    def push(self, node: Node, incoming: Sequence[Any]) -> Slots:
        """The user's rule applied to the tangents of all arguments, checked."""
        filled = [zeros(av) if t is None else t for t, av in zip(incoming, node.avals, strict=True)]
        primals, directions = (
            own_handles(pytrees.unflatten(self.arguments, xs))
            for xs in (self._primals(node), filled)
        )
        given = self.rule(primals, directions)
        if not isinstance(given, tuple) or len(given) != 2:
            raise ShapeError(
                f"{self.name}: the custom rule must return (result, tangent), got"
                f" {type(given).__name__}."
            )
        leaves, structure = pytrees.flatten(given[1])
        if structure != self.result:
            raise ShapeError(
                f"{self.name}: the custom rule's tangent must look like the result:"
                f" {pytrees.difference(self.result, structure, 'the tangent')}."
            )
        places = pytrees.paths(self.result, "the tangent")
        rows = zip(places, leaves, self.outputs, strict=True)
        return Slots([self._checked(place, t, av) for place, t, av in rows])

    def _checked(self, place: str, given: Any, av: Aval) -> Any:
        t = as_array(given, self.name, dtype=None if isinstance(given, Array) else av.dtype)
        if t._aval.shape != av.shape or t._aval.dtype is not av.dtype:
            raise ShapeError(f"{self.name}: {place} must be {av} like the result, got {t._aval}.")
        return t

    def pull(self, node: Node, g: Slots, wanted: Container[Node] | None) -> list[Any]:
        """The transpose of the rule, which is linear in the tangents."""
        found = transposed(lambda ts: self.push(node, ts).values, node.avals, g.values)
        return [
            x if e is not None and (wanted is None or e in wanted) else None
            for x, e in zip(found, node.edges, strict=True)
        ]


class custom_jvp:  # noqa: N801  (used as a decorator)
    """A function whose forward-mode rule is given with `defjvp(rule)`.

    `rule(primals, tangents)` gets the arguments and their tangents, as two tuples, and returns
    (result, tangent of the result). It is made of operations, linear in the tangents, and can be
    differentiated again; reverse mode is its transpose.

    >>> @pb.custom_jvp
    ... def log1pexp(x):
    ...     return pb.log1p(pb.exp(x))
    >>> log1pexp.defjvp(lambda xs, ts: (log1pexp(*xs), ts[0] * pb.sigmoid(xs[0])))
    >>> pb.grad(log1pexp)(pb.tensor(100.0))
    tensor(1., float32, cpu)
    """

    def __init__(self, function: Callable[..., Any]):
        expect_function("custom_jvp", function)
        update_wrapper(self, function)
        self.function = function
        self.name = getattr(function, "__name__", "custom_jvp")
        self._rule: Callable[..., Any] | None = None

    def defjvp(self, rule: Callable[..., Any]) -> None:
        """Set the rule."""
        expect_function("custom_jvp", rule)
        self._rule = rule

    @briefly
    def __call__(self, *args: Any) -> Any:
        if self._rule is None:
            raise GradientError(f"{self.name}: no rule was given. Call defjvp(rule) first.")
        leaves, structure = pytrees.flatten(args)
        arrays = [x for x in leaves if isinstance(x, Array)]
        if not mode.recording or all(x._node is None for x in arrays):
            return self.function(*own_handles(args))
        if len(arrays) != len(leaves):
            raise DTypeError(f"{self.name}: every argument must be a tensor or a tree of tensors.")
        plain = [make(x._buf, x._aval) for x in arrays]
        outs, result = pytrees.flatten(self.function(*pytrees.unflatten(structure, plain)))
        outputs = [as_array(o, self.name) for o in outs]
        for o in outputs:
            if o._node is not None:
                raise GradientError(
                    f"{self.name}: the function captures a tensor that requires a gradient, which"
                    " its rule knows nothing of. Pass it as an argument."
                )
        call = PushCall(self.name, self._rule, structure, [o._aval for o in outputs], result)
        edges, avals = [x._node for x in arrays], [x._aval for x in arrays]
        saved = tuple([x._buf for x in arrays])
        node = call_node(call, edges, avals, outputs[0]._aval, saved) if outputs else None
        return pytrees.unflatten(result, [_connected(o, node, i, len(outputs))
                                          for i, o in enumerate(outputs)])  # fmt: skip


def _connected(out: Any, node: Any, i: int, count: int) -> Any:
    """An output; integers have no derivative."""
    return with_item(out, node, i, count) if out._aval.dtype.is_inexact else another(out)
