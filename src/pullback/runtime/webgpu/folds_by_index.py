"""Folds by index: a stable sort of the destinations, then each takes its updates in their order.

    rows   the places in the output where updates go, of which there are fewer than 2**32
    fold   a thread folds what one element of the output gets, after what it holds
    lanes, join, pairs, cells, rows_of_pairs    see `lanes`

Accumulators are as `order` says. Nothing is folded once a bad index was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from pullback.compile.kernel.forms import Scatter
from pullback.compile.kernel.lower import copy_kernel
from pullback.compile.program.nest import coalesce
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
from pullback.runtime.webgpu.exact_sums import exact_sum
from pullback.runtime.webgpu.indexing import (
    axes_words,
    check_steps,
    index_functions,
    wrapped,
)
from pullback.runtime.webgpu.lanes import lane_steps
from pullback.runtime.webgpu.maps import map_steps
from pullback.runtime.webgpu.nests import MAIN, THREADS, locate, nest_words
from pullback.runtime.webgpu.printer import (
    Source,
    convert,
    emit,
    is_wide,
    item,
    literal,
    loaded,
    register,
    stored,
)
from pullback.runtime.webgpu.sorting import sort_steps
from pullback.runtime.webgpu.stages import (
    At,
    Binding,
    Dispatch,
    fault_words,
    linear_groups,
    stage,
)

__all__ = ["scatter_stages"]

_JOINS = {
    "add": "f64_add(a, x)",
    "mul": "f64_mul(a, x)",
    "max": "select(a, x, f64_lt(a, x) || !f64_is_number(x))",
    "min": "select(a, x, f64_lt(x, a) || !f64_is_number(x))",
}


def _part(kernel: Scatter) -> DType:
    """The dtype of the elements that are folded: parts of complex numbers for themselves."""
    return kernel.dtype.real if is_folded(kernel) else kernel.dtype


def _float_sum(dtype: DType, fold: str) -> str:
    """An accumulator of float64, which is two words, for a narrower float."""
    read = convert(convert(loaded("x", dtype), dtype, dt.float32), dt.float32, dt.float64)
    narrow = convert("a", dt.float64, dt.float32)
    write = stored(convert("single", dt.float32, dtype), dtype)
    return f"""alias Sum = vec2<u32>;
