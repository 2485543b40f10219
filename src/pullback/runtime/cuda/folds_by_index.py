"""Folds by index: a stable sort of the destinations, then each takes its updates in their order.

    NAME_fold (out, updates, keys, places, Nest<1> updates, count, width)

`keys` are the sorted places in `out` where updates go, of `width` elements each, `places` the
positions of the updates. A thread folds what one element of the output gets, after what it holds.
Accumulators are as `order` says.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from pullback.compile.kernel import order
from pullback.compile.kernel.fixed_point import FORMATS
from pullback.compile.kernel.forms import Scatter
from pullback.compile.kernel.lower import copy_kernel
from pullback.compile.program.nest import coalesce
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Layout, Strides
from pullback.core import dtypes as dt
from pullback.core.avals import dense_strides
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr, cast
from pullback.runtime.cuda.exact_sums import exact_sum
from pullback.runtime.cuda.indexing import Indexed, check_steps, row_steps
from pullback.runtime.cuda.kernels import NEST
from pullback.runtime.cuda.lanes import LANES, lane_steps
from pullback.runtime.cuda.launch import THREADS, grid_of, packed
from pullback.runtime.cuda.loops import map_steps
from pullback.runtime.cuda.printer import Source, convert, emit, literal, register, storage
from pullback.runtime.cuda.sorting import sort_steps
from pullback.runtime.cuda.stages import At, Either, Step, stage

__all__ = ["scatter_stages"]

# How a real element is folded: an accumulator, from an element, with one more, as an element.
_PAIR = """
struct Sum { double total, error; };
PB_DEVICE Sum pb_start(double x) { return Sum{x, 0.0}; }
PB_DEVICE void pb_take(Sum& a, double x) {
  const double total = a.total + x, part = total - a.total;
  a.error = a.error + ((a.total - (total - part)) + (x - part));
  a.total = total;
}
// Once a sum is infinite or NaN, its error means nothing; one without error keeps its zero's sign.
PB_DEVICE double pb_end(const Sum& a) {
  return a.total - a.total == 0.0 && a.error != 0.0 ? a.total + a.error : a.total;
}
PB_DEVICE Sum pb_empty() { return Sum{-0.0, 0.0}; }
PB_DEVICE void pb_merge(Sum& a, const Sum& b) {
  pb_take(a, b.total);
  a.error = a.error + b.error;
}"""

_SINGLE = """
typedef {wide} Sum;
PB_DEVICE Sum pb_start({value} x) {{ return {read}; }}
PB_DEVICE Sum pb_empty() {{ return {empty}; }}
PB_DEVICE void pb_merge(Sum& a, const Sum& x) {{ a = {join}; }}
PB_DEVICE void pb_take(Sum& a, {value} x) {{ pb_merge(a, pb_start(x)); }}
PB_DEVICE {value} pb_end(const Sum& a) {{ return {write}; }}"""

_FOLD = """
typedef {value} Value;
extern "C" __global__ void {name}_fold(Value* __restrict__ out,
    const Value* __restrict__ updates, const unsigned long long* __restrict__ keys,
    const long long* __restrict__ places, const Nest<1> nest, const long long count,
    const long long width) {{
  for (long long i = pb_first(); i < count * width * {parts}; i += pb_step()) {{
    const long long part = i % {parts}, column = i / {parts} % width, first = i / {parts} / width;
    const unsigned long long key = keys[first];
    if (first && keys[first - 1] == key) continue;
    Value* const target = out + ((long long)key + column) * {parts} + part;
    Sum a = pb_start(*target);
    for (long long k = first; k < count && keys[k] == key; ++k) {{
      long long at[1] = {{}};
      pb_locate(nest, places[k] * width + column, at);
      pb_take(a, updates[at[0] * {parts} + part]);
    }}
    *target = pb_end(a);
  }}
}}"""


def is_folded(kernel: Scatter) -> bool:
    """Whether real numbers are folded in a wider type."""
    return kernel.sums or (bool(kernel.fold) and not kernel.dtype.is_complex)


def is_exact(kernel: Scatter) -> bool:
    """Whether sums are to be exact, and are not so by themselves."""
    return kernel.exact and kernel.dtype.real in FORMATS


def _real_fold(dtype: DType, fold: str) -> str:
    """The accumulator of a real dtype."""
    if dtype is dt.float64 and fold == "add":
        return _PAIR
    value = storage(dtype)
    if not dtype.is_float:
        wide = "bool" if dtype is dt.bool_ else value
        unsigned = "unsigned long long" if dtype.itemsize == 8 else "unsigned int"
        join = {
            "add": f"({wide})(({unsigned})a + ({unsigned})x)",
            "mul": f"({wide})(({unsigned})a * ({unsigned})x)",
            "max": "x > a ? x : a",
            "min": "x < a ? x : a",
        }[fold]
        if dtype is dt.bool_:
            join = {"add": "a || x", "mul": "a && x"}.get(fold, join)
        empty = literal(_neutral(dtype, fold), dtype)
        return _SINGLE.format(wide=wide, value=value, read="x", join=join, write="a", empty=empty)
    join = {
        "add": "a + x",
        "mul": "a * x",
        "max": "x > a || x != x ? x : a",
        "min": "x < a || x != x ? x : a",
    }[fold]
    read = f"(double){convert('x', dtype, dt.float32)}" if dtype is not dt.float64 else "x"
    write = convert("(float)a", dt.float32, dtype) if dtype is not dt.float64 else "a"
    empty = literal(_neutral(dtype, fold), dt.float64)
    words = {"value": value, "read": read, "join": join, "write": write, "empty": empty}
    return _SINGLE.format(wide="double", **words)


def _neutral(dtype: DType, fold: str) -> float | int:
    """What a fold leaves as it is."""
    if dtype.is_float:
        return {"add": -0.0, "mul": 1.0, "max": -math.inf, "min": math.inf}[fold]
    if dtype is dt.bool_ or fold in ("add", "mul"):
        return int(fold in ("mul", "min"))
    limits = np.iinfo(dtype.numpy)
    return int(limits.min if fold == "max" else limits.max)


def _other_fold(source: Source, kernel: Scatter) -> str:
    """The accumulator of any combination: in the dtype of its expressions."""
    dtype, value = kernel.dtype, storage(kernel.dtype)
    wide = dt.float32 if dtype.is_float and dtype.itemsize == 2 else dtype
    kind = storage(wide) if dtype.is_complex else register(wide)
    read = "x != 0" if dtype is dt.bool_ else convert("x", dtype, wide)
    write = convert("a", wide, dtype) if wide is not dtype else "a"

    def leaf(e: Expr) -> str:
        side, part = e.value  # type: ignore[misc]
        name = {"a": "a", "b": "x"}[side]
        return f"{name}.{'xy'[part]}" if dtype.is_complex else name

    lines, names = emit(source, [cast(e, wide.real) for e in kernel.combine], leaf)
    given = f"{kind}{{{names[0]}, {names[1]}}}" if dtype.is_complex else names[0]
    return "\n".join([
        f"typedef {kind} Sum;",
        f"PB_DEVICE Sum pb_start({value} x) {{ return {read}; }}",
        f"PB_DEVICE void pb_take(Sum& a, {value} given) {{",
        "  const Sum x = pb_start(given);",
        *lines,
        f"  a = {given};",
        "}",
        f"PB_DEVICE {value} pb_end(const Sum& a) {{ return {write}; }}",
    ])  # fmt: skip


@cache
def _source(kernel: Scatter) -> tuple[str, str]:
    """The name of a kernel, without its end, and its source."""
    source = Source()
    source.add("pb_nest", NEST)
    folded = is_folded(kernel)
    dtype = kernel.dtype.real if folded else kernel.dtype
    if is_exact(kernel):
        sums = exact_sum(dtype)
    else:
        sums = _real_fold(dtype, kernel.fold or "add") if folded else _other_fold(source, kernel)
    name = "fold_" + hashlib.sha256(sums.encode()).hexdigest()[:12]
    parts = 2 if folded and kernel.dtype.is_complex else 1
    text = _FOLD.format(name=name, value=storage(dtype), parts=parts)
    source.add(name, "\n".join([sums, text]))
    if folded and not is_exact(kernel):
        words = {"block": order.UPDATE_BLOCK, "most": order.UPDATE_LANES, "parts": parts}
        source.add("lanes", LANES.format(name=name, pairs=order.PAIR_LANES, **words))
    return name, source.text()


def scatter_stages(
    kernel: Scatter,
    x: Layout,
    updates: Layout,
    out: tuple[int, Strides],
    index_slots: Sequence[int],
    index_strides: Sequence[Strides],
    indexed: Indexed,
    area: Area,
    first_code: int,
    plan: Sequence[int] | None,
    /,
) -> list[Stage]:
    """See `Target.scatter`."""
    (x_shape, x_slot, x_strides), (shape, slot, strides) = x, updates
    steps: list[Step | Either] = []
    out_slot, out_strides = out
    if x_slot != out_slot:
        dense = [dense_strides(x_shape)]
        steps += map_steps(
            copy_kernel(kernel.dtype), x_shape, [At(out_slot)], dense, [At(x_slot)], [x_strides]
        )
    if math.prod(shape) == 0:
        return stage(*steps)
    check = check_steps(kernel.indices, shape, index_slots, index_strides, indexed, first_code)
    lead = len(shape) - (len(x_shape) - len(indexed))
    whole = all(
        s == 0 or n == 1
        for own in index_strides
        for s, n in zip(own[lead:], shape[lead:], strict=True)
    )
    taken = lead if whole else len(shape)
    count, width = math.prod(shape[:taken]), math.prod(shape[taken:])
    if math.prod(x_shape) == 0:  # every index is bad
        return stage(*check)
    numbers = At(area(8 * count))
    rows = row_steps(
        kernel.indices, shape[:taken], out_strides[:taken], index_slots,
        [own[:taken] for own in index_strides], indexed, numbers,
    )  # fmt: skip
    name, source = _source(kernel)
    nest = packed(coalesce(shape, [strides, dense_strides(shape)]), 1)
    if is_folded(kernel) and not is_exact(kernel):
        real = 2 if kernel.dtype.is_complex else 1
        parts = 2 if kernel.dtype.real is dt.float64 and not kernel.fold else 1
        given = (count, math.prod(x_shape) // width, width * real, parts)
        if order.has_lanes(*given):
            wide = 8 if kernel.dtype.is_inexact else kernel.dtype.itemsize
            here = (nest, At(out_slot), At(slot), numbers, area)
            return stage(
                *check, *steps, rows, *lane_steps(name, source, *given, parts * wide, *here)
            )
    places = At(area(8 * count))
    sort, keys = sort_steps(dt.uint64, (), (1,), count, numbers, places, area)
    arguments = (At(out_slot), At(slot), keys, places, nest, count, width)
    grid = grid_of(count * width), 1
    fold = Step(source, f"{name}_fold", grid, THREADS, arguments)
    return stage(*check, *steps, rows, *sort, fold)
