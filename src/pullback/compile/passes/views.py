"""Views moved towards the beginning: `view(f(x))` as `f(view(x))`, to make room for one loop.

`optimise` moves views the other way, where they cancel. This is for what is left of them between
two elementwise operations.
"""

from __future__ import annotations

from typing import Any

from pullback.compile.passes.constants import is_pointwise
from pullback.compile.passes.dead import without_dead
from pullback.compile.passes.movement import without_units
from pullback.compile.passes.rewriter import Rewriter, Rules, rebuilt
from pullback.core.avals import Aval
from pullback.ir.graph import Graph, Var
from pullback.ops.arithmetic import abs as abs_
from pullback.ops.arithmetic import add, multiply, negative, subtract
from pullback.ops.movement import broadcast_to, permute_dims, reshape
from pullback.ops.parts import astype
from pullback.ops.selection import maximum, minimum, where

__all__ = ["sink_views"]

# What costs less than reading a stored value: it may be computed anew for each repetition.
CHEAP = {f.op for f in (abs_, add, astype, maximum, minimum, multiply, negative, subtract, where)}


def sink_views(graph: Graph) -> Graph:
    """The graph with views of elementwise results that nobody else uses moved to their operands."""
    result = without_dead(rebuilt(graph, _RULES))
    result.verify()
    return result


def _sunk(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    (y,) = inputs
    eq = rw.made.get(y)
    if eq is None or not is_pointwise(eq.op) or not rw.only_use(y):
        return None
    operands = _MOVED[op](rw, y, eq.op, eq.inputs, av, static)
    return None if operands is None else rw.emit(eq.op, operands, eq.static)


def _reshaped(
    rw: Rewriter, y: Var, f: Any, operands: tuple, av: Aval, static: dict
) -> tuple[Var, ...] | None:
    shape = y.aval.shape
    if without_units(shape) != without_units(av.shape) or 0 in shape:
        whole = all(v.aval.shape in ((), shape) for v in operands)
        return (
            tuple(rw.reshape(v, av.shape) if v.aval.ndim else v for v in operands)
            if whole
            else None
        )
    moved = []
    for v in operands:  # axes of size 1 come and go, so the others keep their order
        sizes = (1,) * (len(shape) - v.aval.ndim) + v.aval.shape
        own = iter([m for m, n in zip(sizes, shape, strict=True) if n != 1])
        moved.append(rw.reshape(v, tuple(1 if n == 1 else next(own) for n in av.shape)))
    return tuple(moved)


def _permuted(
    rw: Rewriter, y: Var, f: Any, operands: tuple, av: Aval, static: dict
) -> tuple[Var, ...] | None:
    moved = []
    for v in operands:
        if v.aval.ndim:
            v = rw.reshape(v, (1,) * (av.ndim - v.aval.ndim) + v.aval.shape)
            v = rw.emit(permute_dims.op, (v,), static)
        moved.append(v)
    return tuple(moved)


def _repeated(
    rw: Rewriter, y: Var, f: Any, operands: tuple, av: Aval, static: dict
) -> tuple[Var, ...] | None:
    if f not in CHEAP:
        return None
    widest = max(operands, key=lambda v: v.aval.size)
    return tuple(rw.broadcast(v, av.shape) if v is widest else v for v in operands)


_MOVED = {reshape.op: _reshaped, permute_dims.op: _permuted, broadcast_to.op: _repeated}
_RULES: Rules = {op: (_sunk,) for op in _MOVED}
