"""Walks over expressions with a `rare`, whose slow side is evaluated in a branch of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from pullback.ir.scalar import Expr

__all__ = ["LEAVES", "inline_nodes", "inline_operands", "operands_before"]

LEAVES = frozenset({"load", "index", "acc"})  # instructions whose values a kernel gives


def inline_operands(e: Expr) -> Sequence[Expr]:
    """The operands that are evaluated along with `e`."""
    return (e.args[0], e.args[2]) if e.op == "rare" else e.args


def inline_nodes(roots: Iterable[Expr]) -> list[Expr]:
    """The expressions that are always evaluated: all but those under the slow side of a `rare`."""
    seen: dict[Expr, None] = {}
    stack = list(roots)
    while stack:
        e = stack.pop()
        if e not in seen:
            seen[e] = None
            stack.extend(inline_operands(e))
    return list(seen)


def operands_before(e: Expr, inline: Collection[Expr]) -> Sequence[Expr]:
    """What has to be computed before `e`, for a `rare` with what its slow side shares."""
    if e.op != "rare":
        return e.args
    shared: dict[Expr, None] = {}
    seen: set[Expr] = set()
    stack = [e.args[1]]
    while stack:
        a = stack.pop()
        if a in seen:
            continue
        seen.add(a)
        if a in inline:
            shared[a] = None
        else:
            stack.extend(a.args)
    return [e.args[0], e.args[2], *shared]
