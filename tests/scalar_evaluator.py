"""Evaluates scalar expressions over NumPy arrays: an oracle for printers, and a way to test bodies.

Everything is IEEE arithmetic of NumPy, besides `fma`, which is rounded once: float32 through
float64, and float64 by Boldo's and Melquiond's error-free algorithm, with libm's near the ends of
the range.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable, Sequence

import numpy as np

from pullback.ir.scalar import Expr, topological

Array = np.ndarray

_libm = ctypes.CDLL(ctypes.util.find_library("m"))
_libm.fma.restype = ctypes.c_double
_libm.fma.argtypes = [ctypes.c_double] * 3
_slow_fma = np.frompyfunc(_libm.fma, 3, 1)


def evaluate(roots: Sequence[Expr], inputs: Sequence[Array]) -> list[Array]:
    """The values of `roots`; operand k is inputs[k], complex operands by their parts."""
    values: dict[Expr, Array] = {}
    with np.errstate(all="ignore"):
        for root in roots:
            for e in topological(root, dict.fromkeys(values, 0)):
                values[e] = _value(e, [values[a] for a in e.args], inputs)
    return [values[r] for r in roots]


def _value(e: Expr, args: list[Array], inputs: Sequence[Array]) -> Array:
    dtype = e.dtype.numpy
    if e.op == "const":
        return np.asarray(e.value).astype(dtype)
    if e.op == "load":
        position, part = e.value  # type: ignore[misc]
        x = inputs[position]
        return x.astype(dtype) if x.dtype.kind != "c" else (x.imag if part else x.real)
    if e.op == "table":
        return np.array(e.value, dtype)[args[0]]
    if e.op == "cast":
        return _cast(args[0], dtype)
    if e.op == "bitcast":
        return np.ascontiguousarray(args[0]).view(dtype).reshape(args[0].shape)
    return np.asarray(_OPERATIONS[e.op](*args)).astype(dtype)


def _cast(x: Array, dtype: np.dtype) -> Array:
    if x.dtype.kind == "f" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        whole = np.trunc(np.nan_to_num(x, nan=0.0))
        inside = (whole >= float(limits.min)) & (whole < float(limits.max))
        cut = np.where(whole > 0, limits.max, limits.min).astype(dtype)
        return np.where(inside, np.where(inside, whole, 0).astype(dtype), cut)
    return x.astype(dtype)


def _quotient(a: Array, b: Array) -> Array:
    safe = np.where(b == 0, 1, b)
    return np.where(b == 0, 0, (a - np.fmod(a, safe)) // safe)


def _shift(operation: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: operation(a, b.astype(a.dtype))


_OPERATIONS: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "div": np.divide,
    "quot": _quotient, "rem": lambda a, b: np.where(b == 0, 0, np.fmod(a, np.where(b == 0, 1, b))),
    "fma": lambda a, b, c: fma(a, b, c), "sqrt": np.sqrt, "abs": np.abs, "copysign": np.copysign,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "shl": _shift(np.left_shift), "shr": _shift(np.right_shift),
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "select": np.where, "rare": np.where,
}  # fmt: skip


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c rounded once."""
    a, b, c = np.broadcast_arrays(a, b, c)
    if a.dtype == np.float32:
        return _fma_single(a, b, c)
    result = _fma_double(a, b, c)
    p = np.abs(a * b)
    wide = (np.abs(a) < 2.0**900) & (np.abs(b) < 2.0**900) & (np.abs(c) < 2.0**1000)
    safe = wide & (p < 2.0**1000) & ((p > 2.0**-900) | (a == 0) | (b == 0))
    safe &= (np.abs(c) > 2.0**-900) | ((c == 0) & (p != 0))
    if not safe.all():
        result = np.array(result)
        hard = ~safe
        result[hard] = _slow_fma(a[hard], b[hard], c[hard]).astype(np.float64)
    return result


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    s = a + b
    other = s - a
    return s, (a - (s - other)) + (b - other)


def _odd_sum(a: Array, b: Array) -> Array:
    """a + b rounded to odd: the last bit says that something was lost."""
    s, error = _two_sum(a, b)
    even = (s.view(np.int64) & 1) == 0
    towards = np.where(error > 0, np.inf, -np.inf)
    return np.where((error != 0) & even, np.nextafter(s, towards), s)


def _fma_single(a: Array, b: Array, c: Array) -> Array:
    # The product is exact in float64, and a sum rounded to odd can be rounded again.
    product = a.astype(np.float64) * b.astype(np.float64)
    total = product + c.astype(np.float64)
    odd = _odd_sum(np.atleast_1d(product), np.atleast_1d(c.astype(np.float64))).reshape(a.shape)
    return np.where(np.isfinite(total), odd, total).astype(np.float32)


def _fma_double(a: Array, b: Array, c: Array) -> Array:
    product = a * b
    factor = 2.0**27 + 1
    ah, bh = a * factor - (a * factor - a), b * factor - (b * factor - b)
    al, bl = a - ah, b - bh
    error = al * bl - (((product - ah * bh) - al * bh) - ah * bl)
    low, lowest = _two_sum(c, error)
    high, middle = _two_sum(product, low)
    return high + _odd_sum(np.atleast_1d(lowest), np.atleast_1d(middle)).reshape(a.shape)
