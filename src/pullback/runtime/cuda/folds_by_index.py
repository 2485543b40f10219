"""Folds by index: a stable sort of the destinations, then each takes its updates in their order.

    NAME_fold (out, updates, keys, places, Nest<1> updates, count, width)

`keys` are the sorted places in `out` where updates go, of `width` elements each, `places` the
positions of the updates. A thread folds what one element of the output gets, after what it holds.
Accumulators are as `order` says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

from pullback.compile.kernel import order
from pullback.compile.kernel.forms import Scatter
from pullback.compile.kernel.lower import copy_kernel
from pullback.compile.program.scatter import (
    FoldLanes,
    ScatterKernels,
    Updates,
    is_exact,
    is_folded,
    neutral,
    scatter_steps,
)
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, IndexArrays, Layout, Shape, Strides
from pullback.core import dtypes as dt
from pullback.core.avals import dense_strides
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr, cast
from pullback.runtime.cuda.exact_sums import exact_sum
from pullback.runtime.cuda.indexing import check_steps, row_step
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
        empty = literal(neutral(dtype, fold), dtype)
        return _SINGLE.format(wide=wide, value=value, read="x", join=join, write="a", empty=empty)
    join = {
        "add": "a + x",
        "mul": "a * x",
        "max": "x > a || x != x ? x : a",
        "min": "x < a || x != x ? x : a",
    }[fold]
    read = f"(double){convert('x', dtype, dt.float32)}" if dtype is not dt.float64 else "x"
    write = convert("(float)a", dt.float32, dtype) if dtype is not dt.float64 else "a"
    empty = literal(neutral(dtype, fold), dt.float64)
    words = {"value": value, "read": read, "join": join, "write": write, "empty": empty}
    return _SINGLE.format(wide="double", **words)


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


class _ScatterKernels:
    """The kernels of this module, and those of sorts and lanes."""

    number_bytes = 8

    def copy(
        self, dtype: DType, shape: Shape, slot: int, x_slot: int, x_strides: Strides
    ) -> list[Step | Either]:
        dense = [dense_strides(shape)]
        return map_steps(copy_kernel(dtype), shape, [At(slot)], dense, [At(x_slot)], [x_strides])

    def check(self, dtypes: tuple[DType, ...], shape: Shape, indices: IndexArrays) -> list[Step]:
        return check_steps(dtypes, shape, indices)

    def rows(
        self,
        dtypes: tuple[DType, ...],
        shape: Shape,
        places: Strides,
        indices: IndexArrays,
        numbers: int,
    ) -> list[Step]:
        return [row_step(dtypes, shape, places, indices, At(numbers))]

    def fold(
        self, kernel: Scatter, slot: int, updates: Updates, numbers: int, area: Area
    ) -> list[Step | Either]:
        count, width = updates.rows, updates.width
        places = At(area(8 * count))
        sort, keys = sort_steps(dt.uint64, (), (1,), count, At(numbers), places, area)
        name, source = _source(kernel)
        nest = packed(updates.nest)
        arguments = (At(slot), At(updates.slot), keys, places, nest, count, width)
        grid = grid_of(count * width), 1
        return [*sort, Step(source, f"{name}_fold", grid, THREADS, arguments)]

    def lanes(
        self,
        kernel: Scatter,
        slot: int,
        updates: Updates,
        numbers: int,
        lanes: FoldLanes,
        area: Area,
    ) -> Sequence[Step | Either]:
        name, source = _source(kernel)
        given = (lanes.updates, lanes.rows, lanes.columns, lanes.parts)
        wide = 8 if kernel.dtype.is_inexact else kernel.dtype.itemsize
        here = (packed(updates.nest), At(slot), At(updates.slot), At(numbers), area)
        return lane_steps(name, source, *given, lanes.parts * wide, *here)


def scatter_stages(
    kernel: Scatter,
    x: Layout,
    updates: Layout,
    out: tuple[int, Strides],
    indices: IndexArrays,
    area: Area,
    plan: Sequence[int] | None,
    /,
) -> list[Stage]:
    """See `Target.scatter`."""
    kernels: ScatterKernels[Step | Either] = _ScatterKernels()
    return stage(*scatter_steps(kernels, kernel, x, updates, out, indices, area))
