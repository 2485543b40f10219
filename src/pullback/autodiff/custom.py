"""Functions with a reverse-mode rule of the user's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Sequence
from functools import update_wrapper
from typing import Any

from pullback.autodiff.calls import Item, Slots, call_node, with_item
from pullback.autodiff.reverse import (
    transposed,
    zeros,
)
from pullback.core import pytrees
from pullback.core.avals import Aval
from pullback.core.errors import DTypeError, GradientError, ShapeError, expect_function
from pullback.ir.array import Array, Node, make, mode
from pullback.ir.op import REGISTRY, another, own_handles

__all__ = ["Item", "Slots", "custom_vjp"]


class CustomCall:
    """The operation of the node that a call of a `custom_vjp` function leaves behind."""

    def __init__(
        self,
        name: str,
        rule: Callable[..., Any],
        arguments: pytrees.Structure,
        outputs: Sequence[Aval],
        result: pytrees.Structure,
        results: dict[int, int],
    ):
        self.name = name
        self.rule = rule
        self.arguments = arguments
        self.outputs = outputs
        self.result = result
        self.results = results  # which residuals are outputs: by position, which output

    def saved_tensors(self, node: Node) -> tuple[Any, ...]:
        leaves, _ = node.live_saved()
        return tuple(x for x in leaves if isinstance(x, Array))

    def pull(self, node: Node, g: Slots, wanted: Container[Node] | None) -> list[Any]:
        """The user's rule applied to the cotangents of all outputs, checked."""
        leaves, structure = node.live_saved()
        count = len(self.outputs)
        leaves = [
            with_item(x, node, self.results[i], count) if i in self.results else x
            for i, x in enumerate(leaves)
        ]
        residuals = own_handles(pytrees.unflatten(structure, leaves))
        filled = [
            zeros(av) if v is None else v for v, av in zip(g.values, self.outputs, strict=True)
        ]
        given = self.rule(residuals, own_handles(pytrees.unflatten(self.result, filled)))
        return self._aligned(given, node.avals)

    def push(self, node: Node, incoming: Sequence[Any]) -> Slots:
        """The transpose of the rule, which is linear in the cotangents."""
        return Slots(transposed(lambda u: self.pull(node, Slots(u), None), self.outputs, incoming))

    def _aligned(self, given: Any, avals: Sequence[Aval]) -> list[Any]:
        """One cotangent per array argument; a None stands for zeros of a whole argument."""
        arguments = self.arguments.children
        if not isinstance(given, (tuple, list)) or len(given) != len(arguments):
            got = (
                f"{len(given)} values" if isinstance(given, (tuple, list)) else type(given).__name__
            )
            raise ShapeError(
                f"{self.name}: the custom rule must return a tuple of {len(arguments)} cotangents,"
                f" one per argument, got {got}."
            )
        flat: list[Any] = []
        for tree, expected in zip(given, arguments, strict=True):
            if tree is None:
                flat += [None] * _count(expected)
                continue
            leaves, structure = pytrees.flatten(tree)
            if structure != expected:
                raise ShapeError(
                    f"{self.name}: the custom rule's cotangent must look like its argument,"
                    f" {expected}, got {structure}."
                )
            flat += leaves
        return [self._checked(g, av) for g, av in zip(flat, avals, strict=True)]

    def _checked(self, g: Any, av: Aval) -> Any:
        if g is None:
            return None
        if not isinstance(g, Array) or g._aval.shape != av.shape:
            got = g._aval if isinstance(g, Array) else type(g).__name__
            raise ShapeError(
                f"{self.name}: the custom rule must return a cotangent of shape {av.shape}, got"
                f" {got}."
            )
        if g._aval.dtype is not av.dtype and av.dtype.is_inexact:
            return REGISTRY["astype"].function(g, av.dtype)
        return g


def _count(structure: pytrees.Structure) -> int:
    return 1 if structure is pytrees.LEAF else sum(map(_count, structure.children))


class _Active(threading.local):
    """Whether this thread is inside the forward rule, where a call of the function itself means the
    plain one.
    """

    on = False


class custom_vjp:  # noqa: N801  (used as a decorator)
    """A function whose reverse-mode rule is given with `defvjp(forward, backward)`.

    `forward(*args)` returns (result, residuals); `backward(residuals, g)` returns one cotangent per
    argument. Both are made of operations and can be differentiated again, residuals included; a
    residual that is a result is differentiated by this rule.

    >>> @pb.custom_vjp
    ... def log1pexp(x):
    ...     return pb.log1p(pb.exp(x))
    >>> log1pexp.defvjp(lambda x: (log1pexp(x), x), lambda x, g: (g * pb.sigmoid(x),))
    >>> pb.grad(log1pexp)(pb.tensor(100.0))
    tensor(1., float32, cpu)
    """

    def __init__(self, function: Callable[..., Any]):
        expect_function("custom_vjp", function)
        update_wrapper(self, function)
        self.function = function
        self.name = getattr(function, "__name__", "custom_vjp")
        self._rules: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        self._active = _Active()

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Set the rule."""
        self._rules = (forward, backward)

    def __call__(self, *args: Any) -> Any:
        if self._rules is None:
            raise GradientError(
                f"{self.name}: no rule was given. Call defvjp(forward, backward) first."
            )
        args = own_handles(args)
        leaves, structure = pytrees.flatten(args)
        arrays = [x for x in leaves if isinstance(x, Array)]
        edges, given = [x._node for x in arrays], [x._aval for x in arrays]
        tracked = mode.recording and any(x._node is not None for x in arrays)
        if self._active.on or not tracked:
            return self.function(*args)
        if len(arrays) != len(leaves):
            raise DTypeError(f"{self.name}: every argument must be a tensor or a tree of tensors.")
        forward, backward = self._rules
        self._active.on = True
        try:
            result, residuals = forward(*args)
        finally:
            self._active.on = False
        outputs, result_structure = pytrees.flatten(result)
        avals = [o._aval for o in outputs]
        kept, kept_structure = pytrees.flatten(residuals)
        own = {id(o): i for i, o in enumerate(outputs)}
        for x in arrays:
            own.pop(id(x), None)
        results = {i: own[id(x)] for i, x in enumerate(kept) if id(x) in own}
        kept = [make(x._buf, x._aval) if i in results else another(x) for i, x in enumerate(kept)]
        call = CustomCall(self.name, backward, structure, avals, result_structure, results)
        master = call_node(call, edges, given, avals[0], (kept, kept_structure))
        wrapped = [with_item(o, master, i, len(outputs)) for i, o in enumerate(outputs)]
        return pytrees.unflatten(result_structure, wrapped)
