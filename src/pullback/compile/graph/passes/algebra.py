"""Identities of arithmetic that keep every bit (all but `REASSOCIATING`), NaN and -0.0 included.

So `x * 0` stays (it is NaN where x is not finite); `x + 0.0` goes only where x can't be -0.0
(`-0.0 + 0.0` is 0.0, and people write it for that); `x + -0.0` and `x - 0.0` always go; and
`exp(log(x))` or products with two constants, which round twice, stay as they are. Complex products
stay: `z * 1` is NaN where a part is infinite. The bits of a NaN are not promised.
"""

from __future__ import annotations

from math import copysign, frexp
from typing import Any

from pullback.compile.graph.passes.rewriter import Rewriter, Rules
from pullback.core import dtypes as dt
from pullback.core.avals import Aval
from pullback.core.dtypes import DType
from pullback.ir.graph import Var
from pullback.ops.arithmetic import abs as abs_
from pullback.ops.arithmetic import (
    add,
    divide,
    multiply,
    negative,
    positive,
    reciprocal,
    square,
    subtract,
)
from pullback.ops.bits import bitwise_and, bitwise_or
from pullback.ops.exponential import exp, integer_power, power, sqrt
from pullback.ops.logic import logical_and, logical_not, logical_or
from pullback.ops.parts import astype, conj, imag, real
from pullback.ops.reductions import sum as sum_
from pullback.ops.selection import fmax, fmin, maximum, minimum, where

__all__ = ["MADE_BY_OTHERS", "REASSOCIATING", "exactly_holds", "rules"]


def _is_zero(value: Any, sign: float = 1.0) -> bool:
    """Whether a number (or None) is the zero with this sign; integers have but one zero."""
    if value is None or bool(value != 0):
        return False
    if value.dtype.kind == "c":
        return copysign(1.0, value.real) == sign == copysign(1.0, value.imag)
    return value.dtype.kind in "biu" or copysign(1.0, float(value)) == sign


def _is(value: Any, wanted: int) -> bool:
    """Whether a real number (or None) is `wanted`."""
    return value is not None and value.dtype.kind != "c" and value == wanted


def _never_negative_zero(rw: Rewriter, x: Var) -> bool:
    """Whether no element can be -0.0, as far as its equation tells."""
    if not x.aval.dtype.is_inexact:
        return True
    value = rw.value(x)
    if value is not None:
        return value != 0 or _is_zero(value)
    eq = rw.made.get(x)
    if eq is None or x.aval.dtype.is_complex:
        return False
    if eq.op in (exp.op, abs_.op):
        return True
    if eq.op is sum_.op:  # it starts from 0.0; a narrow dtype may round a small number to -0.0
        return x.aval.dtype in (dt.float32, dt.float64)
    if eq.op is multiply.op:
        a, b = eq.inputs
        return a is b or any(_at_least_one(rw.value(u)) and _never_negative_zero(rw, v)
                             for u, v in ((a, b), (b, a)))  # fmt: skip
    if eq.op is add.op:  # a sum is -0.0 only if both terms are
        return any(_positive_zero_or_not_zero(rw.value(v)) for v in eq.inputs)
    if eq.op is subtract.op:
        return _positive_zero_or_not_zero(rw.value(eq.inputs[0]))
    return False


def _at_least_one(value: Any) -> bool:
    """Whether a number (or None) makes no product smaller, which might become -0.0."""
    return value is not None and bool(value >= 1)


def _positive_zero_or_not_zero(value: Any) -> bool:
    return value is not None and (value != 0 or _is_zero(value))


def _negated(rw: Rewriter, x: Var) -> Var | None:
    """y where x is -y."""
    eq = rw.made.get(x)
    return eq.inputs[0] if eq is not None and eq.op is negative.op else None


