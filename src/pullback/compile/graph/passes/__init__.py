"""Passes over graphs: each takes a graph and returns another one that computes the same, verified.

`optimise` is the fixed pipeline. With `exact`, results keep all of their bits (those of a NaN
apart). Without, these may round otherwise: the rules that `movement` and `algebra` list as
`REASSOCIATING`, and the passes of `chains`, `products` and `loops`.
"""

from __future__ import annotations

from functools import cache, partial

from pullback.compile.graph.passes import algebra, boxes, folding, movement, scatters
from pullback.compile.graph.passes.chains import joined_parts
from pullback.compile.graph.passes.common import without_repeats
from pullback.compile.graph.passes.constants import is_pointwise
from pullback.compile.graph.passes.control import with_optimised_bodies
from pullback.compile.graph.passes.dead import without_dead
from pullback.compile.graph.passes.keepdims import with_wanted_axes
from pullback.compile.graph.passes.loops import with_products_outside
from pullback.compile.graph.passes.merged import with_merged_control
from pullback.compile.graph.passes.products import with_common_factors
from pullback.compile.graph.passes.rewriter import Guarded, Rewriter, Rules
from pullback.core.collector import paused_collector
from pullback.ir.graph import Graph

__all__ = [
    "joined_parts",
    "optimise",
    "simplify",
    "with_common_factors",
    "with_merged_control",
    "with_optimised_bodies",
    "with_products_outside",
    "with_wanted_axes",
    "without_dead",
    "without_repeats",
]

MOST_ROUNDS = 6  # rounds: a bound, should rules ever undo each other


@cache
def all_rules(exact: bool = False) -> Rules:
    """The rules of all kinds, for each operation in the order in which they are tried."""
    inexact = (*movement.REASSOCIATING, *algebra.REASSOCIATING)
    merged: dict = {}
    for part in (
        movement.rules(),
        algebra.rules(),
        boxes.rules(),
        folding.rules(),
        scatters.rules(),
    ):
        for op, rules in part.items():
            kept = [r for r in rules if not (exact and r in inexact)]
            merged[op] = (*merged.get(op, ()), *kept)
    plain = [op for op in merged if is_pointwise(op) and op not in algebra.MADE_BY_OTHERS]
    return merged | {op: Guarded(merged[op]) for op in plain}


def simplify(graph: Graph, exact: bool = False) -> tuple[Graph, bool]:
    """The graph with every rule applied once along it, without what is dead then, and whether once
    more could change anything.
    """
    rewriter = Rewriter(graph, all_rules(exact))
    result = without_dead(rewriter.run())
    return result, rewriter.changed and not rewriter.is_final(result)


@paused_collector()
def optimise(graph: Graph, exact: bool = False, late: int = 0) -> Graph:
    """The graph that computes the same with less work; `exact` leaves out what changes a bit.

    It can still be cut before the last `late` inputs are known.
    """
    graph = with_merged_control(_settled(without_dead(graph), exact), late)
    inside = with_optimised_bodies(graph, partial(optimise, exact=exact))
    if inside is graph:
        return graph
    graph = _settled(_checked(without_dead(inside)), exact)
    outside = graph if exact else with_products_outside(graph)
    if outside is graph:
        return graph
    graph = _settled(_checked(outside), exact)
    return _settled(_checked(with_optimised_bodies(graph, without_dead)), exact)


def _settled(graph: Graph, exact: bool) -> Graph:
    """The graph after rounds of all passes but those of control flow, until nothing changes."""
    inexact = () if exact else (joined_parts, with_common_factors)
    is_tidy = False  # what the other passes made of it
    for _ in range(MOST_ROUNDS):
        graph, goes_on = simplify(graph, exact)
        if is_tidy and not goes_on:
            break
        before = _checked(graph)
        for tidy in (*inexact, with_wanted_axes):
            after = tidy(graph)
            graph = graph if after is graph else _checked(without_dead(after))
        is_tidy = graph is before
        if is_tidy and not goes_on:
            break
    return graph


def _checked(graph: Graph) -> Graph:
    graph.verify()
    return graph
