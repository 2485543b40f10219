"""Reverse mode: one iterative sweep over recorded nodes, newest first.

There is one sweep for every order. With `create_graph` the rules run recorded, and since
rules are made of operations their results can be differentiated like anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import wraps
from operator import attrgetter
from typing import Any

from pullback.core.avals import Aval
from pullback.core.blocks import Restored
from pullback.core.errors import GradientError, ShapeError
from pullback.ir.array import LEAF, Array, Node, make, mode, variable_node
from pullback.ir.op import REGISTRY, another, bind

__all__ = ["ancestors", "backward", "enable_grad", "no_grad", "sweep", "with_recording"]


def with_recording(on: bool, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of a function, with operations recorded for derivatives or not.

    Python handles signals between instructions, at the start of functions and after calls. With no
    call between a change of the mode and its `try`, and none in `finally`, the mode is as before
    wherever an interrupt comes.
    """
    before, mode.recording = mode.recording, on
    try:
        return function(*args, **kwargs)
    finally:
        mode.recording = before


class RecordingMode:
    """A block or function with operations recorded for derivatives, or not, in this thread."""

    def __init__(self, on: bool):
        self._on = on

    def __enter__(self) -> None:
        mode.recording = self._on

    __exit__ = Restored(mode, "recording")

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            return with_recording(self._on, function, *args, **kwargs)

        return called


def no_grad() -> RecordingMode:
    """A block (or a decorated function) in which nothing is recorded for derivatives.

    >>> x = pb.tensor(2.0, requires_grad=True)
    >>> with pb.no_grad():
    ...     y = x * x
    >>> y.requires_grad
    False
    """
    return RecordingMode(False)


def enable_grad() -> RecordingMode:
    """A block in which operations are recorded again, inside `no_grad`."""
    return RecordingMode(True)


def ancestors(roots: Iterable[Node], stop: Iterable[Node] = ()) -> list[Node]:
    """Every node that the roots were computed from, newest first; the walk does not go beyond
    `stop`.
    """
    seen = dict.fromkeys(roots)
    ends = set(stop)
    stack = list(seen)
    while stack:
        node = stack.pop()
        if node in ends:
            continue
        for edge in node.edges:
            if edge is not None and edge not in seen:
                seen[edge] = None
                stack.append(edge)
    return sorted(seen, key=_order, reverse=True)


_order = attrgetter("order")


def depends(nodes: Sequence[Node], targets: set[Node]) -> set[Node]:
    """Those of `nodes` (newest first) that were computed from a target, targets included."""
    found: set[Node] = set()
    for node in reversed(nodes):
        if node in targets or not found.isdisjoint(node.edges):
            found.add(node)
    return found


def sweep(
    seeds: dict[Node, Any],
    nodes: Sequence[Node],
    wanted: set[Node] | None,
    *,
    retain: bool,
    deliver: Callable[[Node, Any], None],
    stop: Container[Node] = (),
    quiet: Container[Node] = (),
) -> None:
    """Carry cotangents from `seeds` down `nodes` (newest first), delivering each node's own, not
    beyond `stop`.

    `wanted` holds the nodes on the way to what was asked for (None: all). Without `retain`, saved
    values are dropped as soon as they have been used. Hooks of `quiet` nodes are not called.
    """
    pending = dict(seeds)
    for node in nodes:
        g = pending.pop(node, None)
        if g is None:
            continue
        if node.extra is not None and node not in quiet:
            g = _observed(node, g)
        deliver(node, g)
        if node.op is LEAF or node in stop:
            continue
        for edge, gi in zip(node.edges, node.op.pull(node, g, wanted), strict=True):
            if gi is not None and edge is not None:
                before = pending.get(edge)
                pending[edge] = gi if before is None else before + gi
        if not retain:
            node.saved = None


def _observed(node: Node, g: Any) -> Any:
    """The cotangent after the hooks of a node; a retained gradient is accumulated after them."""
    extra = node.extra or {}
    for hook in list(extra.get("hooks", {}).values()):
        given = another(g)
        new = hook(given)
        if new is None:
            g = given  # a hook may also update what it is given
        else:
            if not isinstance(new, Array) or new._aval.shape != g._aval.shape:
                raise ShapeError(
                    f"{node.name}: a hook must return None or a tensor of shape {g._aval.shape},"
                    f" got {new!r}."
                )
            g = new
    if extra.get("retain"):
        accumulate(node, g)
    return g


def accumulate(node: Node, g: Any) -> None:
    """Add a cotangent to the gradient that a node keeps for its handle."""
    if node.extra is None:
        node.extra = {}
    before = node.extra.get("grad")
    node.extra["grad"] = another(g) if before is None else before + g


def check_cotangent(name: str, g: Any, out: Array) -> Any:
    """The cotangent of `out`, checked; None means 1 for a real array with one element."""
    av = out._aval
    if g is None:
        if av.size != 1 or av.dtype.is_complex:
            what = (
                "complex output" if av.dtype.is_complex else "an output with more than one element"
            )
            raise GradientError(
                f"{name}: {what} needs a cotangent, got an output of shape {av.shape} and none."
                " Pass one of that shape, or reduce the output to a real scalar first."
            )
        return REGISTRY["ones"].function(av.shape, dtype=av.dtype, device=av.device)
    if not isinstance(g, Array):
        raise GradientError(f"{name}: a cotangent must be a tensor, got {type(g).__name__}.")
    if g._aval.shape != av.shape:
        raise ShapeError(
            f"{name}: the cotangent must have the shape of the output, {av.shape}, got"
            f" {g._aval.shape}."
        )
    if g._aval.dtype is not av.dtype:
        if g._aval.dtype.is_complex and not av.dtype.is_complex:
            raise GradientError(f"{name}: the output is real, got a complex cotangent.")
        g = bind(REGISTRY["astype"], g, dtype=av.dtype)
    return g


