"""A stable radix argsort in LLVM IR, as functions over a record that describes one row.

Keys are unsigned integers in the order of the values. Subtracting the least key and dropping low
bits that never change leaves as few bits as the row needs. An element is one 64-bit word, those
bits above the position in the row; the output array is one of the two that the passes go between.
64-bit keys whose bits don't fit beside the position are sorted by their low half first, then by
the high half.
"""

from __future__ import annotations

from typing import NamedTuple

from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm.builder import Callee, Code, IRModule
from pullback.runtime.cpu.llvm.values import I1, I32, I64, PTR, Type, Value, integer

__all__ = ["BUCKETS", "FIELDS", "Radix", "RowFields", "digit_bits", "emit_key", "passes"]

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
    width = 8 * dtype.itemsize
    type_ = bits.type
    sign = code.int(1 << (width - 1), type_)
    if dtype.kind in "bu":
        return bits ^ flip
    if dtype.kind == "i":
        return bits ^ sign ^ flip
    magnitude = bits & ((1 << (width - 1)) - 1)
    spread = code.ashr(bits, code.int(width - 1, type_)) | sign
    zero = code.equal(magnitude, 0)
    key = code.select(zero, sign, bits ^ spread)
    nan = code.unsigned(">", magnitude, _INFINITY[dtype.name])
    return code.select(nan, code.int(-1, type_), key) ^ flip