def _add(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    for x, y in (inputs, inputs[::-1]):
        value = rw.value(y)
        if value is not None and (
            _is_zero(value, -1.0) or (_is_zero(value) and _never_negative_zero(rw, x))
        ):
            return rw.broadcast(x, av.shape)
        other = _negated(rw, y)
        if other is not None:
            return rw.emit(subtract.op, (x, other))
    if inputs[0] is inputs[1] and av.dtype.kind in "iuf":  # beside other constants it may vanish
        return rw.emit(multiply.op, (inputs[0], rw.number(2, av)))
    return None


def _subtract(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    x, y = inputs
    value = rw.value(y)
    if value is not None and (
        _is_zero(value) or (_is_zero(value, -1.0) and _never_negative_zero(rw, x))
    ):
        return rw.broadcast(x, av.shape)
    if _is_zero(rw.value(x), -1.0):
        return rw.broadcast(rw.emit(negative.op, (y,)), av.shape)
    other = _negated(rw, y)
    return None if other is None else rw.emit(add.op, (x, other))


def _multiply(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    for x, y in (inputs, inputs[::-1]):
        value = rw.value(y)
        if value is None:
            continue
        if _is(value, 1):
            return rw.broadcast(x, av.shape)
        if _is(value, -1) and av.dtype is not dt.bool_:
            return rw.broadcast(rw.emit(negative.op, (x,)), av.shape)
        if _is_zero(value) and not av.dtype.is_inexact:
            return rw.broadcast(y, av.shape)
        inner = _negated(rw, x)
        if inner is not None and not av.dtype.is_complex:
            return rw.emit(op, (inner, rw.emit(negative.op, (y,))))
    return _sign_outside(rw, op, inputs)


def _sign_outside(rw: Rewriter, op: Any, inputs: tuple) -> Var | None:
    """`-x * y` is `-(x * y)`: outside, signs cancel or turn a sum into a difference."""
    x, y = _negated(rw, inputs[0]), _negated(rw, inputs[1])
    if (x is None and y is None) or inputs[0].aval.dtype.is_complex:
        return None
    unsigned = rw.emit(op, (inputs[0] if x is None else x, inputs[1] if y is None else y))
    return rw.emit(negative.op, (unsigned,)) if x is None or y is None else unsigned


def _divide(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    x, y = inputs
    value = rw.value(y)
    if value is None or av.dtype.is_complex:
        return _sign_outside(rw, op, inputs)
    if _is(value, 1):
        return rw.broadcast(x, av.shape)
    if _is(value, -1):
        return rw.broadcast(rw.emit(negative.op, (x,)), av.shape)
    mantissa, exponent = frexp(float(value))
    # 1 / 2**k is exact, and then x / 2**k and x * 2**-k are the same number, rounded once
    if abs(mantissa) == 0.5 and abs(exponent) <= (12 if av.dtype is dt.float16 else 100):
        return rw.emit(multiply.op, (x, rw.number(1.0 / float(value), av)))
    return None


def _divided_flag(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    """Zeros and ones over what is repeated: two quotients, and a choice for each element."""
    x, y = inputs
    eq = rw.maker(x, astype.op)
    if eq is None or eq.inputs[0].aval.dtype is not dt.bool_ or av.dtype.kind != "f":
        return None
    if y.aval.size * 2 > av.size:
        return None
    one, zero = (rw.emit(op, (rw.number(value, y.aval), y)) for value in (1.0, 0.0))
    return rw.emit(where.op, (eq.inputs[0], one, zero))


def _negative(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    (x,) = inputs
    inner = _negated(rw, x)
    if inner is not None:
        return inner
    eq = rw.maker(x, multiply.op)
    if eq is None or av.dtype.kind != "f" or not rw.only_use(x):
        return None
    for a, b in (eq.inputs, eq.inputs[::-1]):
        if rw.value(b) is not None:
            return rw.emit(multiply.op, (a, rw.emit(op, (b,))))
    return None


def _same(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    return inputs[0]


def _square(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    """A square is a product, the form that derivatives of products take."""
    (x,) = inputs
    return rw.emit(multiply.op, (x, x))


def _power(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    (x,) = inputs
    n = static["n"]
    if n == 1:
        return x
    if n == 2:
        return rw.emit(multiply.op, (x, x))
    if n == 0:
        return rw.full(rw.number(1, av), av.shape)
    return rw.emit(reciprocal.op, (x,)) if n == -1 else None


def _known_power(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    """`x**1.5` is `x * sqrt(x)`: the short way, which `pow` takes for Python numbers."""
    x, y = inputs
    value = rw.value(y)
    if value is None or av.dtype not in (dt.float32, dt.float64) or x.aval.shape != av.shape:
        return None
    twice = 2.0 * float(value)
    if twice != twice // 1 or not 0 < abs(twice) <= 8:
        return None
    whole, half = divmod(int(abs(twice)), 2)
    result = rw.emit(sqrt.op, (x,)) if half else None
    if whole:
        product = rw.emit(integer_power.op, (x,), {"n": whole})
        result = product if result is None else rw.emit(multiply.op, (product, result))
    assert result is not None
    return result if twice > 0 else rw.emit(reciprocal.op, (result,))


def _abs(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    (x,) = inputs
    if rw.maker(x, abs_.op) is not None:
        return x
    inner = _negated(rw, x)
    return None if inner is None else rw.emit(op, (inner,))


def _extremum(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    return inputs[0] if inputs[0] is inputs[1] else None


def _not(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    eq = rw.maker(inputs[0], logical_not.op)
    return eq.inputs[0] if eq is not None and eq.inputs[0].aval is av else None


def _and(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    return _decided(rw, inputs, av, True)


def _or(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    return _decided(rw, inputs, av, False)


def _decided(rw: Rewriter, inputs: tuple, av: Aval, neutral: bool) -> Var | None:
    """One of two bools where the other is known, or the same."""
    if any(v.aval.dtype is not dt.bool_ for v in inputs):
        return None
    for x, y in (inputs, inputs[::-1]):
        value = rw.value(y)
        if x is y or (value is not None and bool(value) == neutral):
            return rw.broadcast(x, av.shape)
        if value is not None:
            return rw.broadcast(y, av.shape)
    return None


def _where(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    condition, x, y = inputs
    value = rw.value(condition)
    if value is not None:
        return rw.broadcast(x if value != 0 else y, av.shape)
    if x is y:
        return rw.broadcast(x, av.shape)
    inner = rw.maker(x, op)
    if inner is not None and inner.inputs[0] is condition:
        return rw.broadcast(rw.emit(op, (condition, inner.inputs[1], y)), av.shape)
    inner = rw.maker(y, op)
    if inner is not None and inner.inputs[0] is condition:
        return rw.broadcast(rw.emit(op, (condition, x, inner.inputs[2])), av.shape)
    return None


# -- casts and complex parts -----------------------------------------------------------------------

_DIGITS = {dt.float16: 11, dt.bfloat16: 8, dt.float32: 24, dt.float64: 53}


def exactly_holds(wide: DType, narrow: DType) -> bool:
    """Whether every number of dtype `narrow` is one of `wide`."""
    if wide is narrow or narrow is dt.bool_:
        return True
    if wide is dt.bool_ or (narrow.is_complex and not wide.is_complex):
        return False
    a, b = wide.real, narrow.real
    if b.is_float:
        return a is b or (a.is_float and a.rank > b.rank)
    bits = 8 * b.itemsize - (b.kind == "i")
    if a.is_float:  # the range of float16 ends at 2**16
        return _DIGITS[a] >= bits
    if a.kind == "u":
        return b.kind == "u" and a.itemsize >= b.itemsize
    return 8 * a.itemsize - 1 >= bits


def _astype(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    (x,) = inputs
    if x.aval is av:
        return x
    eq = rw.maker(x, op)
    if eq is None:
        return None
    first, middle, last = eq.inputs[0].aval.dtype, x.aval.dtype, av.dtype
    if not exactly_holds(middle, first):
        return None
    # integers wrap where floats saturate: one may go through a float only if the end holds it
    whole = first.is_integer and middle.is_inexact and last.is_integer
    if whole and not exactly_holds(last, first):
        return None
    return rw.emit(op, eq.inputs, static)


def _made_complex(rw: Rewriter, x: Var) -> Var | None:
    """The real array that `x` is, as a complex one."""
    eq = rw.maker(x, astype.op)
    return None if eq is None or eq.inputs[0].aval.dtype.is_complex else eq.inputs[0]


def _real(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    (z,) = inputs
    x = _made_complex(rw, z)
    if x is not None:
        return x if x.aval is av else rw.emit(astype.op, (x,), {"dtype": av.dtype})
    eq = rw.maker(z, conj.op)
    return None if eq is None else rw.emit(op, eq.inputs)


def _imag(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    if _made_complex(rw, inputs[0]) is None:
        return None
    return rw.full(rw.number(0, av), av.shape)


def _conj(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    (x,) = inputs
    if not av.dtype.is_complex:
        return x
    eq = rw.maker(x, op)
    return None if eq is None else eq.inputs[0]


REASSOCIATING = (_known_power,)  # rounded otherwise than in eager mode

# Operations whose rules look for more than constants, views, negated and equal operands.
MADE_BY_OTHERS = {
    f.op
    for f in (
        abs_, astype, conj, divide, imag, integer_power, logical_not, negative, positive, real,
        square, where,
    )
}  # fmt: skip


def rules() -> Rules:
    """The rules of arithmetic."""
    return {
        add.op: [_add],
        subtract.op: [_subtract],
        multiply.op: [_multiply],
        divide.op: [_divide, _divided_flag],
        negative.op: [_negative],
        positive.op: [_same],
        square.op: [_square],
        integer_power.op: [_power],
        abs_.op: [_abs],
        where.op: [_where],
        logical_not.op: [_not],
        logical_and.op: [_and],
        logical_or.op: [_or],
        bitwise_and.op: [_and],
        bitwise_or.op: [_or],
        power.op: [_known_power],
        astype.op: [_astype],
        real.op: [_real],
        imag.op: [_imag],
        conj.op: [_conj],
        **{f.op: [_extremum] for f in (maximum, minimum, fmax, fmin)},
    }
