"""Dead code: equations that no output needs."""

from __future__ import annotations

from pullback.ir.graph import Graph, Var

__all__ = ["without_dead"]


def without_dead(graph: Graph) -> Graph:
    """The graph without equations and constants that no output needs; its inputs all stay."""
    needed: set[Var] = set(graph.outputs)
    kept = []
    for eq in reversed(graph.equations):
        if any(v in needed for v in eq.outs):
            kept.append(eq)
            needed.update(eq.inputs)
    if len(kept) == len(graph.equations) and all(v in needed for v in graph.constants):
        return graph
    result = Graph(graph.name)
    result.inputs, result.outputs, result.equations = graph.inputs, graph.outputs, kept[::-1]
    result.constants = [v for v in graph.constants if v in needed]
    result.structure = graph.structure
    return result
