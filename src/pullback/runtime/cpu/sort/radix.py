"""A stable radix argsort in LLVM IR, as functions over a record that describes one row.

Keys are unsigned integers in the order of the values. Subtracting the least key and dropping low
bits that never change leaves as few bits as the row needs. An element is one 64-bit word, those
bits above the position in the row; the output array is one of the two that the passes go between.
64-bit keys whose bits don't fit beside the position are sorted by their low half first, then by
the high half.
"""

from __future__ import annotations

from typing import NamedTuple

from llvmlite import ir

from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm.builder import I1, I32, I64, PTR, Code, Value

__all__ = ["BUCKETS", "FIELDS", "Radix", "Record", "digit_bits", "emit_key", "passes"]

_WIDEST = 11  # bits of a pass: the counts of more would leave the first-level cache
_NARROW = 8  # bits of a pass over few keys, fewer than 2**11 counts would be
BUCKETS = 1 << _WIDEST  # counters of a chunk, enough for the widest pass
_HALF = 32  # bits of the half of a key that is sorted at a time
_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF << 52}
FIELDS = (
    # given: addresses, stride in elements, key mask, extents, bits of a position and a digit
    *("source", "stride", "flip", "output", "spare", "counts", "measures"),
    *("length", "chunk", "chunks", "position_bits", "digit_bits"),
    # found by `plan`
    *("least", "constant_bits", "low_bits", "low_digit", "high_digit", "low_passes", "passes"),
)


def digit_bits(length: int) -> int:
    """The bits of a digit: a short row can't pay for thousands of counts."""
    return _WIDEST if length >= 8192 else _NARROW