fn pb_start(x: u32) -> Sum {{ return {read}; }}
fn pb_empty() -> Sum {{ return {literal(neutral(dt.float64, fold), dt.float64)}; }}
fn pb_merge(a: Sum, x: Sum) -> Sum {{ return {_JOINS[fold]}; }}
fn pb_end(a: Sum) -> u32 {{
  let single = {narrow};
  return {write};
}}
fn pb_saved(a: Sum) -> vec2<u32> {{ return a; }}
fn pb_opened(x: vec2<u32>) -> Sum {{ return x; }}"""


def _own_sum(source: Source, kernel: Scatter) -> str:
    """An accumulator in the dtype of the expressions of a fold."""
    dtype = _part(kernel)
    wide = dt.float32 if dtype.is_float and dtype.itemsize == 2 else dtype
    raw = "vec2<u32>" if is_wide(dtype.real) or dtype.is_complex else "u32"
    if dtype.is_complex:
        kind, read, write = "vec2<f32>", "bitcast<vec2<f32>>(x)", "bitcast<vec2<u32>>(a)"
    else:
        kind = register(wide)
        read = convert(loaded("x", dtype), dtype, wide)
        write = stored(convert("a", wide, dtype), dtype)

    def leaf(e: Expr) -> str:
        side, part = e.value  # type: ignore[misc]
        name = {"a": "a", "b": "x"}[side]
        return f"{name}.{'xy'[part]}" if dtype.is_complex else name

    combine = kernel.combine[:1] if not dtype.is_complex else kernel.combine
    lines, names = emit(source, [cast(e, wide.real) for e in combine], leaf)
    given = f"{kind}({', '.join(names)})" if dtype.is_complex else names[0]
    lines = [
        f"alias Sum = {kind};",
        f"fn pb_start(x: {raw}) -> Sum {{ return {read}; }}",
        "fn pb_merge(a: Sum, x: Sum) -> Sum {",
        *lines,
        f"  return {given};",
        "}",
        f"fn pb_end(a: Sum) -> {raw} {{ return {write}; }}",
    ]
    if is_folded(kernel):
        empty = literal(neutral(dtype, kernel.fold or "add"), dtype)
        lines += [
            f"fn pb_empty() -> Sum {{ return {empty}; }}",
            f"fn pb_saved(a: Sum) -> {raw} {{ return {stored('a', dtype)}; }}",
            f"fn pb_opened(x: {raw}) -> Sum {{ return {loaded('x', dtype)}; }}",
        ]
    return "\n".join(lines)


@cache
def sum_code(kernel: Scatter) -> str:
    """The accumulator of a fold: from an item, joined with another one, as an item."""
    dtype, source = _part(kernel), Source()
    if is_exact(kernel):
        return exact_sum(dtype)
    if is_folded(kernel) and dtype.is_float:
        own = _float_sum(dtype, kernel.fold or "add")
    else:
        own = _own_sum(source, kernel)
    raw = "vec2<u32>" if dtype.itemsize == 8 else "u32"
    take = f"fn pb_take(a: Sum, x: {raw}) -> Sum {{ return pb_merge(a, pb_start(x)); }}"
    return "\n".join([source.text(), own, take])


def sum_item(kernel: Scatter) -> str:
    """The kind of an accumulator in memory."""
    dtype = _part(kernel)
    return "u64" if dtype.is_float or dtype.itemsize == 8 else "u32"


@cache
def _rows_source(indices: tuple[DType, ...], rank: int) -> str:
    """Words: rows, the nest (place, indices), the axes. Arrays: numbers, indices."""
    count = len(indices)
    names = ["place", *(f"o{k}" for k in range(count))]
    return "\n".join([
        index_functions(indices, 1, 1 + rank * (2 + count)),
        MAIN,
        locate(rank, names, 1, "i"),
        *(f"  let v{k} = pb_index{k}(o{k});" for k in range(count)),
        f"  store0(i, place{wrapped(count)});",
        "}",
    ])  # fmt: skip


@cache
def _fold_source(kernel: Scatter, rank: int, faults: int) -> str:
    """Words: elements of updates, updates, elements of each, the nest of updates. Arrays: output,
    updates, sorted numbers, places, the words of errors.
    """
    parts = 2 if is_folded(kernel) and kernel.dtype.is_complex else 1
    bad = " | ".join(f"load{4 + k}(0u)" for k in range(faults))
    return "\n".join([
        sum_code(kernel),
        MAIN,
        f"  if (({bad}) != 0u) {{ return; }}",
        f"  let part = i % {parts}u;",
        f"  let column = i / {parts}u % arg(2u);",
        f"  let first = i / {parts}u / arg(2u);",
        "  let key = load2(first);",
        "  if (first > 0u) { if (load2(first - 1u) == key) { return; } }",
        f"  let to = (key + column) * {parts}u + part;",
        "  var a = pb_start(load0(to));",
        "  for (var k = first; k < arg(1u); k++) {",
        "    if (load2(k) != key) { break; }",
        "    let element = load3(k) * arg(2u) + column;",
        locate(rank, ["at"], 3, "element", "    "),
        f"    a = pb_take(a, load1(at * {parts}u + part));",
        "  }",
        "  store0(to, pb_end(a));",
        "}",
    ])  # fmt: skip


class _ScatterKernels:
    """The kernels of this module, and those of sorts and lanes."""

    number_bytes = 4

    def __init__(self, faults: Sequence[Binding]):
        self._faults = tuple(faults)

    def copy(
        self, dtype: DType, shape: Shape, slot: int, x_slot: int, x_strides: Strides
    ) -> list[Dispatch]:
        dense = [dense_strides(shape)]
        return map_steps(copy_kernel(dtype), shape, [At(slot)], dense, [At(x_slot)], [x_strides])

    def check(
        self, dtypes: tuple[DType, ...], shape: Shape, indices: IndexArrays
    ) -> list[Dispatch]:
        return check_steps(dtypes, shape, indices)

    def rows(
        self,
        dtypes: tuple[DType, ...],
        shape: Shape,
        places: Strides,
        indices: IndexArrays,
        numbers: int,
    ) -> list[Dispatch]:
        nest = coalesce(shape, [places, *indices.strides, dense_strides(shape)])
        count = nest.size
        words = (count, *nest_words(nest, 1 + len(dtypes)), *axes_words(indices.axes))
        arrays = (
            Binding(At(numbers), "u32", "write"),
            *(Binding(At(s), item(d)) for s, d in zip(indices.slots, dtypes, strict=True)),
        )
        source = _rows_source(dtypes, len(nest.shape))
        return [Dispatch(source, arrays, words, linear_groups(count, THREADS))]

    def fold(
        self, kernel: Scatter, slot: int, updates: Updates, numbers: int, area: Area
    ) -> list[Dispatch]:
        count, width, nest = updates.rows, updates.width, updates.nest
        places = At(area(4 * count))
        given = (dt.uint32, (), (1,), count, At(numbers), (places, "u32"), area)
        sort, keys = sort_steps(*given)
        kind = item(_part(kernel))
        arrays = (
            Binding(At(slot), kind, "write"),
            Binding(At(updates.slot), kind),
            Binding(keys, "u32"),
            Binding(places, "u32"),
            *self._faults,
        )
        elements = count * width * (2 if kernel.dtype.is_complex and is_folded(kernel) else 1)
        words = (elements, count, width, *nest_words(nest))
        source = _fold_source(kernel, len(nest.shape), len(self._faults))
        return [*sort, Dispatch(source, arrays, words, linear_groups(elements, THREADS))]

    def lanes(
        self,
        kernel: Scatter,
        slot: int,
        updates: Updates,
        numbers: int,
        lanes: FoldLanes,
        area: Area,
    ) -> list[Dispatch]:
        kind, own = item(_part(kernel)), sum_item(kernel)
        given = (Binding(At(slot), kind, "write"), Binding(At(updates.slot), kind))
        code = sum_code(kernel)
        parts = 2 if kernel.dtype.is_complex else 1
        return lane_steps(
            code, own, parts, lanes, updates.nest, *given, Binding(At(numbers), "u32"), area,
            self._faults,
        )  # fmt: skip


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
    faults = [
        Binding(fault_words(indices.first_code + k), "u32") for k in range(len(kernel.indices))
    ]
    kernels: ScatterKernels[Dispatch] = _ScatterKernels(faults)
    return stage(*scatter_steps(kernels, kernel, x, updates, out, indices, area))