class RowFields(NamedTuple):
    """A pointer to the int64 fields of a row."""

    code: Code
    pointer: Value

    def get(self, name: str, type_: Type = I64) -> Value:
        at = self.code.at(self.pointer, FIELDS.index(name), I64)
        return self.code.read(at, type_)

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

    def __init__(self, module: IRModule, dtype: DType):
        self.module, self.dtype = module, dtype
        self.word = integer(8 * dtype.itemsize)
        self.measure = self._measure()
        self.plan = self._plan()
        self.pack = self._pack()
        self.count = self._count()
        self.place = self._place()
        self.move = self._move()

    def _begin(self, name: str, *more: Type) -> tuple[Code, RowFields]:
        code = Code(self.module, name, (PTR, *more), qualifiers="internal ")
        return code, RowFields(code, code.args[0])

    def _bounds(self, record: RowFields, chunk: Value) -> tuple[Value, Value]:
        code = record.code
        lo = chunk * record.get("chunk")
        return lo, code.minimum(lo + record.get("chunk"), record.get("length"))

    def _key_reader(self, record: RowFields):
        """A function from a position to its key."""
        code = record.code
        source, stride = record.get("source", PTR), record.get("stride")
        flip = record.get("flip")
        flip = flip if self.word == I64 else flip.trunc(self.word)

        def read(position: Value) -> Value:
            bits = code.load(source, position * stride, self.word)
            return emit_key(code, self.dtype, bits, flip)

        return read

    def _wide(self, code: Code, key: Value) -> Value:
        return key if self.word == I64 else key.zext(I64)

    def _measure(self) -> Callee:
        """Stores the least and greatest key of a chunk, and the bits that differ from the first."""
        code, record = self._begin("measure", I64)
        chunk = code.args[1]
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
            least.set(code.select(code.unsigned("<", key, least.get()), key, least.get()))
            greatest.set(code.select(code.unsigned(">", key, greatest.get()), key, greatest.get()))
            differing.set(differing.get() | (key ^ first))
        measures, at = record.get("measures", PTR), chunk * 3
        for i, found in enumerate((least, greatest, differing)):
            code.store(self._wide(code, found.get()), measures, at + i)
        return code.finish()

    def _plan(self) -> Callee:
        """Merges the measures of all chunks and lays out bits and passes."""
        code, record = self._begin("plan")
        measures = record.get("measures", PTR)
        least, greatest = code.variable(code.int(-1)), code.variable(code.int(0))
        differing = code.variable(code.int(0))
        with code.range(0, record.get("chunks")) as i:
            at = i * 3
            low, high, bits = (code.load(measures, at + j, I64) for j in range(3))
            least.set(code.select(code.unsigned("<", low, least.get()), low, least.get()))
            greatest.set(
                code.select(code.unsigned(">", high, greatest.get()), high, greatest.get())
            )
            differing.set(differing.get() | bits)
        constant = code.zeros("cttz", differing.get() | (1 << 63))
        span = (greatest.get() - least.get()) >> constant
        bits = 64 - code.zeros("ctlz", span)
        fits = bits + record.get("position_bits") <= 64
        low = code.select(fits, bits, code.int(_HALF))
        high = bits - low
        low_passes, low_digit = self._digits(record, low)
        high_passes, high_digit = self._digits(record, high)
        found = {"least": least.get(), "constant_bits": constant, "low_bits": low}
        found |= {"low_digit": low_digit, "high_digit": high_digit, "low_passes": low_passes}
        found |= {"passes": low_passes + high_passes}
        for name, value in found.items():
            record.set(name, value)
        return code.finish()

    def _digits(self, record: RowFields, bits: Value) -> tuple[Value, Value]:
        """How many passes `bits` take, and the bits of each."""
        code = record.code
        digit = record.get("digit_bits")
        count = (bits + (digit - 1)) // digit
        divisor = code.select(code.equal(count, 0), code.int(1), count)
        return count, (bits + (divisor - 1)) // divisor

    def _reduced(self, record: RowFields, key: Value) -> Value:
        key = self._wide(record.code, key)
        return (key - record.get("least")) >> record.get("constant_bits")

    def _pack(self) -> Callee:
        """Writes the elements of a chunk: the low part of the key above the position."""
        code, record = self._begin("pack", I64)
        lo, hi = self._bounds(record, code.args[1])
        read, shift = self._key_reader(record), record.get("position_bits")
        odd = record.get("passes").trunc(I1)
        target = code.select(odd, record.get("spare", PTR), record.get("output", PTR))
        mask = (1 << record.get("low_bits")) - 1
        least, constant = record.get("least"), record.get("constant_bits")
        with code.range(lo, hi) as i:
            key = (self._wide(code, read(i)) - least) >> constant
            code.store(((key & mask) << shift) | i, target, i)
        return code.finish()

    def _step(self, record: RowFields, number: Value) -> _Step:
        code = record.code
        total, low = record.get("passes"), record.get("low_passes")
        position_bits = record.get("position_bits")
        is_low = number < low
        digit = code.select(is_low, record.get("low_digit"), record.get("high_digit"))
        index = code.select(is_low, number, number - low)
        one = code.int(1)
        from_spare = (total - number).trunc(I1)
        spare, output = record.get("spare", PTR), record.get("output", PTR)
        last = code.equal(number + one, total)
        positions = (one << position_bits) - one
        active = number < total
        return _Step(
            source=code.select(from_spare, spare, output),
            target=code.select(from_spare, output, spare),
            shift=position_bits + index * digit,
            mask=(one << digit) - one,
            keep=code.select(last, positions, code.int(-1)),
            between=active & code.equal(number, low),
            active=active,
        )

    def _count(self) -> Callee:
        """Counts the digits of a chunk; before the first high pass, brings in the high parts."""
        code, record = self._begin("count", I64, I64)
        (_, chunk, number) = code.args
        step = self._step(record, number)
        lo, hi = self._bounds(record, chunk)
        with code.when(step.active):
            if self.word == I64:
                with code.when(step.between, likely=False):
                    self._swap_halves(record, step, lo, hi)
            counts = self._counts(record, chunk)
            with code.range(0, step.mask + 1) as i:
                code.store(code.int(0, I32), counts, i)
            with code.range(lo, hi) as i:
                element = code.load(step.source, i, I64)
                bucket = (element >> step.shift) & step.mask
                count = code.load(counts, bucket, I32)
                code.store(count + 1, counts, bucket)
        return code.finish()

    def _swap_halves(self, record: RowFields, step: _Step, lo: Value, hi: Value) -> None:
        code = record.code
        read, shift = self._key_reader(record), record.get("position_bits")
        positions = (1 << shift) - 1
        low_bits = record.get("low_bits")
        with code.range(lo, hi) as i:
            position = code.load(step.source, i, I64) & positions
            high = self._reduced(record, read(position)) >> low_bits
            code.store((high << shift) | position, step.source, i)

    def _counts(self, record: RowFields, chunk: Value) -> Value:
        code = record.code
        return code.at(record.get("counts", PTR), chunk * BUCKETS, I32)

    def _place(self) -> Callee:
        """Turns counts into the first target of each bucket and chunk."""
        code, record = self._begin("place", I64)
        step = self._step(record, code.args[1])
        counts, chunks = record.get("counts", PTR), record.get("chunks")
        with code.when(step.active):
            total = code.variable(code.int(0, I32))
            with code.range(0, step.mask + 1) as bucket, code.range(0, chunks) as i:
                at = i * BUCKETS + bucket
                count = code.load(counts, at, I32)
                code.store(total.get(), counts, at)
                total.add(count)
        return code.finish()

    def _move(self) -> Callee:
        """Moves the elements of a chunk to their buckets; the last pass leaves positions alone."""
        code, record = self._begin("move", I64, I64)
        (_, chunk, number) = code.args
        step = self._step(record, number)
        lo, hi = self._bounds(record, chunk)
        counts = self._counts(record, chunk)
        with code.when(step.active), code.range(lo, hi) as i:
            element = code.load(step.source, i, I64)
            bucket = (element >> step.shift) & step.mask
            at = code.load(counts, bucket, I32)
            code.store(at + 1, counts, bucket)
            code.store(element & step.keep, step.target, at.zext(I64))
        return code.finish()
