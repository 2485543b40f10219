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
from pullback.runtime.cpu.llvm.values import I8, I64, PTR, Type, Value, integer
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

_SLOTS = 6  # first params of argsort's kernels: output, input, records, spare, counts, measures
_SHORT = 128  # rows up to here are ranked by counting smaller elements
_LONG = 1 << 16  # rows from here on are cut in chunks, if they are few
_MOST_CHUNKS = 16  # of a long row, so that a few threads share it evenly
_MOST_TASKS = 32  # each of which has scratch memory of its own
_TASK_ELEMENTS = 1 << 14  # of a task: some tens of microseconds
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

    def areas(self, area: Callable[[int], int], parts: int, rows: int) -> tuple[int, ...]:
        """All slots: with scratch for counts of so many parts, and for so many rows."""
        sizes = (rows * len(FIELDS) * 8, rows * self.length * 8, parts * BUCKETS * 4, parts * 24)
        return (*self.slots, *map(area, sizes))


def _short_stage(row: _Row, outer: tuple[int, ...]) -> native.Stage:
    grain = max(1, _TASK_ELEMENTS * 8 // (row.length * row.length))
    params = (*row.slots, row.length, row.stride, row.flip, *outer)
    return native.Stage(_short_kernel(row.dtype), row.rows, grain, params)


def _row_stage(row: _Row, outer: tuple[int, ...], area: Callable[[int], int]) -> native.Stage:
    """One kernel that sorts whole rows; each task has its own scratch."""
    rows, length = row.rows, row.length
    tasks = min(rows, _MOST_TASKS if length < _LONG else max(4, native.get_threads()))
    grain = max(-(-rows // tasks), -(-_TASK_ELEMENTS // length))
    tasks = -(-rows // grain)
    slots = row.areas(area, tasks, tasks)
    bits = (_position_bits(length), digit_bits(length))
    params = (*slots, length, row.stride, row.flip, *bits, grain, *outer)
    return native.Stage(_row_kernel(row.dtype), rows, grain, params)


def _long_stages(
    row: _Row, outer: tuple[int, ...], area: Callable[[int], int]
) -> list[native.Stage]:
    """Row after row, each pass spread over chunks."""
    length = row.length
    chunk = max(-(-length // _MOST_CHUNKS), _TASK_ELEMENTS)
    chunks = -(-length // chunk)
    kernels = _chunk_kernels(row.dtype)
    slots = row.areas(area, chunks, 1)
    stages = []
    for number in range(row.rows):
        bits = (_position_bits(length), digit_bits(length))
        given = (*slots, number, length, row.stride, row.flip, *bits, chunk, chunks, *outer)
        stages.append(native.Stage(kernels["begin"], 1, 1, given))
        steps = [("measure", chunks, 0), ("plan", 1, 0), ("pack", chunks, 0)]
        for turn in range(passes(row.dtype)):
            steps += [("count", chunks, turn), ("place", 1, turn), ("move", chunks, turn)]
        stages += [
            native.Stage(kernels[name], units, 1, (slots[2], turn)) for name, units, turn in steps
        ]
    return stages


def _position_bits(length: int) -> int:
    return max(1, (length - 1).bit_length())


def _word(dtype: DType) -> Type:
    return integer(8 * dtype.itemsize)


def _narrow(code: Code, value: Value, type_: Type) -> Value:
    return value if type_ == I64 else value.trunc(type_)


def _pointer(code: Code, i: int) -> Value:
    """The pointer whose slot is param `i`."""
    params, ptrs = code.args[:2]
    return code.load(ptrs, code.load(params, i, I64), PTR)


@functools.cache
def _short_kernel(dtype: DType) -> int:
    """The rank of an element is how many are smaller, or equal and before it: no branches."""
    code = kernel(IRModule(), "short")
    params, _, lo, hi, _ = code.args
    word = _word(dtype)
    output, source = (_pointer(code, i) for i in range(2))
    length, stride, flip = (code.load(params, i, I64) for i in range(2, 5))
    flip, sign = _narrow(code, flip, word), code.int(1 << (word.width - 1), word)
    keys = code.local(word, _SHORT)
    with code.range(lo, hi) as row:
        x = code.at(source, offsets(code, 5, row, 1)[0], word)
        with code.range(0, length) as i:
            bits = code.load(x, i * stride, word)
            # Signed comparisons are the ones that vectors have.
            code.store(emit_key(code, dtype, bits, flip) ^ sign, keys, i)
        out = code.at(output, row * length, I64)
        with code.range(0, length) as i:
            key, rank = code.load(keys, i, word), code.variable(code.int(0, word))
            for comparison, start, stop in (("<=", code.int(0), i), ("<", i, length)):
                with code.range(start, stop) as j:
                    smaller = code.signed(comparison, code.load(keys, j, word), key)
                    rank.add(smaller.zext(word))
            rank = rank.get() if word == I64 else rank.get().zext(I64)
            code.store(i, out, rank)
    return address(code)


@functools.cache
def _row_kernel(dtype: DType) -> int:
    module = IRModule()
    radix = Radix(module, dtype)
    code = kernel(module, "rows")
    params, _, lo, hi, _ = code.args
    zero = code.int(0)
    names = ("length", "stride", "flip", "position_bits", "digit_bits")
    outer_at = _SLOTS + len(names) + 1
    *values, grain = (code.load(params, i, I64) for i in range(_SLOTS, outer_at))
    length = values[0]
    output, source, records, spare, counts, measures = (_pointer(code, i) for i in range(_SLOTS))
    task = lo // grain
    record = RowFields(code, code.at(records, task * len(FIELDS), I64))
    for name, value in zip(names, values, strict=True):
        record.set(name, value)
    record.set("chunk", length)
    record.set("chunks", code.int(1))
    record.set("spare", code.at(spare, task * length, I64))
    record.set("counts", code.at(counts, task * (BUCKETS * 4), I8))
    record.set("measures", code.at(measures, task * 3, I64))
    with code.range(lo, hi) as row:
        start = offsets(code, outer_at, row, 1)[0]
        record.set("source", code.at(source, start, _word(dtype)))
        record.set("output", code.at(output, row * length, I64))
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
        params, _, lo, hi, _ = code.args
        record, number = _pointer(code, 0), code.load(params, 1, I64)
        with code.range(lo, hi) as chunk:
            args = {"plan": (record,), "place": (record, number)}.get(name, (record, chunk, number))
            code.call(function, args[: len(function.types)])
        found[name] = address(code)
    return found


@functools.cache
def _begin_kernel(dtype: DType) -> int:
    """Fills in the record of a row."""
    code = kernel(IRModule(), "begin")
    names = ("length", "stride", "flip", "position_bits", "digit_bits", "chunk", "chunks")
    outer_at = _SLOTS + 1 + len(names)
    row, *values = (code.load(code.args[0], i, I64) for i in range(_SLOTS, outer_at))
    output, source, *areas = (_pointer(code, i) for i in range(_SLOTS))
    record = RowFields(code, areas[0])
    for name, value in zip(names, values, strict=True):
        record.set(name, value)
    for name, value in zip(("spare", "counts", "measures"), areas[1:], strict=True):
        record.set(name, value)
    offset = offsets(code, outer_at, row, 1)[0]
    record.set("source", code.at(source, offset, _word(dtype)))
    record.set("output", code.at(output, row * values[0], I64))
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
    slots = (out_slot, row_slot, values_slot)
    params = (*slots, length, stride, count, *index_params(values_shape, values_strides))
    groups = -(-count // _LANES)
    grain = max(1, _TASK_ELEMENTS // (_LANES * max(1, length.bit_length())))
    return [native.Stage(_search_kernel(dtype, side), groups, grain, params)] if count else []


@functools.cache
def _search_kernel(dtype: DType, side: str) -> int:
    """Binary searches without branches, `_LANES` of them side by side."""
    code = kernel(IRModule(), "search")
    params, _, lo, hi, _ = code.args
    word = _word(dtype)
    output, row, values = (_pointer(code, i) for i in range(3))
    length, stride, count = (code.load(params, i, I64) for i in range(3, 6))
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
        last = count - 1
        keys, bases = [], []
        for lane in range(_LANES):
            at = code.minimum(first + lane, last)
            bits = code.load(values, offsets(code, 6, at, 1)[0], word)
            keys.append(emit_key(code, dtype, bits, none))
            bases.append(code.variable(code.int(0)))
        rest = code.variable(length)
        with code.loop() as leave:
            leave(rest.get() <= 1)
            half = rest.get() >> 1
            step(bases, keys, half)
            rest.set(rest.get() - half)
        with code.when(code.equal(rest.get(), 1)):
            step(bases, keys, code.int(1))
        for lane, base in enumerate(bases):
            code.store(base.get(), output, code.minimum(first + lane, last))
    return address(code)