def passes(dtype: DType) -> int:
    """The most passes that keys of `dtype` can need in a long row."""
    bits = 8 * dtype.itemsize
    return -(-bits // _WIDEST) if bits <= _HALF else 2 * -(-_HALF // _WIDEST)


def emit_key(code: Code, dtype: DType, bits: Value, flip: Value) -> Value:
    """The unsigned integer in whose order the values are; `flip` = -1 reverses it, 0 does not.

    All NaNs are one key above infinity, and -0 is 0.
    """
    b, width = code.b, 8 * dtype.itemsize
    type_ = bits.type
    sign = code.int(1 << (width - 1), type_)
    if dtype.kind in "bu":
        return b.xor(bits, flip)
    if dtype.kind == "i":
        return b.xor(b.xor(bits, sign), flip)
    magnitude = b.and_(bits, code.int((1 << (width - 1)) - 1, type_))
    spread = b.or_(b.ashr(bits, code.int(width - 1, type_)), sign)
    zero = b.icmp_unsigned("==", magnitude, code.int(0, type_))
    key = b.select(zero, sign, b.xor(bits, spread))
    nan = b.icmp_unsigned(">", magnitude, code.int(_INFINITY[dtype.name], type_))
    return b.xor(b.select(nan, code.int(-1, type_), key), flip)


class Record(NamedTuple):
    """A pointer to the int64 fields of a row."""

    code: Code
    pointer: Value

    def get(self, name: str, type_: ir.Type = I64) -> Value:
        at = self.code.at(self.pointer, self.code.int(FIELDS.index(name)), I64)
        return self.code.b.load(at, typ=type_)

    def set(self, name: str, value: Value) -> None:
        self.code.store(value, self.pointer, FIELDS.index(name))


class _Step(NamedTuple):
    """What one pass does, in IR values; `between` says whether the high halves come now."""

    source: Value
    target: Value
    shift: Value
    mask: Value
    keep: Value
    between: Value
    active: Value


class Radix:
    """The functions of the sort in one module, over (record, chunk, number of the pass)."""

    def __init__(self, module: ir.Module, dtype: DType):
        self.module, self.dtype = module, dtype
        self.word = ir.IntType(8 * dtype.itemsize)
        self.measure = self._measure()
        self.plan = self._plan()
        self.pack = self._pack()
        self.count = self._count()
        self.place = self._place()
        self.move = self._move()

    def _begin(self, name: str, *more: ir.Type) -> tuple[Code, Record]:
        code = Code(self.module, name, (PTR, *more))
        return code, Record(code, code.args[0])

    def _bounds(self, record: Record, chunk: Value) -> tuple[Value, Value]:
        code = record.code
        lo = code.b.mul(chunk, record.get("chunk"))
        return lo, code.minimum(code.b.add(lo, record.get("chunk")), record.get("length"))

    def _key_reader(self, record: Record):
        """A function from a position to its key."""
        code = record.code
        source, stride = record.get("source", PTR), record.get("stride")
        flip = record.get("flip")
        flip = flip if self.word == I64 else code.b.trunc(flip, self.word)

        def read(position: Value) -> Value:
            bits = code.load(source, code.b.mul(position, stride), self.word)
            return emit_key(code, self.dtype, bits, flip)

        return read

    def _wide(self, code: Code, key: Value) -> Value:
        return key if self.word == I64 else code.b.zext(key, I64)

    def _measure(self) -> ir.Function:
        """Stores the least and greatest key of a chunk, and the bits that differ from the first."""
        code, record = self._begin("measure", I64)
        b, chunk = code.b, code.args[1]
        lo, hi = self._bounds(record, chunk)
        read = self._key_reader(record)
        first = read(code.int(0))
        least, greatest = (
            code.variable(code.int(-1, self.word)),
            code.variable(code.int(0, self.word)),
        )
        differing = code.variable(code.int(0, self.word))
        with code.range(lo, hi) as i:
            key = read(i)
            least.set(b.select(b.icmp_unsigned("<", key, least.get()), key, least.get()))
            greatest.set(b.select(b.icmp_unsigned(">", key, greatest.get()), key, greatest.get()))
            differing.set(b.or_(differing.get(), b.xor(key, first)))
        measures, at = record.get("measures", PTR), b.mul(chunk, code.int(3))
        for i, found in enumerate((least, greatest, differing)):
            code.store(self._wide(code, found.get()), measures, b.add(at, code.int(i)))
        return code.internal()

    def _plan(self) -> ir.Function:
        """Merges the measures of all chunks and lays out bits and passes."""
        code, record = self._begin("plan")
        b = code.b
        measures = record.get("measures", PTR)
        least, greatest = code.variable(code.int(-1)), code.variable(code.int(0))
        differing = code.variable(code.int(0))
        with code.range(0, record.get("chunks")) as i:
            at = b.mul(i, code.int(3))
            low, high, bits = (code.load(measures, b.add(at, code.int(j)), I64) for j in range(3))
            least.set(b.select(b.icmp_unsigned("<", low, least.get()), low, least.get()))
            greatest.set(b.select(b.icmp_unsigned(">", high, greatest.get()), high, greatest.get()))
            differing.set(b.or_(differing.get(), bits))
        constant = b.cttz(b.or_(differing.get(), code.int(1 << 63)), code.int(0, I1))
        span = b.lshr(b.sub(greatest.get(), least.get()), constant)
        bits = b.sub(code.int(64), b.ctlz(span, code.int(0, I1)))
        fits = b.icmp_signed("<=", b.add(bits, record.get("position_bits")), code.int(64))
        low = b.select(fits, bits, code.int(_HALF))
        high = b.sub(bits, low)
        low_passes, low_digit = self._digits(record, low)
        high_passes, high_digit = self._digits(record, high)
        found = {"least": least.get(), "constant_bits": constant, "low_bits": low}
        found |= {"low_digit": low_digit, "high_digit": high_digit, "low_passes": low_passes}
        found |= {"passes": b.add(low_passes, high_passes)}
        for name, value in found.items():
            record.set(name, value)
        return code.internal()

    def _digits(self, record: Record, bits: Value) -> tuple[Value, Value]:
        """How many passes `bits` take, and the bits of each."""
        code, b = record.code, record.code.b
        digit = record.get("digit_bits")
        count = b.udiv(b.add(bits, b.sub(digit, code.int(1))), digit)
        divisor = b.select(b.icmp_unsigned("==", count, code.int(0)), code.int(1), count)
        return count, b.udiv(b.add(bits, b.sub(divisor, code.int(1))), divisor)

    def _reduced(self, record: Record, key: Value) -> Value:
        b = record.code.b
        key = self._wide(record.code, key)
        return b.lshr(b.sub(key, record.get("least")), record.get("constant_bits"))

    def _pack(self) -> ir.Function:
        """Writes the elements of a chunk: the low part of the key above the position."""
        code, record = self._begin("pack", I64)
        b = code.b
        lo, hi = self._bounds(record, code.args[1])
        read, shift = self._key_reader(record), record.get("position_bits")
        odd = b.trunc(record.get("passes"), I1)
        target = b.select(odd, record.get("spare", PTR), record.get("output", PTR))
        mask = b.sub(b.shl(code.int(1), record.get("low_bits")), code.int(1))
        least, constant = record.get("least"), record.get("constant_bits")
        with code.range(lo, hi) as i:
            key = b.lshr(b.sub(self._wide(code, read(i)), least), constant)
            code.store(b.or_(b.shl(b.and_(key, mask), shift), i), target, i)
        return code.internal()

    def _step(self, record: Record, number: Value) -> _Step:
        code, b = record.code, record.code.b
        total, low = record.get("passes"), record.get("low_passes")
        position_bits = record.get("position_bits")
        is_low = b.icmp_signed("<", number, low)
        digit = b.select(is_low, record.get("low_digit"), record.get("high_digit"))
        index = b.select(is_low, number, b.sub(number, low))
        one = code.int(1)
        from_spare = b.trunc(b.sub(total, number), I1)
        spare, output = record.get("spare", PTR), record.get("output", PTR)
        last = b.icmp_signed("==", b.add(number, one), total)
        positions = b.sub(b.shl(one, position_bits), one)
        active = b.icmp_signed("<", number, total)
        return _Step(
            source=b.select(from_spare, spare, output),
            target=b.select(from_spare, output, spare),
            shift=b.add(position_bits, b.mul(index, digit)),
            mask=b.sub(b.shl(one, digit), one),
            keep=b.select(last, positions, code.int(-1)),
            between=b.and_(active, b.icmp_signed("==", number, low)),
            active=active,
        )

    def _count(self) -> ir.Function:
        """Counts the digits of a chunk; before the first high pass, brings in the high parts."""
        code, record = self._begin("count", I64, I64)
        b, (_, chunk, number) = code.b, code.args
        step = self._step(record, number)
        lo, hi = self._bounds(record, chunk)
        with b.if_then(step.active):
            if self.word == I64:
                with b.if_then(step.between, likely=False):
                    self._swap_halves(record, step, lo, hi)
            counts = self._counts(record, chunk)
            with code.range(0, b.add(step.mask, code.int(1))) as i:
                code.store(code.int(0, I32), counts, i)
            with code.range(lo, hi) as i:
                element = code.load(step.source, i, I64)
                bucket = b.and_(b.lshr(element, step.shift), step.mask)
                count = code.load(counts, bucket, I32)
                code.store(b.add(count, code.int(1, I32)), counts, bucket)
        return code.internal()

    def _swap_halves(self, record: Record, step: _Step, lo: Value, hi: Value) -> None:
        code, b = record.code, record.code.b
        read, shift = self._key_reader(record), record.get("position_bits")
        positions = b.sub(b.shl(code.int(1), shift), code.int(1))
        low_bits = record.get("low_bits")
        with code.range(lo, hi) as i:
            position = b.and_(code.load(step.source, i, I64), positions)
            high = b.lshr(self._reduced(record, read(position)), low_bits)
            code.store(b.or_(b.shl(high, shift), position), step.source, i)

    def _counts(self, record: Record, chunk: Value) -> Value:
        code = record.code
        return code.at(record.get("counts", PTR), code.b.mul(chunk, code.int(BUCKETS)), I32)

    def _place(self) -> ir.Function:
        """Turns counts into the first target of each bucket and chunk."""
        code, record = self._begin("place", I64)
        b = code.b
        step = self._step(record, code.args[1])
        counts, chunks = record.get("counts", PTR), record.get("chunks")
        with b.if_then(step.active):
            total = code.variable(code.int(0, I32))
            with code.range(0, b.add(step.mask, code.int(1))) as bucket, code.range(0, chunks) as i:
                at = b.add(b.mul(i, code.int(BUCKETS)), bucket)
                count = code.load(counts, at, I32)
                code.store(total.get(), counts, at)
                total.add(count)
        return code.internal()

    def _move(self) -> ir.Function:
        """Moves the elements of a chunk to their buckets; the last pass leaves positions alone."""
        code, record = self._begin("move", I64, I64)
        b, (_, chunk, number) = code.b, code.args
        step = self._step(record, number)
        lo, hi = self._bounds(record, chunk)
        counts = self._counts(record, chunk)
        with b.if_then(step.active), code.range(lo, hi) as i:
            element = code.load(step.source, i, I64)
            bucket = b.and_(b.lshr(element, step.shift), step.mask)
            at = code.load(counts, bucket, I32)
            code.store(b.add(at, code.int(1, I32)), counts, bucket)
            code.store(b.and_(element, step.keep), step.target, b.zext(at, I64))
        return code.internal()
