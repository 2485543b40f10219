"""What is known when a graph is compiled: small constants, and equations of constants evaluated.

A constant with equal elements (zeros and ones from differentiation are views of one element) is a
0-d constant that is broadcast; one that repeats along some axes keeps one copy. Values are the ones
eager mode computes, bit for bit: they come from the same kernels, or from NumPy where both are one
correctly rounded IEEE operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pullback.core.avals import Aval, aval
from pullback.core.errors import IndexOutOfRange
from pullback.ir.array import make, mode
from pullback.ir.graph import Var
from pullback.ir.lowering import Elementwise, View
from pullback.ir.op import REGISTRY, Op, bind
from pullback.ops.arithmetic import add, divide, multiply, negative, subtract
from pullback.ops.exponential import integer_power
from pullback.ops.movement import broadcast_to, concat, embed
from pullback.ops.parts import astype
from pullback.ops.reductions import sum as sum_
from pullback.ops.special import polygamma

if TYPE_CHECKING:
    from pullback.compile.graph.passes.rewriter import Rewriter, Rules

__all__ = ["contents", "is_pointwise", "loaded", "rules", "scalar"]

FOLDED_BYTES = 1 << 16  # the largest result that is computed at compile time
COMPARED_BYTES = 1 << 24  # the largest constant whose elements are compared with each other

POINTWISE = {f.op for f in (astype, integer_power, polygamma)}
_NUMPY: dict[Op, Callable[..., Any]] = {
    add.op: np.add,
    subtract.op: np.subtract,
    multiply.op: np.multiply,
    divide.op: np.divide,
    negative.op: np.negative,
}


def is_pointwise(op: Any) -> bool:
    """Whether an element of the result depends on the operands' elements at its place alone."""
    if not isinstance(op, Op) or not isinstance(op.lowering, Elementwise):
        return False
    return op.unbroadcast is not None or op in POINTWISE


def contents(var: Var) -> np.ndarray:
    """The elements of a constant."""
    buf, av, _ = var.constant
    return av.device.runtime.to_numpy(buf, av)


def is_known(var: Var) -> bool:
    """Whether the contents of a variable are known now, and nobody differentiates by it."""
    if var.constant is None:
        return False
    _, av, node = var.constant
    return node is None and not av.is_symbolic


# -- captured arrays -----------------------------------------------------------------------------


def loaded(rw: Rewriter, old: Var) -> Var:
    """A constant of the source in the new graph, as small as it can be."""
    buf, av, node = old.constant
    if not is_known(old) or av.size == 0:
        return rw.constant(buf, av, ("opaque", id(buf), av, id(node)), node)
    core = _without_repeats(av)
    raw = _bytes(buf, core)
    if raw is not None and raw == raw[: av.dtype.itemsize] * core.size:
        core = aval((), av.dtype, av.device)
        raw = raw[: av.dtype.itemsize]
    if raw is None or core.nbytes > FOLDED_BYTES:
        found = rw.constant(buf, core, ("buffer", id(buf), core))
    else:
        found = rw.constant(buf, core, ("bytes", core.shape, core.dtype, core.device, raw))
    return rw.broadcast(found, av.shape)


def _without_repeats(av: Aval) -> Aval:
    """The part of an array that its zero strides repeat."""
    assert av.strides is not None
    if all(s or n == 1 for n, s in zip(av.shape, av.strides, strict=True)):
        return av
    kept = [(1 if s == 0 else n, s) for n, s in zip(av.shape, av.strides, strict=True)]
    while kept and kept[0][0] == 1:
        del kept[0]
    return aval(tuple(n for n, _ in kept), av.dtype, av.device, tuple(s for _, s in kept))


def _bytes(buf: Any, av: Aval) -> bytes | None:
    """The contents as bytes, if they are few or look uniform."""
    if av.nbytes > COMPARED_BYTES:
        return None
    array = av.device.runtime.to_numpy(buf, av)
    if av.nbytes > FOLDED_BYTES:
        corner = array[(0,) * av.ndim].tobytes()
        middle = array[tuple(n // 2 for n in av.shape)].tobytes()
        if corner != middle or corner != array[(-1,) * av.ndim].tobytes():
            return None
    return array.tobytes()


def scalar(rw: Rewriter, value: Any, like: Aval) -> Var:
    """The 0-d constant of a NumPy scalar that has the dtype of `like`."""
    array = np.asarray(value, like.dtype.numpy)
    av = aval((), like.dtype, like.device)
    key = ("bytes", (), av.dtype, av.device, array.tobytes())
    buf = like.device.runtime.from_numpy(array, True)
    return rw.constant(buf, av, key)


def captured(rw: Rewriter, result: Any) -> Var:
    """An array computed at compile time as a constant."""
    av = result._aval
    var = Var(rw.source, -1, av, (result._buf, av, None))
    return loaded(rw, var)


# -- evaluation ----------------------------------------------------------------------------------


def evaluated(op: Any, inputs: tuple[Var, ...], static: dict[str, Any]) -> Any:
    """The array that eager mode computes from constants; None if an index is out of range."""
    before, mode.recording = mode.recording, False
    try:
        return bind(op, *[make(*v.constant) for v in inputs], **static)
    except IndexOutOfRange:  # belongs to the run, and to a branch perhaps never taken
        return None
    finally:
        mode.recording = before


def fold(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    """Equations of constants: uniform ones through one element, others if the result is small."""
    if not all([v in rw.uniform or v.constant is not None for v in inputs]):
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
            result = scalar(rw, compute(*[rw.value(v) for v in values]), av)
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
