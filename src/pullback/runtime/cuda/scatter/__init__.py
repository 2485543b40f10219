"""Gather and scatter on NVIDIA GPUs, with the same bits on every run, through CuPy.

Nothing here uses float atomics. What is combined with what is decided by shapes and dtypes alone,
in `compile/kernel/scatter_order.py`; a strategy is a way to do it:

- "few", for streams: each thread of a block has its own accumulators in shared memory;
- "buckets", for exact sums: integers, contributions first moved near their destination (with a
  plan, in chunks that one thread block adds up without atomics);
- "atomic", for exact sums of any shape, and on any device: integers in device memory;
- "ordered", for pieces: a stable sort by row, then folds; no sort where there is little to do.

Where arrays start, a plan, and the device change how that is done, and no bit.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

from pullback.compile.kernel.scatter_order import order_of
from pullback.core.errors import DTypeError, ShapeError
from pullback.runtime.cuda.scatter.atomic import atomic_recipe
from pullback.runtime.cuda.scatter.buckets import bucket_recipe, buckets_fit
from pullback.runtime.cuda.scatter.chunks import chunk_plan_recipe, chunk_recipe, chunks_fit
from pullback.runtime.cuda.scatter.each_row import each_row_fits, each_row_recipe
from pullback.runtime.cuda.scatter.executor import (
    Array,
    IndexReport,
    LoadedRecipe,
    cupy_module,
    program,
    shared_limit,
)
from pullback.runtime.cuda.scatter.few import few_recipe
from pullback.runtime.cuda.scatter.gathering import gather_recipe
from pullback.runtime.cuda.scatter.ordered import MAX_ORDERED, order_recipe, segment_recipe
from pullback.runtime.cuda.scatter.plans import SortedIndices
from pullback.runtime.cuda.scatter.recipes import Case, Recipe

__all__ = [
    "STRATEGIES",
    "Case",
    "IndexReport",
    "SortedIndices",
    "adding",
    "choose",
    "gather",
    "make_plan",
    "reading",
    "recipes_of",
    "scatter",
    "scatter_add",
]

STRATEGIES = ("few", "buckets", "atomic", "ordered")
FOLDS = ("add", "mul", "min", "max", "set")
_OPS = {fold: f"scatter_{fold}" for fold in FOLDS}
_PARTS = {"complex64": "float32", "complex128": "float64", "bool": "uint8"}
_INDEX_KINDS = "iu"


def choose(case: Case) -> str:
    """The strategy for a scatter: of those for its order the fastest that the device can take."""
    order = order_of(case.value, case.fold, case.n, case.rows, case.width)
    if order == "streams":
        return "few"
    if order == "exact":
        return "buckets" if buckets_fit(case) else "atomic"
    if case.n <= MAX_ORDERED and case.rows < MAX_ORDERED:
        return "ordered"
    raise ShapeError(f"scatter: at most {MAX_ORDERED} contributions of {case.value}, got {case.n}.")


def recipes_of(case: Case, strategy: str, planned: bool, fresh: bool = False) -> tuple[Recipe, ...]:
    """What a strategy launches: first for the indices alone, if so, then for the values.

    Where `fresh`, destinations count as zeros, and may hold anything if the recipe writes all.
    """
    if strategy == "few":
        return (few_recipe(case),)
    if strategy == "atomic":
        return (atomic_recipe(case),)
    if strategy == "ordered":
        if not planned and each_row_fits(case):
            return (each_row_recipe(case, fresh),)
        if not planned:
            return (segment_recipe(case, planned),)
        order = order_recipe(case.index_dtype, case.n, case.rows, case.shared)
        return order, segment_recipe(case, planned)
    if planned and chunks_fit(case):
        return chunk_plan_recipe(case), chunk_recipe(case)
    return (bucket_recipe(case),)


class Call(NamedTuple):
    """What is known of a scatter from shapes and dtypes."""

    case: Case
    form: str | None  # of the plan that is read: "order" or "chunks"
    work: LoadedRecipe | None  # nothing to launch if there are no elements


@lru_cache(4096)
def _prepared(
    op: str,
    index: Any,
    n: int,
    dtypes: tuple[Any, Any],
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    dtype: str | None,
    strategy: str | None,
    planned: bool,
    vectors: bool,
    device: int,
    fresh: bool = False,
) -> Call:
    """Check a call of given dtypes and shapes, choose how to do it, and load its kernels."""
    _check_indices(op, index)
    rows, width, value = _measure(op, n, dtypes, shapes, dtype)
    fold = op.removeprefix("scatter_")
    case = Case(value, index.name, fold, n, rows, width, vectors, shared_limit(device))
    if 0 in (n, rows, width):
        return Call(case, None, None)
    chosen = strategy or choose(case)
    *first, recipe = recipes_of(case, chosen, planned, fresh)
    form = {"ordered": "order", "buckets": "chunks"}[chosen] if first else None
    clear = fresh and not recipe.writes_all
    cleared = case.rows * case.width * case.value_bytes if clear else 0
    return Call(case, form, program(recipe, device, cleared))


@lru_cache(4096)
def reading(row_bytes: int, index: str, n: int, rows: int, unit: int, device: int) -> LoadedRecipe:
    """What `gather` launches for n rows of so many bytes, which start at multiples of `unit`."""
    return program(gather_recipe(row_bytes, index, n, rows, unit), device)


def adding(
    index: Any,
    n: int,
    values: Any,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    dtype: str | None,
    vectors: bool,
    device: int,
) -> LoadedRecipe:
    """What `scatter_add` launches for n rows into zeros, which it makes, without a plan."""
    given = (index, n, (values, values), shapes, dtype, None, False, vectors, device, True)
    work = _prepared("scatter_add", *given).work
    assert work is not None
    return work


def make_plan(indices: Array, rows: int) -> SortedIndices:
    """What can be derived from indices once, for every scatter with them into `rows` rows."""
    _check_indices("scatter_plan", indices.dtype)
    return SortedIndices(cupy_module().ascontiguousarray(indices).reshape(-1), rows)


def scatter_add(
    indices: Array | None,
    values: Array,
    out: Array,
    plan: SortedIndices | None = None,
    strategy: str | None = None,
    dtype: str | None = None,
) -> IndexReport:
    """Add `values[i]` to row `indices[i]` of `out`, in place: see `scatter`."""
    return scatter(indices, values, out, "add", plan, strategy, dtype)


def scatter(
    indices: Array | None,
    values: Array,
    out: Array,
    fold: str = "add",
    plan: SortedIndices | None = None,
    strategy: str | None = None,
    dtype: str | None = None,
) -> IndexReport:
    """Fold `values[i]` into row `indices[i]` of `out`, in place, on CuPy's current stream.

    `indices` has one axis, or may be None beside a plan. `dtype` names what the elements are if
    CuPy has no such dtype, such as "bfloat16" in arrays of uint16. The result says, when asked,
    whether an index was out of range; such contributions are left out.
    """
    given = _dense(indices if plan is None else plan.indices)
    values = _dense(values)
    if not out.flags.c_contiguous:
        raise ShapeError(f"scatter_{fold}: out is dense, got strides {out.strides}.")
    op, shape = _OPS[fold], out.shape
    index, value, result = given.data.ptr, values.data.ptr, out.data.ptr
    checked = IndexReport(op, given, shape[0])
    case, form, work = _prepared(
        op,
        given.dtype,
        given.size,
        (values.dtype, out.dtype),
        (values.shape, shape),
        dtype,
        strategy,
        plan is not None,
        (value | result) % 16 == 0,
        checked.device,
    )
    if work is None:
        if case.n and case.rows == 0:
            checked.raise_for(0)
        return checked
    aligned = (index % 16 == 0) + 2 * (value % 16 == 0)
    buffers = {"index": index, "value": value, "out": result, "aligned": aligned}
    if plan is not None and form == "order":
        buffers |= plan.order(checked)
    elif plan is not None and form == "chunks":
        buffers |= plan.chunks(case, checked)
    checked.run(work, buffers)
    return checked


def gather(x: Array, indices: Array, out: Array) -> IndexReport:
    """Write row `indices[i]` of `x` to row `i` of `out`, on CuPy's current stream."""
    _check_indices("gather", indices.dtype)
    if x.dtype != out.dtype:
        raise DTypeError(f"gather: x and out have one dtype, got {x.dtype} and {out.dtype}.")
    rows, n = int(x.shape[0]), int(indices.size)
    width = math.prod(x.shape[1:])
    if out.size != n * width or not out.flags.c_contiguous:
        raise ShapeError(f"gather: out is dense with {n} rows of {width}, got shape {out.shape}.")
    x, indices = _dense(x), _dense(indices)
    checked = IndexReport("gather", indices, rows)
    if n and rows == 0:
        checked.raise_for(0)
    if n and width:
        places = int(x.data.ptr) | int(out.data.ptr)
        row_bytes, unit = width * x.itemsize, min(16, places & -places)
        work = reading(row_bytes, indices.dtype.name, n, rows, unit, checked.device)
        buffers = {"index": indices.data.ptr, "value": x.data.ptr, "out": out.data.ptr}
        checked.run(work, buffers)
    return checked


def _dense(a: Any) -> Any:
    return a if a.flags.c_contiguous else cupy_module().ascontiguousarray(a)


def _check_indices(op: str, dtype: Any) -> None:
    if dtype.kind not in _INDEX_KINDS:
        raise DTypeError(f"{op}: indices are integers, got {dtype}.")


def _measure(
    op: str, n: int, dtypes: tuple[Any, Any], shapes: Any, dtype: str | None
) -> tuple[int, int, str]:
    """Rows, real elements of a row, and their dtype."""
    if dtypes[0] != dtypes[1]:
        raise DTypeError(f"{op}: values and out have one dtype, got {dtypes[0]}, {dtypes[1]}.")
    given, (rows, *rest) = shapes
    width = math.prod(rest)
    if math.prod(given) != n * width:
        raise ShapeError(f"{op}: values have {n} rows of {width}, got shape {given}.")
    name = dtype or dtypes[0].name
    if name.startswith("complex") and not op.endswith(("add", "set")):
        raise DTypeError(f"{op}: values are real, got {name}.")
    return rows, width * (2 if name.startswith("complex") else 1), _PARTS.get(name, name)
