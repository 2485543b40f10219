"""Argsort and binary search on the CPU. Both see the values through their keys (see `radix`).

The order is that of NumPy and PyTorch: stable, -0 equal to 0, NaN after everything else (hence
first when descending). The result is unique, so no thread count or partition can change it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pullback.core.dtypes import DType
from pullback.core.errors import DTypeError, ShapeError
from pullback.runtime.cpu import native
from pullback.runtime.cpu.llvm.builder import Code, IRModule, address, index_params, kernel, offsets
from pullback.runtime.cpu.llvm.records import Record
from pullback.runtime.cpu.llvm.values import I8, I64, Type, Value, integer, vector
from pullback.runtime.cpu.sort.radix import (
    BUCKETS,
    FIELDS,
    Radix,
    RowFields,
    digit_bits,
    emit_key,
    passes,
)

__all__ = ["argsort_stages", "searchsorted_stages"]
__tuning__ = ("_LONG", "_MOST_CHUNKS", "_MOST_TASKS", "_TASK_ELEMENTS")

_AREAS = "output source records spare counts measures"
_LINE = "length stride flip"  # of a row; then `flip` is -1 where the order descends
_BITS = "position_bits digit_bits"
# After each record comes the index of the rows, or of the values, as `builder.index_params`.
SHORT = Record("output source", _LINE)
ROWS = Record(_AREAS, f"{_LINE} {_BITS} grain")
BEGIN = Record(_AREAS, f"row {_LINE} {_BITS} chunk chunks")
SEARCH = Record("output row values", "length stride count")
STEP = Record("record", "number")  # of the stages of a long row
_SHORT = 128  # rows up to here are ranked by counting smaller elements
_LONG = 1 << 16  # rows from here on are cut in chunks, if they are few
_MOST_CHUNKS = 16  # of a long row, so that a few threads share it evenly
_MOST_TASKS = 32  # each of which has scratch memory of its own
_TASK_ELEMENTS = 1 << 14  # of a task: some tens of microseconds
_VECTOR = 64  # bytes of the keys that are ranked at a time
_LANES = 8  # values that are searched for together, to overlap cache misses


def argsort_stages(
    dtype: DType,
    outer_shape: Sequence[int],
    outer_strides: Sequence[int],
    length: int,
    stride: int,
    descending: bool,
    in_slot: int,
    out_slot: int,
    area: Callable[[int], int],
) -> list[native.Stage]:
    """The stages of `argsort_program`; `area` gives scratch memory a slot."""
    if dtype.is_complex:
        raise DTypeError(f"argsort: complex numbers have no order, got {dtype.name}.")
    if length >= 1 << 32:
        raise ShapeError(f"argsort: a row holds fewer than 2**32 elements, got {length}.")
    rows = math.prod(outer_shape)
    if rows * length == 0:
        return []
    row = _Row(dtype, rows, length, stride, -1 if descending else 0, (out_slot, in_slot))
    outer = index_params(outer_shape, outer_strides)
    if length <= _SHORT:
        return [_short_stage(row, outer)]
    if length >= _LONG and rows < 4:
        return _long_stages(row, outer, area)
    return [_row_stage(row, outer, area)]


class _Row(NamedTuple):
    """What is sorted: `slots` are those of output and input."""

    dtype: DType
    rows: int
    length: int
    stride: int
    flip: int
    slots: tuple[int, int]

    def line(self) -> dict[str, int]:
        """The params of all kernels."""
        output, source = self.slots
        given = {"length": self.length, "stride": self.stride, "flip": self.flip}
        return {"output": output, "source": source, **given}

    def areas(self, area: Callable[[int], int], parts: int, rows: int) -> dict[str, int]:
        """Scratch for counts of so many parts, and for so many rows; the bits of digits."""
        return {
            "records": area(rows * len(FIELDS) * 8),
            "spare": area(rows * self.length * 8),
            "counts": area(parts * BUCKETS * 4),
            "measures": area(parts * 24),
            "position_bits": max(1, (self.length - 1).bit_length()),
            "digit_bits": digit_bits(self.length),
        }


def _short_stage(row: _Row, outer: tuple[int, ...]) -> native.Stage:
    grain = max(1, _TASK_ELEMENTS * 8 // (row.length * row.length))
    params = (*SHORT.packed(**row.line()), *outer)
    return native.Stage(_short_kernel(row.dtype), row.rows, grain, params)


def _row_stage(row: _Row, outer: tuple[int, ...], area: Callable[[int], int]) -> native.Stage:
    """One kernel that sorts whole rows; each task has its own scratch."""
    rows, length = row.rows, row.length
    tasks = min(rows, _MOST_TASKS if length < _LONG else max(4, native.get_threads()))
    grain = max(-(-rows // tasks), -(-_TASK_ELEMENTS // length))
    tasks = -(-rows // grain)
    areas = row.areas(area, tasks, tasks)
    params = (*ROWS.packed(**row.line(), **areas, grain=grain), *outer)
    return native.Stage(_row_kernel(row.dtype), rows, grain, params)


def _long_stages(
    row: _Row, outer: tuple[int, ...], area: Callable[[int], int]
) -> list[native.Stage]:
    """Row after row, each pass spread over chunks."""
    length = row.length
    chunk = max(-(-length // _MOST_CHUNKS), _TASK_ELEMENTS)
    chunks = -(-length // chunk)
    kernels = _chunk_kernels(row.dtype)
    areas = row.areas(area, chunks, 1)
    given = {**row.line(), **areas, "chunk": chunk, "chunks": chunks}
    stages = []
    for number in range(row.rows):
        begin = (*BEGIN.packed(**given, row=number), *outer)
        stages.append(native.Stage(kernels["begin"], 1, 1, begin))
        steps = [("measure", chunks, 0), ("plan", 1, 0), ("pack", chunks, 0)]
        for turn in range(passes(row.dtype)):
            steps += [("count", chunks, turn), ("place", 1, turn), ("move", chunks, turn)]
        stages += [
            native.Stage(kernels[name], units, 1, STEP.packed(record=areas["records"], number=turn))
            for name, units, turn in steps
        ]
    return stages


def _word(dtype: DType) -> Type:
    return integer(8 * dtype.itemsize)


def _narrow(code: Code, value: Value, type_: Type) -> Value:
    return value if type_ == I64 else value.trunc(type_)


@functools.cache
def _short_kernel(dtype: DType) -> int:
    """The rank of an element is how many are smaller, or equal and before it: no branches."""
    code = kernel(IRModule(), "short")
    _, _, lo, hi, _ = code.args
    a, word = SHORT.unpacked(code), _word(dtype)
    length, stride = a["length"], a["stride"]
    flip, sign = _narrow(code, a["flip"], word), code.int(1 << (word.width - 1), word)
    lanes = _VECTOR // dtype.itemsize
    keys, ranks = (code.local(word, _SHORT + lanes) for _ in range(2))
    with code.range(lo, hi) as row:
        x = code.at(a["source"], offsets(code, len(SHORT), row, 1)[0], word)
        with code.range(0, length) as i:
            bits = code.load(x, i * stride, word)
            # Signed comparisons are the ones that vectors have.
            code.store(emit_key(code, dtype, bits, flip) ^ sign, keys, i)
        out = code.at(a["output"], row * length, I64)
        with code.range(0, (length + (lanes - 1)) // lanes) as block:
            _rank(code, keys, ranks, block * lanes, length, vector(word, lanes))
        with code.range(0, length) as i:
            rank = code.load(ranks, i, word)
            code.store(i, out, rank if word == I64 else rank.zext(I64))
    return address(code)


def _rank(code: Code, keys: Value, ranks: Value, start: Value, length: Value, own: Type) -> None:
    """The ranks of some elements, whose keys fill a vector; beyond the last any number."""
    word, lanes = own.element, own.count
    mine = code.read(code.at(keys, start, word), own, align=word.width // 8)
    rank = code.variable(code.constant(own, [0] * lanes))
    end = code.minimum(start + lanes, length)
    places = code.constant(own, list(range(lanes)))

    def count(first: Value | int, last: Value, smaller: Callable[[Value, Value], Value]) -> None:
        with code.range(first, last) as j:
            other = code.spread(code.load(keys, j, word), lanes)
            rank.add(smaller(j, other).zext(own))

    def among(j: Value, other: Value) -> Value:
        before = code.spread(_narrow(code, j - start, word), lanes) < places
        return (other < mine) | (before & (other <= mine))

    count(0, start, lambda _, other: other <= mine)
    count(start, end, among)
    count(end, length, lambda _, other: other < mine)
    code.write(rank.get(), code.at(ranks, start, word), align=word.width // 8)


@functools.cache
def _row_kernel(dtype: DType) -> int:
    module = IRModule()
    radix = Radix(module, dtype)
    code = kernel(module, "rows")
    _, _, lo, hi, _ = code.args
    zero, a = code.int(0), ROWS.unpacked(code)
    length, task = a["length"], lo // a["grain"]
    record = RowFields(code, code.at(a["records"], task * len(FIELDS), I64))
    for name in f"{_LINE} {_BITS}".split():
        record.set(name, a[name])
    record.set("chunk", length)
    record.set("chunks", code.int(1))
    record.set("spare", code.at(a["spare"], task * length, I64))
    record.set("counts", code.at(a["counts"], task * (BUCKETS * 4), I8))
    record.set("measures", code.at(a["measures"], task * 3, I64))
    with code.range(lo, hi) as row:
        start = offsets(code, len(ROWS), row, 1)[0]
        record.set("source", code.at(a["source"], start, _word(dtype)))
        record.set("output", code.at(a["output"], row * length, I64))
        code.call(radix.measure, (record.pointer, zero))
        code.call(radix.plan, (record.pointer,))
        code.call(radix.pack, (record.pointer, zero))
        with code.range(0, record.get("passes")) as number:
            code.call(radix.count, (record.pointer, zero, number))
            code.call(radix.place, (record.pointer, number))
            code.call(radix.move, (record.pointer, zero, number))
    return address(code)


@functools.cache
def _chunk_kernels(dtype: DType) -> dict[str, int]:
    """The kernels of the stages of one long row, by name."""
    found = {"begin": _begin_kernel(dtype)}
    for name in ("measure", "plan", "pack", "count", "place", "move"):
        module = IRModule()
        function = getattr(Radix(module, dtype), name)
        code = kernel(module, f"stage_{name}")
        _, _, lo, hi, _ = code.args
        a = STEP.unpacked(code)
        record, number = a["record"], a["number"]
        with code.range(lo, hi) as chunk:
            args = {"plan": (record,), "place": (record, number)}.get(name, (record, chunk, number))
            code.call(function, args[: len(function.types)])
        found[name] = address(code)
    return found


@functools.cache
def _begin_kernel(dtype: DType) -> int:
    """Fills in the record of a row."""
    code = kernel(IRModule(), "begin")
    a = BEGIN.unpacked(code)
    record = RowFields(code, a["records"])
    for name in f"{_LINE} {_BITS} chunk chunks spare counts measures".split():
        record.set(name, a[name])
    offset = offsets(code, len(BEGIN), a["row"], 1)[0]
    record.set("source", code.at(a["source"], offset, _word(dtype)))
    record.set("output", code.at(a["output"], a["row"] * a["length"], I64))
    return address(code)


def searchsorted_stages(
    dtype: DType,
    length: int,
    stride: int,
    values_shape: Sequence[int],
    values_strides: Sequence[int],
    side: str,
    row_slot: int,
    values_slot: int,
    out_slot: int,
) -> list[native.Stage]:
    """The stages of `searchsorted_program` at the given slots."""
    if dtype.is_complex:
        raise DTypeError(f"searchsorted: complex numbers have no order, got {dtype.name}.")
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side must be 'left' or 'right', got {side!r}.")
    count = math.prod(values_shape)
    record = SEARCH.packed(
        output=out_slot, row=row_slot, values=values_slot, length=length, stride=stride, count=count
    )
    params = (*record, *index_params(values_shape, values_strides))
    groups = -(-count // _LANES)
    grain = max(1, _TASK_ELEMENTS // (_LANES * max(1, length.bit_length())))
    return [native.Stage(_search_kernel(dtype, side), groups, grain, params)] if count else []


@functools.cache
def _search_kernel(dtype: DType, side: str) -> int:
    """Binary searches without branches, `_LANES` of them side by side."""
    code = kernel(IRModule(), "search")
    _, _, lo, hi, _ = code.args
    a, word = SEARCH.unpacked(code), _word(dtype)
    row, stride = a["row"], a["stride"]
    none = code.int(0, word)
    comparison = "<" if side == "left" else "<="

    def step(bases, keys, size):
        """Moves each base over `size` elements if the last of them comes before the key."""
        for base, key in zip(bases, keys, strict=True):
            at = base.get() + size - 1
            there = emit_key(code, dtype, code.load(row, at * stride, word), none)
            base.add(code.select(code.unsigned(comparison, there, key), size, code.int(0)))

    with code.range(lo, hi) as group:
        first = group * _LANES
        last = a["count"] - 1
        keys, bases = [], []
        for lane in range(_LANES):
            at = code.minimum(first + lane, last)
            bits = code.load(a["values"], offsets(code, len(SEARCH), at, 1)[0], word)
            keys.append(emit_key(code, dtype, bits, none))
            bases.append(code.variable(code.int(0)))
        rest = code.variable(a["length"])
        with code.loop() as leave:
            leave(rest.get() <= 1)
            half = rest.get() >> 1
            step(bases, keys, half)
            rest.set(rest.get() - half)
        with code.when(code.equal(rest.get(), 1)):
            step(bases, keys, code.int(1))
        for lane, base in enumerate(bases):
            code.store(base.get(), a["output"], code.minimum(first + lane, last))
    return address(code)
