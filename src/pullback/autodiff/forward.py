"""Forward mode: one sweep over the same recorded nodes, oldest first.

Tangents belong to nodes, not to numbers, so nested derivatives can't confuse their perturbations:
two transforms differentiate by two different nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pullback.autodiff.reverse import (
    ancestors,
    depends_on_others,
    transposed,
    without_history,
    zeros,
)
from pullback.core.errors import GradientError
from pullback.ir.array import Array, Node, mode
from pullback.ir.op import REGISTRY, Op, bind

__all__ = ["tangents"]


def tangents(
    outputs: Sequence[Array],
    variables: Sequence[Array],
    seeds: Sequence[Any],
    create_graph: bool | None = None,
) -> list[Any]:
    """The tangents of `outputs` for the tangents `seeds` of `variables`; None for constants.

    `create_graph=None` decides by itself, as in `cotangents`.
    """
    start = {v._node: t for v, t in zip(variables, seeds, strict=True) if v._node is not None}
    roots = [o._node for o in outputs if o._node is not None]
    nodes = ancestors(roots, stop=start)
    if create_graph is None:
        create_graph = depends_on_others(nodes, set(start)) or any(
            t._node is not None for t in seeds
        )
    found: dict[Node, Any] = dict(start)
    before, mode.recording = mode.recording, create_graph
    try:
        for node in reversed(nodes):
            if node in start:
                continue
            incoming = [None if e is None else found.get(e) for e in node.edges]
            if any(t is not None for t in incoming):
                t = push(node, incoming)
                if t is not None:
                    found[node] = t
    finally:
        mode.recording = before
    results = [None if o._node is None else found.get(o._node) for o in outputs]
    return results if create_graph else without_history(results)


def push(node: Node, incoming: Sequence[Any]) -> Any:
    """The tangent of a recorded node's output from those of its operands; None if it is zero."""
    op: Any = node.op
    if not isinstance(op, Op):  # a node of a custom rule pushes by itself
        return op.push(node, incoming)
    kind = op.jvp
    if isinstance(kind, dict):
        return _sum(_by_rule(op, node, i, t) for i, t in _present(op, incoming))
    if kind == "elementwise":
        return _sum(_by_transposed_rule(op, node, i, t) for i, t in _present(op, incoming))
    if kind == "linear":
        return _jointly(op, node, incoming)
    if kind == "multilinear":
        return _sum(_one_replaced(op, node, i, t) for i, t in _present(op, incoming))
    if kind == "transpose":
        return transposed(lambda u: op.pull(node, u[0], None), [node.aval], incoming)[0]
    raise GradientError(f"{op.name}: no forward-mode rule. Use reverse mode.")


def _present(op: Op, incoming: Sequence[Any]) -> list[tuple[int, Any]]:
    return [(i, t) for i, t in enumerate(incoming) if t is not None and op.name_of(i) in op.vjp]


def _sum(terms: Any) -> Any:
    total = None
    for t in terms:
        if t is not None:
            total = t if total is None else total + t
    return total


def _fit(t: Any, node: Node) -> Any:
    """An operand's contribution spread to the shape of the output."""
    if t is None or t._aval.shape == node.aval.shape:
        return t
    return bind(REGISTRY["broadcast_to"], t, shape=node.aval.shape)


def _by_rule(op: Op, node: Node, i: int, t: Any) -> Any:
    rule = op.push_rules.get(op.name_of(i))
    return None if rule is None else _fit(rule.call(op, node, t, i), node)


def _by_transposed_rule(op: Op, node: Node, i: int, t: Any) -> Any:
    """An elementwise Jacobian is diagonal: its VJP rule is its JVP rule, up to a conjugation."""
    rule = op.pull_rules[op.name_of(i)]
    if not node.aval.dtype.is_complex:
        return _fit(rule.call(op, node, t, i), node)
    conj = REGISTRY["conj"].function
    result = rule.call(op, node, conj(t), i)
    return None if result is None else _fit(conj(result), node)


def _jointly(op: Op, node: Node, incoming: Sequence[Any]) -> Any:
    operands = []
    for i, t in enumerate(incoming):
        if op.name_of(i) not in op.vjp:
            operands.append(node.saved_operand(i))
        elif t is None:
            operands.append(zeros(node.avals[i]))
        else:
            operands.append(t)
    return bind(op, *operands, **node.static)


def _one_replaced(op: Op, node: Node, i: int, t: Any) -> Any:
    operands = [t if k == i else node.saved_operand(k) for k in range(len(node.edges))]
    return bind(op, *operands, **node.static)
