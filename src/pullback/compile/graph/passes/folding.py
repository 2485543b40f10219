"""Equations of constants, evaluated when a graph is compiled.

Values are the ones eager mode computes, bit for bit: they come from the same kernels, or from NumPy
where both are one correctly rounded IEEE operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.compile.graph.passes.constants import FOLDED_BYTES, is_known, is_pointwise
from pullback.compile.graph.passes.rewriter import Rewriter, Rules
from pullback.core.avals import Aval
from pullback.core.errors import IndexOutOfRange
from pullback.ir.array import make, mode
from pullback.ir.graph import Var
from pullback.ir.lowering import View
from pullback.ir.op import REGISTRY, Op, bind
from pullback.ops.arithmetic import add, divide, multiply, negative, subtract
from pullback.ops.movement import broadcast_to, concat, embed
from pullback.ops.reductions import sum as sum_

__all__ = ["rules"]

_NUMPY: dict[Op, Callable[..., Any]] = {
    add.op: np.add,
    subtract.op: np.subtract,
    multiply.op: np.multiply,
    divide.op: np.divide,
    negative.op: np.negative,
}


def evaluated(op: Any, inputs: tuple[Var, ...], static: dict[str, Any]) -> Any:
    """The array that eager mode computes from constants; None if an index is out of range."""
    before, mode.recording = mode.recording, False
    try:
        return bind(op, *[make(*v.constant) for v in inputs], **static)
    except IndexOutOfRange:  # belongs to the run, and to a branch perhaps never taken
        return None
    finally:
        mode.recording = before


def captured(rw: Rewriter, result: Any) -> Var:
    """An array computed at compile time as a constant."""
    av = result._aval
    var = Var(rw.source, -1, av, (result._buf, av, None))
    return rw.loaded(var)


def fold(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    """Equations of constants: uniform ones through one element, others if the result is small."""
    for v in inputs:
        if v.constant is None and v not in rw.uniform:
            return None
    values = [rw.uniform.get(v) for v in inputs]
    if None not in values:
        found = _fold_uniform(rw, op, tuple(values), static, av)
        if found is not None:
            return found
    if not all(map(is_known, inputs)) or op is broadcast_to.op:
        return None
    if av.nbytes > FOLDED_BYTES and not isinstance(op.lowering, View):
        return None
    result = evaluated(op, inputs, static)
    return None if result is None else captured(rw, result)


def _fold_uniform(
    rw: Rewriter, op: Any, values: tuple, static: dict[str, Any], av: Aval
) -> Var | None:
    """The result for uniform operands with the elements `values`, where it is uniform too."""
    first = values[0]
    if isinstance(op.lowering, View):
        if op is broadcast_to.op:
            return None
        return rw.full(first, av.shape)
    if op is concat.op or op is embed.op:
        return rw.full(first, av.shape) if all(v is first for v in values) else None
    if not is_pointwise(op):
        return None
    compute = _NUMPY.get(op)
    if compute is not None and av.dtype.kind == "f":
        with np.errstate(all="ignore"):
            result = rw.number(compute(*[rw.value(v) for v in values]), av)
    else:
        result = captured(rw, evaluated(op, values, static))
    return rw.full(result, av.shape)


def sum_uniform(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    """A sum of n equal elements is n times one of them where no partial sum is rounded."""
    (x,) = inputs
    value = rw.value(x)
    if value is None or not x.aval.size or x.aval.dtype.is_complex:
        return None
    count = x.aval.size // av.size
    if av.dtype.kind == "f":
        mantissa, _ = np.frexp(np.float64(value))
        bits = 1 + np.finfo(np.float32 if av.dtype.itemsize == 4 else np.float64).nmant
        if av.dtype.itemsize < 4 or not np.isfinite(value):
            return None
        scaled = abs(float(mantissa)) * 2.0**53
        odd = scaled / (int(scaled) & -int(scaled)) if scaled else 0.0
        if odd * count > 2.0**bits:
            return None
    total = rw.number(av.dtype.numpy.type(value) * av.dtype.numpy.type(count), av)
    return rw.full(total, av.shape)


def rules() -> Rules:
    """The rules of constants for every operation."""
    found: dict[Any, list] = {
        op: [fold] for op in REGISTRY.values() if isinstance(op, Op) and op.operands
    }
    found[sum_.op].append(sum_uniform)
    return found
