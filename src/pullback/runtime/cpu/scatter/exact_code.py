"""Exact sums of float32 by index: see `compile.fixed_point` for what they are.

A float64 holds most sums exactly, and the error of each addition says so. Where it does not, the
updates of that place are added again in integers that cover the whole range of float32.
"""

from __future__ import annotations

from functools import cache

from pullback.core.dtypes import float32
from pullback.runtime.cpu.llvm.builder import Callee, Code, IRModule, Variable, address, kernel
from pullback.runtime.cpu.llvm.records import Values
from pullback.runtime.cpu.llvm.values import (
    I1,
    I32,
    I64,
    I128,
    PTR,
    Type,
    Value,
    constant,
    integer,
    vector,
)
from pullback.runtime.cpu.scatter.segment_code import SEGMENTS, SegmentWalk
from pullback.runtime.cpu.scatter.sums import DOUBLE, FLOAT, Sums, each_piece, two_sum

__all__ = ["exact_segments"]


LIMBS = 12  # of 32 bits each, the first of them empty: float32 goes from 2**-149 to 2**128
LIMB = 32  # bits of a limb, of a sum in fixed point
DIGITS = 24  # bits of the mantissa of a float32
INFINITY, NAN = 0x7F800000, 0x7FC00000


@cache
def exact_segments(odd: bool) -> int:
    """As `segments`; `odd`: rounds to odd, so that a narrower type is rounded once."""
    module = IRModule()
    slow = _slow_sum(module, odd)
    code = kernel(module, "exact_segments")
    sums = Sums(float32)
    a = SEGMENTS.unpacked(code)

    def segment(span: tuple[Value, Value], places: tuple[Value, Value, Value], count: Value):
        (start, stop), (left, x_at, out_at) = span, places

        def piece(at: Value, lanes: int) -> None:
            x = sums.load(code, a["x"], x_at + at, lanes)
            total, lost = _fast_sum(code, sums, a, span, left + at, lanes)
            added, error = two_sum(code, total, x)
            lost = lost | error.bitcast(lost.type)
            zero = code.equal(total, constant(total.type, 0))
            result = code.select(zero, _narrow(code, x, False), _narrow(code, added, odd))
            magnitude = lost << _splat(lost.type, 1)  # without the sign of a zero
            with code.either(_any(code, magnitude)) as (inexact, exact):
                with exact:
                    sums.store(code, result, a["out"], out_at + at)
                with inexact, code.range(0, lanes) as lane:
                    column = at + lane
                    updates = code.at(a["updates"], left + column, FLOAT)
                    present = code.load(a["x"], x_at + column, I32)
                    found = code.call(slow, [a["order"], start, stop, updates, a["width"], present])
                    code.store(found, a["out"], out_at + column)

        each_piece(code, sums, count, piece)

    SegmentWalk(code, sums, a).each(segment)
    return address(code, plain_loops=True)


def _splat(type_: Type, value: int) -> Value:
    return constant(type_, value)


def _any(code: Code, bits: Value) -> Value:
    """Whether any bit of a number, or of a vector of them, is set."""
    if bits.type.count > 1:
        bits = bits.bitcast(integer(64 * bits.type.count))
    return code.differ(bits, constant(bits.type, 0))


def _fast_sum(
    code: Code,
    sums: Sums,
    a: Values,
    span: tuple[Value, Value],
    column: Value,
    lanes: int,
) -> tuple[Value, Value]:
    """The sum of the updates in float64, and bits that are set where it is not exact."""
    wide = vector(DOUBLE, lanes)
    bits = vector(I64, lanes)
    total = code.variable(constant(wide, 0))
    lost = code.variable(constant(bits, 0))
    with code.range(*span) as i:
        position = code.load(a["order"], i, I32).zext(I64)
        source = position * a["width"] + column
        value = sums.load(code, a["updates"], source, lanes)
        added, error = two_sum(code, total.get(), value)
        total.set(added)
        sign = _splat(bits, (1 << 63) - 1)
        lost.set(lost.get() | (error.bitcast(bits) & sign))
    return total.get(), lost.get()


def _narrow(code: Code, value: Value, odd: bool) -> Value:
    """float64 as float32, rounded to nearest, or to odd."""
    lanes = value.type.count
    narrow = vector(FLOAT, lanes)
    rounded = value.fptrunc(narrow)
    if not odd:
        return rounded
    bits_type = vector(I32, lanes)
    bits, back = rounded.bitcast(bits_type), rounded.fpext(value.type)
    one = _splat(bits_type, 1)
    inexact = code.apart(back, value)
    even = code.equal(bits & one, constant(bits_type, 0))
    absolute = [_absolute(code, v) for v in (back, value)]
    beyond = absolute[0] > absolute[1]
    moved = code.select(beyond, bits - one, bits + one)
    return code.select(inexact & even, moved, bits).bitcast(narrow)


def _absolute(code: Code, value: Value) -> Value:
    bits = vector(I64, value.type.count)
    kept = value.bitcast(bits) & _splat(bits, (1 << 63) - 1)
    return kept.bitcast(value.type)