def backward(
    outputs: Sequence[Array],
    gradients: Sequence[Any],
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> None:
    """Add the derivatives of `outputs`, weighted by `gradients`, to `.grad` of the leaves."""
    retain = create_graph if retain_graph is None else retain_graph
    before, mode.recording = mode.recording, create_graph
    try:
        seeds = _seeds("backward", outputs, gradients)
        nodes = ancestors(seeds)
        missing = {n for n in nodes if n.op is LEAF and not (n.extra and n.extra.get("closed"))}

        def deliver(node: Node, g: Any) -> None:
            if node in missing:
                missing.remove(node)
                accumulate(node, g)

        sweep(seeds, nodes, None, retain=retain, deliver=deliver)
        for node in missing:  # every path was zero
            accumulate(node, zeros(node.aval))
    finally:
        mode.recording = before


def zeros(av: Aval) -> Any:
    """Zeros of the shape and dtype of `av`."""
    return REGISTRY["zeros"].function(av.shape, dtype=av.dtype, device=av.device)


def _seeds(name: str, outputs: Sequence[Array], gradients: Sequence[Any]) -> dict[Node, Any]:
    seeds: dict[Node, Any] = {}
    for out, g in zip(outputs, gradients, strict=True):
        if out._node is None:
            raise GradientError(
                f"{name}: the output does not depend on any tensor that requires a gradient, got"
                f" {out._aval}."
                " Set requires_grad=True on an input, and don't compute under no_grad."
            )
        g = check_cotangent(name, g, out)
        seeds[out._node] = g if out._node not in seeds else seeds[out._node] + g
    return seeds


def fresh(array: Array) -> Array:
    """A new variable with the value of `array`; derivatives with respect to `array` pass through
    it.
    """
    if array._node is None:
        return make(array._buf, array._aval, variable_node(array._aval))
    return with_recording(True, bind, REGISTRY["positive"], array)


def close(variables: Iterable[Array]) -> None:
    """Say that nobody will differentiate by these variables any more: their transform has ended."""
    for v in variables:
        if v._node is not None and v._node.op is LEAF:
            v._node.extra = {"closed": True}


def cotangents(
    outputs: Sequence[Array],
    gradients: Sequence[Any],
    variables: Sequence[Array],
    *,
    retain: bool,
    create_graph: bool | None = None,
    quiet: Container[Node] = (),
) -> list[Any]:
    """The cotangents of `variables` (fresh ones), None for those that the outputs do not depend on.

    `create_graph=None` decides by itself: the sweep is recorded if the outputs also depend on a
    variable of somebody else, because only then can anybody differentiate the result again.
    """
    targets = {v._node for v in variables if v._node is not None}
    tracked = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o._node is not None]
    nodes = ancestors([o._node for o, _ in tracked if o._node is not None], stop=targets)
    if create_graph is None:
        create_graph = depends_on_others(nodes, targets) or any(
            isinstance(g, Array) and g._node is not None for _, g in tracked
        )
    found: dict[Node, Any] = {}

    def deliver(node: Node, g: Any) -> None:
        if node in targets:
            found[node] = g

    before, mode.recording = mode.recording, create_graph
    try:
        seeds = _seeds("grad", [o for o, _ in tracked], [g for _, g in tracked])
        on_path = depends(nodes, targets)
        nodes = [n for n in nodes if n in on_path]
        retain = retain or create_graph
        sweep(seeds, nodes, on_path, retain=retain, deliver=deliver, stop=targets, quiet=quiet)
    finally:
        mode.recording = before
    results = [None if v._node is None else found.get(v._node) for v in variables]
    return results if create_graph else without_history(results)


def without_history(derivatives: list[Any]) -> list[Any]:
    """Derivatives that nobody differentiates again: the rule of a user may have recorded them."""
    return [x if x is None or x._node is None else make(x._buf, x._aval) for x in derivatives]


def transposed(
    pull: Callable[[list[Any]], Sequence[Any]], outputs: Sequence[Aval], incoming: Sequence[Any]
) -> list[Any]:
    """The tangents of `outputs` for tangents `incoming` of the operands: the transpose of `pull`.

    `pull` maps cotangents of the outputs to those of the operands and is linear, so that its
    transpose can be found by reverse mode. None stands for zero throughout.
    """
    create_graph = mode.recording
    variables = [fresh(zeros(av)) for av in outputs]
    pulled = with_recording(True, pull, variables)
    pairs = [
        (p, t) for p, t in zip(pulled, incoming, strict=True) if p is not None and t is not None
    ]
    found = cotangents(
        [p for p, _ in pairs],
        [t for _, t in pairs],
        variables,
        retain=create_graph,
        create_graph=create_graph,
    )
    close(variables)
    return found


def depends_on_others(nodes: Iterable[Node], own: set[Node]) -> bool:
    """Whether a variable outside `own` can still be differentiated by: a foreign leaf, or what
    `own` was made from.
    """
    for n in nodes:
        if n in own:
            if any([e is not None for e in n.edges]):
                return True
        elif n.op is LEAF and not (n.extra and n.extra.get("closed")):
            return True
    return False
