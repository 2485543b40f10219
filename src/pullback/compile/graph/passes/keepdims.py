"""Reductions in the shape that their users want: with or without the reduced axes."""

from __future__ import annotations

from pullback.core.avals import symbolic
from pullback.ir.graph import Equation, Graph, Var
from pullback.ops.movement import reshape

__all__ = ["with_wanted_axes"]


def with_wanted_axes(graph: Graph) -> Graph:
    """The graph with `reshape(reduce(x))` as one reduction, where that is its only use."""
    reductions = {
        eq.outs[0]: eq for eq in graph.equations if "keepdims" in eq.static and len(eq.outs) == 1
    }
    if not reductions:
        return graph
    wanted: dict[Var, set] = {v: set() for v in reductions}
    for eq in graph.equations:
        for v in eq.inputs:
            if v in wanted:
                wanted[v].add(eq.static["shape"] if eq.op is reshape.op else None)
    for v in graph.outputs:
        if v in wanted:
            wanted[v].add(None)
    turned = {}
    for v, shapes in wanted.items():
        if len(shapes) == 1 and (other := _other_shape(reductions[v])) in shapes:
            turned[v] = other
    return _turned(graph, turned) if turned else graph


def _other_shape(eq: Equation) -> tuple[int, ...]:
    """The shape of a reduction with `keepdims` the other way round."""
    shape, axes = eq.inputs[0].aval.shape, eq.static["axes"]
    if eq.static["keepdims"]:
        return tuple(n for d, n in enumerate(shape) if d not in axes)
    return tuple(1 if d in axes else n for d, n in enumerate(shape))


def _turned(graph: Graph, turned: dict[Var, tuple[int, ...]]) -> Graph:
    """The graph with some reductions turned; their reshapes find the shape they want."""
    result = graph.shell()
    env: dict[Var, Var] = {}
    for eq in graph.equations:
        inputs = eq.inputs
        if not env.keys().isdisjoint(inputs):
            inputs = tuple([env.get(v, v) for v in inputs])
        shape = turned.get(eq.outs[0]) if eq.outs else None
        if shape is not None:
            av = symbolic(shape, eq.out.aval.dtype, eq.out.aval.device)
            static = {**eq.static, "keepdims": not eq.static["keepdims"]}
            env[eq.out] = new = result.new_var(av)
            result.equations.append(Equation(eq.op, inputs, static, (new,)))
        elif eq.op is reshape.op and eq.inputs[0] in turned:
            env[eq.out] = inputs[0]
        else:
            same = inputs is eq.inputs
            result.equations.append(eq if same else Equation(eq.op, inputs, eq.static, eq.outs))
    result.inputs, result.constants = graph.inputs, graph.constants
    result.outputs = [env.get(v, v) for v in graph.outputs]
    return result
