"""What is known of the constants of a graph before it runs, and the smallest form of each.

A constant with equal elements (zeros and ones from differentiation are views of one element) is a
0-d constant that is broadcast; one that repeats along some axes keeps one copy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pullback.core.avals import Aval, aval
from pullback.ir.graph import Var
from pullback.ir.lowering import Elementwise
from pullback.ir.op import Op
from pullback.ops.exponential import integer_power
from pullback.ops.parts import astype
from pullback.ops.special import polygamma

__all__ = ["FOLDED_BYTES", "Constant", "contents", "is_known", "is_pointwise", "reduced", "scalar"]

FOLDED_BYTES = 1 << 16  # bytes of the largest result that is computed at compile time
COMPARED_BYTES = 1 << 24  # bytes of the largest constant whose elements are compared

POINTWISE = {f.op for f in (astype, integer_power, polygamma)}


class Constant(NamedTuple):
    """A buffer, how it is seen, and a key that equal constants share."""

    buf: Any
    aval: Aval
    key: tuple
    node: Any = None


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


def reduced(var: Var) -> Constant:
    """A constant as small as it can be, to be broadcast to its shape."""
    buf, av, node = var.constant
    if not is_known(var) or av.size == 0:
        return Constant(buf, av, ("opaque", id(buf), av, id(node)), node)
    core = _without_repeats(av)
    raw = _bytes(buf, core)
    if raw is not None and raw == raw[: av.dtype.itemsize] * core.size:
        core = aval((), av.dtype, av.device)
        raw = raw[: av.dtype.itemsize]
    if raw is None or core.nbytes > FOLDED_BYTES:
        return Constant(buf, core, ("buffer", id(buf), core))
    return Constant(buf, core, ("bytes", core.shape, core.dtype, core.device, raw))


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


def scalar(value: Any, like: Aval) -> Constant:
    """A NumPy scalar without axes, in the dtype and on the device of `like`."""
    array = np.asarray(value, like.dtype.numpy)
    av = aval((), like.dtype, like.device)
    key = ("bytes", (), av.dtype, av.device, array.tobytes())
    return Constant(like.device.runtime.from_numpy(array, True), av, key)
