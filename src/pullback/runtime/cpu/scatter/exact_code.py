"""Exact sums of float32 by index: see `compile.fixed_point` for what they are.

A float64 holds most sums exactly, and the error of each addition says so. Where it does not, the
updates of that place are added again in integers that cover the whole range of float32.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from pullback.core.dtypes import float32
from pullback.runtime.cpu.indexing.checked import OwnParams
from pullback.runtime.cpu.llvm.builder import I1, I32, I64, PTR, Code, Value, address, kernel
from pullback.runtime.cpu.scatter.segment_code import SLOTS, WORDS, SegmentWalk
from pullback.runtime.cpu.scatter.sums import DOUBLE, FLOAT, Sums, each_piece, two_sum

__all__ = ["exact_segments"]

I128 = ir.IntType(128)
LIMBS = 12  # of 32 bits each, the first of them empty: float32 goes from 2**-149 to 2**128
LIMB = 32  # bits of a limb, of a sum in fixed point
DIGITS = 24  # bits of the mantissa of a float32
INFINITY, NAN = 0x7F800000, 0x7FC00000


@cache
def exact_segments(odd: bool) -> int:
    """As `segments`; `odd`: rounds to odd, so that a narrower type is rounded once."""
    module = ir.Module()
    slow = _slow_sum(module, odd)
    code = kernel(module, "exact_segments")
    b, sums = code.b, Sums(float32)
    a = OwnParams(code, SLOTS, WORDS)

    def segment(span: tuple[Value, Value], places: tuple[Value, Value, Value], count: Value):
        (start, stop), (left, x_at, out_at) = span, places

        def piece(at: Value, lanes: int) -> None:
            x = sums.load(code, a["x"], b.add(x_at, at), lanes)
            total, lost = _fast_sum(code, sums, a, span, b.add(left, at), lanes)
            added, error = two_sum(code, total, x)
            lost = b.or_(lost, b.bitcast(error, lost.type))
            zero = b.fcmp_ordered("==", total, ir.Constant(total.type, None))
            result = b.select(zero, _narrow(code, x, False), _narrow(code, added, odd))
            magnitude = b.shl(lost, _splat(lost.type, 1))  # without the sign of a zero
            with b.if_else(_any(code, magnitude)) as (inexact, exact):
                with exact:
                    sums.store(code, result, a["out"], b.add(out_at, at))
                with inexact, code.range(0, lanes) as lane:
                    column = b.add(at, lane)
                    updates = code.at(a["updates"], b.add(left, column), FLOAT)
                    present = code.load(a["x"], b.add(x_at, column), I32)
                    found = b.call(slow, [a["order"], start, stop, updates, a["width"], present])
                    code.store(found, a["out"], b.add(out_at, column))

        each_piece(code, sums, count, piece)

    SegmentWalk(code, sums, a).each(segment)
    return address(code, plain_loops=True)


def _splat(type_: ir.Type, value: int) -> ir.Constant:
    if isinstance(type_, ir.VectorType):
        return ir.Constant(type_, [ir.Constant(type_.element, value)] * type_.count)
    return ir.Constant(type_, value)


def _any(code: Code, bits: Value) -> Value:
    """Whether any bit of a number, or of a vector of them, is set."""
    b = code.b
    if isinstance(bits.type, ir.VectorType):
        bits = b.bitcast(bits, ir.IntType(64 * bits.type.count))
    return b.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))


def _fast_sum(
    code: Code,
    sums: Sums,
    a: OwnParams,
    span: tuple[Value, Value],
    column: Value,
    lanes: int,
) -> tuple[Value, Value]:
    """The sum of the updates in float64, and bits that are set where it is not exact."""
    b = code.b
    wide = DOUBLE if lanes == 1 else ir.VectorType(DOUBLE, lanes)
    bits = I64 if lanes == 1 else ir.VectorType(I64, lanes)
    total = code.variable(ir.Constant(wide, None))
    lost = code.variable(ir.Constant(bits, None))
    with code.range(*span) as i:
        position = b.zext(code.load(a["order"], i, I32), I64)
        source = b.add(b.mul(position, a["width"]), column)
        value = sums.load(code, a["updates"], source, lanes)
        added, error = two_sum(code, total.get(), value)
        total.set(added)
        sign = _splat(bits, (1 << 63) - 1)
        lost.set(b.or_(lost.get(), b.and_(b.bitcast(error, bits), sign)))
    return total.get(), lost.get()


def _narrow(code: Code, value: Value, odd: bool) -> Value:
    """float64 as float32, rounded to nearest, or to odd."""
    b = code.b
    vector = isinstance(value.type, ir.VectorType)
    narrow = ir.VectorType(FLOAT, value.type.count) if vector else FLOAT
    rounded = b.fptrunc(value, narrow)
    if not odd:
        return rounded
    bits_type = ir.VectorType(I32, value.type.count) if vector else I32
    bits, back = b.bitcast(rounded, bits_type), b.fpext(rounded, value.type)
    one = _splat(bits_type, 1)
    inexact = b.fcmp_ordered("!=", back, value)
    even = b.icmp_unsigned("==", b.and_(bits, one), ir.Constant(bits_type, None))
    absolute = [_absolute(code, v) for v in (back, value)]
    beyond = b.fcmp_ordered(">", *absolute)
    moved = b.select(beyond, b.sub(bits, one), b.add(bits, one))
    return b.bitcast(b.select(b.and_(inexact, even), moved, bits), narrow)


def _absolute(code: Code, value: Value) -> Value:
    b = code.b
    vector = isinstance(value.type, ir.VectorType)
    bits = ir.VectorType(I64, value.type.count) if vector else I64
    kept = b.and_(b.bitcast(value, bits), _splat(bits, (1 << 63) - 1))
    return b.bitcast(kept, value.type)


def _slow_sum(module: ir.Module, odd: bool) -> ir.Function:
    """A function (order, start, stop, column, width, x) -> bits: the sum in integers."""
    function = Code(module, "slow_sum", (PTR, I64, I64, PTR, I64, I32), I32)
    code, b = function, function.b
    order, start, stop, column, width, x = code.args
    with b.goto_entry_block():
        limbs = b.alloca(I64, size=code.int(LIMBS))
    limbs.type = PTR
    with code.range(0, LIMBS) as k:
        code.store(code.int(0), limbs, k)
    flags = code.variable(code.int(0, I32))  # 1: infinity, 2: minus infinity, 4: NaN
    with code.range(start, stop) as i:
        position = b.zext(code.load(order, i, I32), I64)
        _add_bits(code, limbs, flags, code.load(column, b.mul(position, width), I32))
    _carry(code, limbs)
    none = code.variable(code.int(0))
    with code.range(0, LIMBS) as k:
        none.set(b.or_(none.get(), code.load(limbs, k, I64)))
    added = b.icmp_signed("!=", none.get(), code.int(0))
    _add_bits(code, limbs, flags, x)
    _carry(code, limbs)
    rounded = _rounded(code, limbs, odd)
    # Where nothing was added, x keeps its bits; so does a NaN in x.
    magnitude = b.and_(x, code.int(0x7FFFFFFF, I32))
    nan = b.icmp_unsigned(">", magnitude, code.int(INFINITY, I32))
    result = b.select(added, rounded, x)
    seen = flags.get()
    result = b.select(_is(code, seen, 1), code.int(INFINITY, I32), result)
    result = b.select(_is(code, seen, 2), code.int(INFINITY | 1 << 31, I32), result)
    both = b.and_(_is(code, seen, 1), _is(code, seen, 2))
    invalid = b.or_(both, _is(code, seen, 4))
    result = b.select(invalid, code.int(NAN, I32), result)
    b.ret(b.select(nan, x, result))
    function.function.linkage = "internal"
    function.function.attributes.add("noinline")
    return function.function


def _is(code: Code, flags: Value, bit: int) -> Value:
    found = code.b.and_(flags, code.int(bit, I32))
    return code.b.icmp_unsigned("!=", found, code.int(0, I32))


def _add_bits(code: Code, limbs: Value, flags: Value, bits: Value) -> None:
    """Adds a float32 to the limbs, or notes that it is not finite."""
    b = code.b
    exponent = b.and_(b.lshr(bits, code.int(DIGITS - 1, I32)), code.int(0xFF, I32))
    fraction = b.and_(bits, code.int((1 << (DIGITS - 1)) - 1, I32))
    negative = b.icmp_signed("<", bits, code.int(0, I32))
    with b.if_else(b.icmp_unsigned("==", exponent, code.int(0xFF, I32))) as (special, finite):
        with special:
            infinite = b.icmp_unsigned("==", fraction, code.int(0, I32))
            signed = b.select(negative, code.int(2, I32), code.int(1, I32))
            flags.set(b.or_(flags.get(), b.select(infinite, signed, code.int(4, I32))))
        with finite:
            subnormal = b.icmp_unsigned("==", exponent, code.int(0, I32))
            hidden = b.or_(fraction, code.int(1 << (DIGITS - 1), I32))
            digits = b.zext(b.select(subnormal, fraction, hidden), I64)
            raised = b.sub(exponent, code.int(1, I32))
            place = b.zext(b.select(subnormal, code.int(0, I32), raised), I64)
            number = b.shl(digits, b.and_(place, code.int(LIMB - 1)))
            low, high = b.and_(number, code.int((1 << LIMB) - 1)), b.lshr(number, code.int(LIMB))
            first = b.add(b.lshr(place, code.int(5)), code.int(1))
            for k, part in enumerate((low, high)):
                at = b.add(first, code.int(k))
                part = b.select(negative, b.neg(part), part)
                code.store(b.add(code.load(limbs, at, I64), part), limbs, at)


def _carry(code: Code, limbs: Value) -> None:
    """Leaves 32 bits in every limb but the last, which has the sign."""
    b = code.b
    carry = code.variable(code.int(0))
    with code.range(0, LIMBS - 1) as k:
        total = b.add(code.load(limbs, k, I64), carry.get())
        code.store(b.and_(total, code.int((1 << LIMB) - 1)), limbs, k)
        carry.set(b.ashr(total, code.int(LIMB)))
    last = code.int(LIMBS - 1)
    code.store(b.add(code.load(limbs, last, I64), carry.get()), limbs, last)


def _rounded(code: Code, limbs: Value, odd: bool) -> Value:
    """The limbs as the bits of a float32."""
    b = code.b
    last = code.int(LIMBS - 1)
    negative = b.icmp_signed("<", code.load(limbs, last, I64), code.int(0))
    with b.if_then(negative):
        with code.range(0, LIMBS) as k:
            code.store(b.neg(code.load(limbs, k, I64)), limbs, k)
        _carry(code, limbs)
    top = code.variable(code.int(-1))  # the place of the highest bit, from 2**-149 on
    with code.range(1, LIMBS) as k:
        limb = code.load(limbs, k, I64)
        with b.if_then(b.icmp_signed("!=", limb, code.int(0))):
            length = b.sub(code.int(63), b.ctlz(limb, code.int(0, I1)))
            top.set(b.add(b.mul(b.sub(k, code.int(1)), code.int(LIMB)), length))
    over = b.sub(top.get(), code.int(DIGITS - 1))
    drop = b.select(b.icmp_signed(">", over, code.int(0)), over, code.int(0))
    first, shift = b.lshr(drop, code.int(5)), b.and_(drop, code.int(LIMB - 1))
    window = ir.Constant(I128, 0)
    for k in range(3):
        limb = b.zext(code.load(limbs, b.add(first, code.int(k)), I64), I128)
        window = b.or_(window, b.shl(limb, ir.Constant(I128, k * LIMB)))
    cut = b.zext(b.add(shift, code.int(LIMB)), I128)
    digits = b.trunc(b.lshr(window, cut), I32)
    digits = b.and_(digits, code.int((1 << DIGITS) - 1, I32))
    one = ir.Constant(I128, 1)
    rest = b.trunc(b.and_(window, b.sub(b.shl(one, cut), one)), I64)
    below = code.variable(code.int(0))
    with code.range(0, first) as k:
        below.set(b.or_(below.get(), code.load(limbs, k, I64)))
    sticky = b.zext(b.icmp_signed("!=", below.get(), code.int(0)), I64)
    rest = b.or_(rest, sticky)
    plain = b.add(b.shl(b.trunc(drop, I32), code.int(DIGITS - 1, I32)), digits)
    if odd:
        up = b.zext(b.icmp_unsigned("!=", rest, code.int(0)), I32)
        bits = b.or_(plain, up)
    else:
        half = b.shl(code.int(1), b.add(shift, code.int(LIMB - 1)))
        tie = b.icmp_unsigned("==", rest, half)
        above = b.icmp_unsigned(">", rest, half)
        up = b.or_(above, b.and_(tie, b.trunc(digits, I1)))
        bits = b.add(plain, b.zext(up, I32))
    limit = INFINITY - 1 if odd else INFINITY
    most = code.int(limit, I32)
    bits = b.select(b.icmp_unsigned(">", bits, most), most, bits)
    sign = b.select(negative, code.int(1 << 31, I32), code.int(0, I32))
    return b.or_(bits, sign)
