"""Common subexpressions: equal operations of equal operands are computed once."""

from __future__ import annotations

from pullback.compile.graph.passes.rewriter import rebuilt
from pullback.ir.graph import Graph

__all__ = ["without_repeats"]


def without_repeats(graph: Graph) -> Graph:
    """The graph with every value computed once; constants with equal contents are one."""
    return rebuilt(graph)
