"""Sums by index as stages: which strategy a shape gets, and how the operands are brought to it.

    columns    few destinations: every chunk of the updates has accumulators of its own, several
               for each destination; the chunks are joined in a fixed order
    direct     few updates: one after the other
    sparse     few updates, very many destinations: the same, for those that are met
    buckets    narrow rows: updates are sorted into buckets of destinations that fit in the cache,
               then added one after the other
    segments   wide rows: positions are sorted by destination (the index plan), then the rows of
               each destination are added one after the other

The choice depends on shapes only. All but `columns` add the updates of a destination in their
order to an accumulator that starts with x: they give the same bits, with or without a plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pullback.compile.kernel import Map, Scatter
from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.core.errors import ShapeError
from pullback.ir.scalar import cast, load
from pullback.runtime.cpu import (
    index_code,
    native,
    scatter_buckets,
    scatter_code,
    scatter_exact,
    scatter_segments,
)
from pullback.runtime.cpu.map_kernels import dense_strides, grain_of, map_stage
from pullback.runtime.cpu.nest import Streams, coalesce
from pullback.runtime.cpu.scatter_sums import Sums

__all__ = [
    "PlanSlots",
    "Shape",
    "Wanted",
    "copy_kernel",
    "plan_stages",
    "strategy",
    "sum_stages",
    "wants_plan",
]

Strides = Sequence[int]
Area = Callable[[int], int]

FEW_UPDATES = 1 << 15  # elements that one thread adds alone
FEW_DESTINATIONS = 2048  # elements for which every chunk has accumulators
NARROW = 16  # bytes of a row that is moved into buckets
LEAST_CHUNK = 1 << 16
MOST_CHUNKS = 256
TABLE_BYTES = 1 << 17  # of the accumulators of a bucket: part of a core's cache
LEAST_BUCKETS = 16
MOST_BUCKETS = 2048
PLAN_ROWS = 1 << 12  # destinations of a bucket whose positions are sorted
PARTS = 64  # of equal work, into which wide rows are cut


@dataclass(frozen=True)
class Shape:
    """`count` rows of `width` real elements of `dtype` are added to `rows` rows."""

    count: int
    rows: int
    width: int
    dtype: DType


def strategy(shape: Shape) -> str:
    """The name of the strategy for a shape."""
    elements, updates = shape.rows * shape.width, shape.count * shape.width
    if updates <= FEW_UPDATES:
        return "direct" if elements <= max(4096, 4 * updates) else "sparse"
    if elements * Sums(shape.dtype).parts <= FEW_DESTINATIONS and shape.count >= 16 * shape.rows:
        return "columns"
    return "buckets" if shape.width * shape.dtype.itemsize <= NARROW else "segments"


@dataclass(frozen=True)
class Task:
    """A shape, and where its operands are; x steps by `x_row` elements from row to row."""

    shape: Shape
    index: DType
    index_slot: int
    update_slot: int
    x_slot: int
    x_row: int
    out_slot: int
    first_code: int


@dataclass(frozen=True)
class Wanted:
    """A plan of `count` indices into `rows` rows, in one of two forms.

    "order": the positions in the order of their rows, and where those of each row start.
    "buckets" (of 2**shift rows): where each update goes within its chunk, the numbers of the
    destinations in their buckets in that order, and where each bucket starts.
    """

    form: str
    count: int
    rows: int
    shift: int = 0

    def sizes(self) -> tuple[int, ...]:
        """The bytes of its arrays."""
        if self.form == "order":
            return 4 * self.count, 4 * (self.rows + 1)
        p = _partitioned(self.count, self.rows, 1 << self.shift)
        return 2 * self.count, 2 * self.count, 4 * p.chunks * (p.buckets + 1)


PlanSlots = Sequence[int]  # of the arrays of a plan


def wants_plan(
    kernel: Scatter,
    x_shape: Sequence[int],
    shape: Sequence[int],
    index_strides: Sequence[Strides],
) -> Wanted | None:
    """The plan of the one index array that is of use, if there is one."""
    if not kernel.sums or len(index_strides) != 1 or math.prod(shape) == 0:
        return None
    (strides,) = index_strides
    lead = len(shape) - (len(x_shape) - 1)
    if not _constant(strides[lead:], shape[lead:]) or not _is_dense(shape[:lead], strides[:lead]):
        return None
    count, width = math.prod(shape[:lead]), math.prod(shape[lead:])
    real = 2 if kernel.dtype.is_complex else 1
    found = Shape(count, x_shape[0], width * real, _wide(kernel.dtype).real)
    chosen = strategy(found)
    if _is_exact(kernel) or chosen == "segments":
        return Wanted("order", count, x_shape[0])
    if chosen == "buckets":
        p = _bucketed(found)
        if p.chunk <= 1 << 16:  # places in a chunk have 16 bits
            return Wanted("buckets", count, x_shape[0], p.shift)
    return None


def _is_exact(kernel: Scatter) -> bool:
    """Whether sums are to be exact, and are not so by themselves."""
    return kernel.exact and _wide(kernel.dtype).real is dt.float32


def _wide(dtype: DType) -> DType:
    """The dtype in which updates are read."""
    return dt.float32 if dtype.is_float and dtype.itemsize == 2 else dtype


def _constant(strides: Strides, shape: Sequence[int]) -> bool:
    """Whether an array is the same everywhere along these axes."""
    return all(s == 0 or n == 1 for s, n in zip(strides, shape, strict=True))


def sum_stages(
    kernel: Scatter,
    x: tuple[Sequence[int], int, Strides],
    updates: tuple[Sequence[int], int, Strides],
    out: tuple[int, Strides],
    index_slots: Sequence[int],
    index_strides: Sequence[Strides],
    indexed: Sequence[tuple[int, int]],
    area: Area,
    first_code: int = 1,
    plan: PlanSlots | None = None,
) -> list[native.Stage]:
    """The stages that add updates to a copy of x: arguments as in `index_kernels.scatter_stages`.

    `plan` has the positions of the rows sorted already.
    """
    (x_shape, x_slot, x_strides), (shape, update_slot, update_strides) = x, updates
    dtype, depth = kernel.dtype, len(indexed)
    elements = math.prod(x_shape)
    if math.prod(shape) == 0:
        if x_slot == out[0] or not elements:
            return []
        copy, dense = copy_kernel(dtype, dtype), dense_strides(x_shape)
        return [map_stage(copy, x_shape, out[0], 0, dense, [x_slot], [x_strides])]
    lead = len(shape) - (len(x_shape) - depth)
    whole = all(_constant(own[lead:], shape[lead:]) for own in index_strides)
    taken = lead if whole else len(shape)
    width = math.prod(shape[taken:])
    stages: list[native.Stage] = []
    index, index_slot = _row_numbers(
        kernel, shape[:taken], index_slots, [s[:taken] for s in index_strides],
        out[1][:taken], indexed, width, area, first_code, stages,
    )  # fmt: skip
    wide = _wide(dtype)
    update_slot = _dense(update_slot, shape, update_strides, dtype, wide, area, stages)
    narrow = wide is not dtype
    out_slot = area(elements * wide.itemsize) if narrow else out[0]
    split = depth if whole else len(x_shape)
    x_slot, x_row = _x_rows(
        x_slot, x_shape, x_strides, split, dtype, wide, out_slot if narrow else None, area, stages
    )
    real = 2 if dtype.is_complex else 1
    task = Task(
        Shape(math.prod(shape[:taken]), elements // width, width * real, wide.real),
        index, index_slot, update_slot, x_slot, x_row * real, out_slot, first_code,
    )  # fmt: skip
    if _is_exact(kernel):
        stages += _sorted(task, area, plan, scatter_exact.exact_segments(odd=narrow))
    else:
        stages += _STRATEGIES[strategy(task.shape)](task, area, plan)
    if narrow:
        dense = dense_strides(x_shape)
        copy = copy_kernel(wide, dtype)
        stages.append(map_stage(copy, x_shape, out[0], 0, dense, [out_slot], [dense]))
    return stages


# -- operands --------------------------------------------------------------------------------------


def copy_kernel(source: DType, target: DType) -> Map:
    """The kernel that converts one dtype to another."""
    parts = 2 if source.is_complex else 1
    body = tuple(cast(load(0, source.real, p), target.real) for p in range(parts))
    return Map((source,), target, body)


def _is_dense(shape: Sequence[int], strides: Strides) -> bool:
    nest = coalesce(shape, [strides])
    return not nest.shape or nest.strides[0] == (1,)


def _dense(
    slot: int,
    shape: Sequence[int],
    strides: Strides,
    dtype: DType,
    wide: DType,
    area: Area,
    stages: list[native.Stage],
) -> int:
    """The slot of an array in row-major order and in dtype `wide`."""
    if wide is dtype and _is_dense(shape, strides):
        return slot
    copied = area(math.prod(shape) * wide.itemsize)
    kernel = copy_kernel(dtype, wide)
    stages.append(map_stage(kernel, shape, copied, 0, dense_strides(shape), [slot], [strides]))
    return copied


def _x_rows(
    slot: int,
    shape: Sequence[int],
    strides: Strides,
    split: int,
    dtype: DType,
    wide: DType,
    target: int | None,
    area: Area,
    stages: list[native.Stage],
) -> tuple[int, int]:
    """Where the rows of x are (the axes from `split` on), and the step from one to the next.

    A copy goes to `target` if that is given.
    """
    rest = shape[split:]
    if _constant(strides[:split], shape[:split]):
        return _dense(slot, rest, strides[split:], dtype, wide, area, stages), 0
    if wide is not dtype and target is not None:
        copy, dense = copy_kernel(dtype, wide), dense_strides(shape)
        stages.append(map_stage(copy, shape, target, 0, dense, [slot], [strides]))
        return target, math.prod(rest)
    return _dense(slot, shape, strides, dtype, wide, area, stages), math.prod(rest)


def _row_numbers(
    kernel: Scatter,
    shape: Sequence[int],
    slots: Sequence[int],
    strides: Sequence[Strides],
    places: Strides,
    indexed: Sequence[tuple[int, int]],
    width: int,
    area: Area,
    first_code: int,
    stages: list[native.Stage],
) -> tuple[DType, int]:
    """dtype and slot of one dense array that numbers the destinations of all rows."""
    if len(slots) == 1 and not any(places) and _is_dense(shape, strides[0]):
        return kernel.indices[0], slots[0]
    count = math.prod(shape)
    slot = area(8 * count)
    scaled = [
        tuple(s * d.itemsize for s in own) for own, d in zip(strides, kernel.indices, strict=True)
    ]
    dense = tuple(8 * s for s in dense_strides(shape))
    nest = coalesce(shape, [dense, *scaled, tuple(places)])
    head = Streams(1 + len(slots)).header(nest.rank(), (slot, *slots), [0] * (1 + len(slots)))
    steps = [w for n, s in indexed for w in (n, s // width)]
    params = (*head, width, first_code, *steps, *nest.records())
    code = index_code.ravel(tuple(kernel.indices))
    stages.append(native.Stage(code, nest.size, grain_of(nest.size), params))
    return dt.uint64, slot


# -- strategies ------------------------------------------------------------------------------------


def _power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()


def _columns(task: Task, area: Area, plan: PlanSlots | None) -> list[native.Stage]:
    s = task.shape
    sums = Sums(s.dtype)
    elements = s.rows * s.width
    chunk = max(LEAST_CHUNK, -(-s.count // (64 * MOST_CHUNKS)) * 64)
    chunks = -(-s.count // chunk)
    partial = area(chunks * elements * sums.nbytes)
    sides = 2 if task.index.kind == "i" else 1
    capacity = max(64, _power(sides * elements))
    code = scatter_code.columns(s.dtype, task.index, s.width, capacity)
    slots = (task.index_slot, task.update_slot, partial)
    params = (*slots, s.count, chunk, s.rows, task.first_code)
    join = (partial, task.x_slot, task.out_slot, chunks, elements, s.width, task.x_row)
    return [
        native.Stage(code, chunks, 1, params),
        native.Stage(scatter_code.join_columns(s.dtype), elements, 1024, join),
    ]


def _direct(task: Task, area: Area, plan: PlanSlots | None) -> list[native.Stage]:
    s = task.shape
    table = area(max(1, s.rows * s.width * Sums(s.dtype).nbytes))
    slots = (task.index_slot, task.update_slot, task.x_slot, task.out_slot, table)
    params = (*slots, s.count, s.rows, s.width, task.x_row, task.first_code)
    return [native.Stage(scatter_code.direct(s.dtype, task.index), 1, 1, params)]


def _sparse(task: Task, area: Area, plan: PlanSlots | None) -> list[native.Stage]:
    s = task.shape
    stages = []
    if task.x_slot != task.out_slot:
        copy, shape = copy_kernel(s.dtype, s.dtype), (s.rows, s.width)
        strides = (task.x_row, 1)
        dense = dense_strides(shape)
        stages = [map_stage(copy, shape, task.out_slot, 0, dense, [task.x_slot], [strides])]
    sizes = (s.count * s.width * Sums(s.dtype).nbytes, 4 * s.rows, 8 * s.count)
    slots = (task.index_slot, task.update_slot, task.out_slot, *map(area, sizes))
    params = (*slots, s.count, s.rows, s.width, task.first_code)
    return [*stages, native.Stage(scatter_code.sparse(s.dtype, task.index), 1, 1, params)]


@dataclass(frozen=True)
class _Partition:
    """How updates are sorted into buckets of 2**shift rows."""

    shift: int
    buckets: int
    chunk: int
    chunks: int

    def words(self, rows: int) -> tuple[int, ...]:
        return (rows, self.shift, self.buckets, self.chunks, self.chunk)


def _partitioned(count: int, rows: int, most_rows: int) -> _Partition:
    """Buckets of at most `most_rows` rows (a power of two), unless they are too many."""
    shift = min(most_rows, max(64, _power(rows) // LEAST_BUCKETS)).bit_length() - 1
    while -(-rows >> shift) > MOST_BUCKETS and shift < 16:
        shift += 1
    buckets = -(-rows // (1 << shift))
    chunk = min(max(LEAST_CHUNK, _power(64 * buckets)), 1 << 18)
    return _Partition(shift, buckets, chunk, -(-count // chunk))


def _partition_stage(
    task: Task, p: _Partition, row_bytes: int, area: Area, offsets: int | None = None
) -> tuple[native.Stage, tuple[int, int]]:
    """The stage, and the slots of the runs; that of the offsets may be given."""
    s = task.shape
    records = area((scatter_buckets.LOCAL_BYTES + (row_bytes or 4)) * s.count)
    if offsets is None:
        offsets = area(4 * p.chunks * (p.buckets + 1))
    slots = (task.index_slot, task.update_slot, records, offsets)
    words = (s.count, p.chunk, s.rows, p.shift, p.buckets, s.width, task.first_code)
    code = scatter_buckets.partition(task.index, row_bytes)
    return native.Stage(code, p.chunks, 1, (*slots, *words)), (records, offsets)


def _bucketed(s: Shape) -> _Partition:
    """The buckets whose accumulators fit in the cache."""
    most = 1 << ((TABLE_BYTES // (s.width * Sums(s.dtype).nbytes)).bit_length() - 1)
    return _partitioned(s.count, s.rows, min(most, 1 << 16))


def _buckets(task: Task, area: Area, plan: PlanSlots | None) -> list[native.Stage]:
    s = task.shape
    p = _bucketed(s)
    row_bytes = s.width * s.dtype.itemsize
    if plan is None:
        first, runs = _partition_stage(task, p, row_bytes, area)
    else:
        slots, numbers, offsets = plan
        moved = area(row_bytes * s.count)
        params = (task.update_slot, slots, moved, s.count, p.chunk)
        first = native.Stage(scatter_buckets.move_rows(row_bytes), p.chunks, 1, params)
        runs = (numbers, moved, offsets)
    code = scatter_buckets.sum_runs(s.dtype, s.width, 1 << p.shift, plan is not None)
    params = (*runs, task.x_slot, task.out_slot, *p.words(s.rows), task.x_row)
    return [first, native.Stage(code, p.buckets, 1, params)]


def plan_stages(task: Task, wanted: Wanted, slots: PlanSlots, area: Area) -> list[native.Stage]:
    """The stages that make a plan, whose arrays are at `slots`."""
    s = task.shape
    if s.count >= 1 << 32:
        raise ShapeError(f"scatter_add: takes fewer than 2**32 rows of updates, got {s.count}.")
    rows = PLAN_ROWS if wanted.form == "order" else 1 << wanted.shift
    p = _partitioned(s.count, s.rows, rows)
    if wanted.form == "buckets":
        places, numbers, offsets = slots
        first, (records, _) = _partition_stage(task, p, 0, area, offsets)
        params = (records, places, numbers, s.count, p.chunk)
        return [first, native.Stage(scatter_buckets.plan_slots(), p.chunks, 1, params)]
    first, runs = _partition_stage(task, p, 0, area)
    code = scatter_buckets.sort_runs(1 << p.shift)
    params = (*runs, *slots, *p.words(s.rows))
    return [first, native.Stage(code, p.buckets, 1, params)]


def _segments(task: Task, area: Area, plan: PlanSlots | None) -> list[native.Stage]:
    return _sorted(task, area, plan, scatter_segments.segments(task.shape.dtype))


def _sorted(task: Task, area: Area, plan: PlanSlots | None, code: int) -> list[native.Stage]:
    """The updates of each row together, for the kernel `code`."""
    s = task.shape
    stages = []
    if plan is None:
        wanted = Wanted("order", s.count, s.rows)
        plan = [area(n) for n in wanted.sizes()]
        stages = plan_stages(task, wanted, plan, area)
    blocks = -(-s.width // scatter_segments.BLOCK)
    slots = (*plan, task.update_slot, task.x_slot, task.out_slot)
    params = (*slots, s.count, s.rows, s.width, task.x_row, PARTS, blocks)
    return [*stages, native.Stage(code, PARTS * blocks, 1, params)]


_STRATEGIES = {
    "columns": _columns,
    "direct": _direct,
    "sparse": _sparse,
    "buckets": _buckets,
    "segments": _segments,
}
