"""Argsort and binary search on the CPU. Both see the values through their keys (see `radix`).

The order is that of NumPy and PyTorch: stable, -0 equal to 0, NaN after everything else (hence
first when descending). The result is unique, so no thread count or partition can change it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from llvmlite import ir

from pullback.core.dtypes import DType
from pullback.core.errors import DTypeError, ShapeError
from pullback.runtime.cpu import native
from pullback.runtime.cpu.loops import (
    I64,
    PTR,
    Code,
    Value,
    address,
    index_params,
    kernel,
    offsets,
)
from pullback.runtime.cpu.radix import (
    BUCKETS,
    FIELDS,
    Radix,
    Record,
    digit_bits,
    emit_key,
    passes,
)

__all__ = ["argsort_program", "searchsorted_program"]

_OUT, _IN, _RECORDS = 0, 1, 2  # slots of argsort's kernels; then spare, counts and measures
_SHORT = 128  # rows up to here are ranked by counting smaller elements
_LONG = 1 << 16  # rows from here on are cut in chunks, if they are few
_MOST_CHUNKS = 16
_MOST_TASKS = 32
_TASK_ELEMENTS = 1 << 14
_LANES = 8  # values that are searched for together, to overlap cache misses


def argsort_program(
    dtype: DType,
    outer_shape: Sequence[int],
    outer_strides: Sequence[int],
    length: int,
    stride: int,
    descending: bool = False,
) -> Callable:
    """The function x -> int64 indices that sort each row, dense over (outer, length).

    Strides count elements: `outer_strides` step from row to row, `stride` along a row.
    """
    if dtype.is_complex:
        raise DTypeError(f"argsort: complex numbers have no order, got {dtype.name}.")
    if length >= 1 << 32:
        raise ShapeError(f"argsort: a row holds fewer than 2**32 elements, got {length}.")
    rows = math.prod(outer_shape)
    if rows * length == 0:
        return native.program(1, 0, (), ())
    flip = -1 if descending else 0
    outer = index_params(outer_shape, outer_strides)
    if length <= _SHORT:
        stages, scratch = _short_stages(dtype, rows, length, stride, flip, outer), ()
    elif length >= _LONG and rows < 4:
        stages, scratch = _long_stages(dtype, rows, length, stride, flip, outer)
    else:
        stages, scratch = _row_stages(dtype, rows, length, stride, flip, outer)
    return native.program(1, rows * length * 8, scratch, stages, rows * length > _TASK_ELEMENTS)


def _short_stages(dtype: DType, rows: int, length: int, stride: int, flip: int, outer) -> tuple:
    grain = max(1, _TASK_ELEMENTS * 8 // (length * length))
    return (native.Stage(_short_kernel(dtype), rows, grain, (length, stride, flip, *outer)),)


def _row_stages(dtype: DType, rows: int, length: int, stride: int, flip: int, outer):
    """One kernel that sorts whole rows; each task has its own scratch."""
    tasks = min(rows, _MOST_TASKS if length < _LONG else max(4, native.get_threads()))
    grain = max(-(-rows // tasks), -(-_TASK_ELEMENTS // length))
    tasks = -(-rows // grain)
    params = (length, stride, flip, _position_bits(length), digit_bits(length), grain, *outer)
    sizes = (len(FIELDS) * 8, length * 8, BUCKETS * 4, 3 * 8)
    scratch = tuple(tasks * size for size in sizes)
    return (native.Stage(_row_kernel(dtype), rows, grain, params),), scratch


def _long_stages(dtype: DType, rows: int, length: int, stride: int, flip: int, outer):
    """Row after row, each pass spread over chunks."""
    chunk = max(-(-length // _MOST_CHUNKS), _TASK_ELEMENTS)
    chunks = -(-length // chunk)
    kernels = _chunk_kernels(dtype)
    stages = []
    for row in range(rows):
        bits = (_position_bits(length), digit_bits(length))
        given = (row, length, stride, flip, *bits, chunk, chunks, *outer)
        stages.append(native.Stage(kernels["begin"], 1, 1, given))
        steps = [("measure", chunks, 0), ("plan", 1, 0), ("pack", chunks, 0)]
        for number in range(passes(dtype)):
            steps += [("count", chunks, number), ("place", 1, number), ("move", chunks, number)]
        stages += [
            native.Stage(kernels[name], units, 1, (number,)) for name, units, number in steps
        ]
    return tuple(stages), (len(FIELDS) * 8, length * 8, chunks * BUCKETS * 4, chunks * 3 * 8)


def _position_bits(length: int) -> int:
    return max(1, (length - 1).bit_length())


def _word(dtype: DType) -> ir.IntType:
    return ir.IntType(8 * dtype.itemsize)


def _narrow(code: Code, value: Value, type_: ir.IntType) -> Value:
    return value if type_ == I64 else code.b.trunc(value, type_)


@functools.cache
def _short_kernel(dtype: DType) -> int:
    """The rank of an element is how many are smaller, or equal and before it: no branches."""
    code = kernel(ir.Module(), "short")
    params, ptrs, lo, hi, _ = code.args
    b, word = code.b, _word(dtype)
    length, stride, flip = (code.load(params, i, I64) for i in range(3))
    flip, sign = _narrow(code, flip, word), code.int(1 << (word.width - 1), word)
    source, output = code.load(ptrs, _IN, PTR), code.load(ptrs, _OUT, PTR)
    with b.goto_entry_block():
        keys = b.alloca(word, size=code.int(_SHORT))
    with code.range(lo, hi) as row:
        x = code.at(source, offsets(code, 3, row, 1)[0], word)
        with code.range(0, length) as i:
            bits = code.load(x, b.mul(i, stride), word)
            # Signed comparisons are the ones that vectors have.
            code.store(b.xor(emit_key(code, dtype, bits, flip), sign), keys, i)
        out = code.at(output, b.mul(row, length), I64)
        with code.range(0, length) as i:
            key, rank = code.load(keys, i, word), code.variable(code.int(0, word))
            for comparison, start, stop in (("<=", code.int(0), i), ("<", i, length)):
                with code.range(start, stop) as j:
                    smaller = b.icmp_signed(comparison, code.load(keys, j, word), key)
                    rank.add(b.zext(smaller, word))
            rank = rank.get() if word == I64 else b.zext(rank.get(), I64)
            code.store(i, out, rank)
    return address(code)


@functools.cache
def _row_kernel(dtype: DType) -> int:
    module = ir.Module()
    radix = Radix(module, dtype)
    code = kernel(module, "rows")
    params, ptrs, lo, hi, _ = code.args
    b, zero = code.b, code.int(0)
    names = ("length", "stride", "flip", "position_bits", "digit_bits")
    *values, grain = (code.load(params, i, I64) for i in range(1 + len(names)))
    length = values[0]
    output, source, records, spare, counts, measures = (code.load(ptrs, i, PTR) for i in range(6))
    task = b.udiv(lo, grain)
    record = Record(code, code.at(records, b.mul(task, code.int(len(FIELDS))), I64))
    for name, value in zip(names, values, strict=True):
        record.set(name, value)
    record.set("chunk", length)
    record.set("chunks", code.int(1))
    record.set("spare", code.at(spare, b.mul(task, length), I64))
    record.set("counts", code.at(counts, b.mul(task, code.int(BUCKETS * 4)), ir.IntType(8)))
    record.set("measures", code.at(measures, b.mul(task, code.int(3)), I64))
    with code.range(lo, hi) as row:
        record.set(
            "source", code.at(source, offsets(code, 1 + len(names), row, 1)[0], _word(dtype))
        )
        record.set("output", code.at(output, b.mul(row, length), I64))
        b.call(radix.measure, (record.pointer, zero))
        b.call(radix.plan, (record.pointer,))
        b.call(radix.pack, (record.pointer, zero))
        with code.range(0, record.get("passes")) as number:
            b.call(radix.count, (record.pointer, zero, number))
            b.call(radix.place, (record.pointer, number))
            b.call(radix.move, (record.pointer, zero, number))
    return address(code)


@functools.cache
def _chunk_kernels(dtype: DType) -> dict[str, int]:
    """The kernels of the stages of one long row, by name."""
    found = {"begin": _begin_kernel(dtype)}
    for name in ("measure", "plan", "pack", "count", "place", "move"):
        module = ir.Module()
        function = getattr(Radix(module, dtype), name)
        code = kernel(module, f"stage_{name}")
        params, ptrs, lo, hi, _ = code.args
        record, number = code.load(ptrs, _RECORDS, PTR), code.load(params, 0, I64)
        with code.range(lo, hi) as chunk:
            args = {"plan": (record,), "place": (record, number)}.get(name, (record, chunk, number))
            code.b.call(function, args[: len(function.args)])
        found[name] = address(code)
    return found


@functools.cache
def _begin_kernel(dtype: DType) -> int:
    """Fills in the record of a row."""
    code = kernel(ir.Module(), "begin")
    params, ptrs = code.args[:2]
    names = ("length", "stride", "flip", "position_bits", "digit_bits", "chunk", "chunks")
    row, *values = (code.load(params, i, I64) for i in range(1 + len(names)))
    output, source, *areas = (code.load(ptrs, i, PTR) for i in range(6))
    record = Record(code, areas[0])
    for name, value in zip(names, values, strict=True):
        record.set(name, value)
    for name, value in zip(("spare", "counts", "measures"), areas[1:], strict=True):
        record.set(name, value)
    offset = offsets(code, 1 + len(names), row, 1)[0]
    record.set("source", code.at(source, offset, _word(dtype)))
    record.set("output", code.at(output, code.b.mul(row, values[0]), I64))
    return address(code)


def searchsorted_program(
    dtype: DType,
    length: int,
    stride: int,
    values_shape: Sequence[int],
    values_strides: Sequence[int],
    side: str = "left",
) -> Callable:
    """The function (sorted, values) -> int64 positions at which values would keep the order.

    `sorted` is one row of `length` elements; "left" counts what is smaller, "right" also what is
    equal.
    """
    if dtype.is_complex:
        raise DTypeError(f"searchsorted: complex numbers have no order, got {dtype.name}.")
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side must be 'left' or 'right', got {side!r}.")
    count = math.prod(values_shape)
    params = (length, stride, count, *index_params(values_shape, values_strides))
    groups = -(-count // _LANES)
    grain = max(1, _TASK_ELEMENTS // (_LANES * max(1, length.bit_length())))
    stages = (native.Stage(_search_kernel(dtype, side), groups, grain, params),) if count else ()
    return native.program(2, count * 8, (), stages, count > _TASK_ELEMENTS)


@functools.cache
def _search_kernel(dtype: DType, side: str) -> int:
    """Binary searches without branches, `_LANES` of them side by side."""
    code = kernel(ir.Module(), "search")
    params, ptrs, lo, hi, _ = code.args
    b, word = code.b, _word(dtype)
    length, stride, count = (code.load(params, i, I64) for i in range(3))
    output, row, values = (code.load(ptrs, i, PTR) for i in range(3))
    none = code.int(0, word)
    comparison = "<" if side == "left" else "<="

    def step(bases, keys, size):
        """Moves each base over `size` elements if the last of them comes before the key."""
        for base, key in zip(bases, keys, strict=True):
            at = b.sub(b.add(base.get(), size), code.int(1))
            there = emit_key(code, dtype, code.load(row, b.mul(at, stride), word), none)
            base.add(b.select(b.icmp_unsigned(comparison, there, key), size, code.int(0)))

    with code.range(lo, hi) as group:
        first = b.mul(group, code.int(_LANES))
        last = b.sub(count, code.int(1))
        keys, bases = [], []
        for lane in range(_LANES):
            at = code.minimum(b.add(first, code.int(lane)), last)
            bits = code.load(values, offsets(code, 3, at, 1)[0], word)
            keys.append(emit_key(code, dtype, bits, none))
            bases.append(code.variable(code.int(0)))
        rest = code.variable(length)
        with code.loop() as leave:
            leave(b.icmp_signed("<=", rest.get(), code.int(1)))
            half = b.lshr(rest.get(), code.int(1))
            step(bases, keys, half)
            rest.set(b.sub(rest.get(), half))
        with b.if_then(b.icmp_signed("==", rest.get(), code.int(1))):
            step(bases, keys, code.int(1))
        for lane, base in enumerate(bases):
            code.store(base.get(), output, code.minimum(b.add(first, code.int(lane)), last))
    return address(code)