def _slow_sum(module: IRModule, odd: bool) -> Callee:
    """A function (order, start, stop, column, width, x) -> bits: the sum in integers."""
    types = (PTR, I64, I64, PTR, I64, I32)
    code = Code(module, "slow_sum", types, I32, "internal ", "noinline")
    order, start, stop, column, width, x = code.args
    limbs = code.local(I64, LIMBS)
    with code.range(0, LIMBS) as k:
        code.store(code.int(0), limbs, k)
    flags = code.variable(code.int(0, I32))  # 1: infinity, 2: minus infinity, 4: NaN
    with code.range(start, stop) as i:
        position = code.load(order, i, I32).zext(I64)
        _add_bits(code, limbs, flags, code.load(column, position * width, I32))
    _carry(code, limbs)
    none = code.variable(code.int(0))
    with code.range(0, LIMBS) as k:
        none.set(none.get() | code.load(limbs, k, I64))
    added = code.differ(none.get(), 0)
    _add_bits(code, limbs, flags, x)
    _carry(code, limbs)
    rounded = _rounded(code, limbs, odd)
    # Where nothing was added, x keeps its bits; so does a NaN in x.
    magnitude = x & 0x7FFFFFFF
    nan = code.unsigned(">", magnitude, INFINITY)
    result = code.select(added, rounded, x)
    seen = flags.get()
    result = code.select(_is(code, seen, 1), code.int(INFINITY, I32), result)
    result = code.select(_is(code, seen, 2), code.int(INFINITY | (1 << 31), I32), result)
    both = _is(code, seen, 1) & _is(code, seen, 2)
    invalid = both | _is(code, seen, 4)
    result = code.select(invalid, code.int(NAN, I32), result)
    code.leave(code.select(nan, x, result))
    return code.finish()


def _is(code: Code, flags: Value, bit: int) -> Value:
    found = flags & bit
    return code.differ(found, 0)


def _add_bits(code: Code, limbs: Value, flags: Variable, bits: Value) -> None:
    """Adds a float32 to the limbs, or notes that it is not finite."""
    exponent = (bits >> (DIGITS - 1)) & 0xFF
    fraction = bits & ((1 << (DIGITS - 1)) - 1)
    negative = bits < 0
    with code.either(code.equal(exponent, 0xFF)) as (special, finite):
        with special:
            infinite = code.equal(fraction, 0)
            signed = code.select(negative, code.int(2, I32), code.int(1, I32))
            flags.set(flags.get() | code.select(infinite, signed, code.int(4, I32)))
        with finite:
            subnormal = code.equal(exponent, 0)
            hidden = fraction | (1 << (DIGITS - 1))
            digits = code.select(subnormal, fraction, hidden).zext(I64)
            raised = exponent - 1
            place = code.select(subnormal, code.int(0, I32), raised).zext(I64)
            number = digits << (place & (LIMB - 1))
            low, high = number & ((1 << LIMB) - 1), number >> LIMB
            first = (place >> 5) + 1
            for k, part in enumerate((low, high)):
                at = first + k
                part = code.select(negative, -part, part)
                code.store(code.load(limbs, at, I64) + part, limbs, at)


def _carry(code: Code, limbs: Value) -> None:
    """Leaves 32 bits in every limb but the last, which has the sign."""
    carry = code.variable(code.int(0))
    with code.range(0, LIMBS - 1) as k:
        total = code.load(limbs, k, I64) + carry.get()
        code.store(total & ((1 << LIMB) - 1), limbs, k)
        carry.set(code.ashr(total, code.int(LIMB)))
    last = code.int(LIMBS - 1)
    code.store(code.load(limbs, last, I64) + carry.get(), limbs, last)


def _rounded(code: Code, limbs: Value, odd: bool) -> Value:
    """The limbs as the bits of a float32."""
    last = code.int(LIMBS - 1)
    negative = code.load(limbs, last, I64) < 0
    with code.when(negative):
        with code.range(0, LIMBS) as k:
            code.store(-code.load(limbs, k, I64), limbs, k)
        _carry(code, limbs)
    top = code.variable(code.int(-1))  # the place of the highest bit, from 2**-149 on
    with code.range(1, LIMBS) as k:
        limb = code.load(limbs, k, I64)
        with code.when(code.differ(limb, 0)):
            length = 63 - code.zeros("ctlz", limb)
            top.set((k - 1) * LIMB + length)
    over = top.get() - (DIGITS - 1)
    drop = code.select(over > 0, over, code.int(0))
    first, shift = drop >> 5, drop & (LIMB - 1)
    window = constant(I128, 0)
    for k in range(3):
        limb = code.load(limbs, first + k, I64).zext(I128)
        window = window | (limb << constant(I128, k * LIMB))
    cut = (shift + LIMB).zext(I128)
    digits = (window >> cut).trunc(I32)
    digits = digits & ((1 << DIGITS) - 1)
    one = constant(I128, 1)
    rest = (window & ((one << cut) - one)).trunc(I64)
    below = code.variable(code.int(0))
    with code.range(0, first) as k:
        below.set(below.get() | code.load(limbs, k, I64))
    sticky = code.differ(below.get(), 0).zext(I64)
    rest = rest | sticky
    plain = (drop.trunc(I32) << (DIGITS - 1)) + digits
    if odd:
        up = code.differ(rest, 0).zext(I32)
        bits = plain | up
    else:
        half = 1 << (shift + (LIMB - 1))
        tie = code.equal(rest, half)
        above = code.unsigned(">", rest, half)
        up = above | (tie & digits.trunc(I1))
        bits = plain + up.zext(I32)
    limit = INFINITY - 1 if odd else INFINITY
    most = code.int(limit, I32)
    bits = code.select(code.unsigned(">", bits, most), most, bits)
    sign = code.select(negative, code.int(1 << 31, I32), code.int(0, I32))
    return bits | sign
