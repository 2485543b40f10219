"""Sums by index as stages: which strategy a shape gets, and how the operands are brought to it.

    columns    few destinations: every chunk of the updates has accumulators of its own, several
               for each destination; the chunks are joined in a fixed order
    direct     few updates: one after the other
    sparse     few updates, very many destinations: the same, for those that are met
    buckets    narrow rows: updates are sorted into buckets of destinations that fit in the cache,
               then added one after the other
    segments   wide rows: positions are sorted by destination (the index plan), then the rows of
               each destination are added one after the other

The choice depends on shapes only. `columns` keeps `order.scattered_by_lanes`, all others
`order.scattered`: they give the same bits, with or without a plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pullback.compile.kernel import order
from pullback.compile.kernel.forms import Scatter
from pullback.compile.program.target import IndexArrays
from pullback.core import dtypes as dt
from pullback.core.avals import dense_strides
from pullback.core.dtypes import DType
from pullback.core.errors import ShapeError
from pullback.runtime.cpu import native
from pullback.runtime.cpu.indexing.checked import LINE, narrow_dtype
from pullback.runtime.cpu.scatter import (
    bucket_code,
    column_code,
    direct_code,
    exact_code,
    partition_code,
    segment_code,
)
from pullback.runtime.cpu.scatter import (
    numbers as scatter_numbers,
)
from pullback.runtime.cpu.scatter.operands import (
    copy_stage,
    dense_operand,
    is_constant,
    leading_axes,
    row_numbers,
    x_rows,
)
from pullback.runtime.cpu.scatter.sums import Sums

__all__ = [
    "PlanSlots",
    "Shape",
    "Wanted",
    "held_plan",
    "is_folded",
    "narrow_plan",
    "plan_stages",
    "strategy",
    "sum_stages",
    "wants_plan",
]
__tuning__ = (
    "MOST_ALONE", "FEW_ROWS", "NARROW", "PLAN_CHUNK", "TABLE_BYTES", "LEAST_BUCKETS",
    "MOST_BUCKETS", "FAR_BYTES", "PLAN_ROWS", "PARTS", "MOST_IN_A_ROW",
)  # fmt: skip

Strides = Sequence[int]
Area = Callable[[int], int]

MOST_ALONE = 1 << 15  # elements that one thread adds alone
FEW_ROWS = 2048  # whose numbers are worth to be kept in few bits
NARROW = 16  # bytes of a row that is moved into buckets
PLAN_CHUNK = 1 << 16  # indices that a task narrows: some tens of microseconds
TABLE_BYTES = 1 << 17  # of the accumulators of a bucket: part of a core's cache
LEAST_BUCKETS = 16  # so that a few threads share them evenly
MOST_BUCKETS = 2048  # whose ends stay in the L1 cache while updates are sorted
# Updates that are sorted into buckets at once. Their parts, of whole blocks, are walked side by
# side: a power of two would let these meet in the same lines of the cache.
PARTED = 16_128  # updates: 63 times 256, no power of two
FAR_BYTES = 1 << 23  # of sorted updates that are written around the caches
PLAN_ROWS = 1 << 12  # destinations of a bucket whose positions are sorted
PARTS = 64  # of equal work, into which wide rows are cut
MOST_IN_A_ROW = 16  # chunks of a task, of which each prefetches the next


@dataclass(frozen=True)
class Shape:
    """`count` rows of `width` real elements are added to, or otherwise folded into, `rows` rows."""

    count: int
    rows: int
    width: int
    sums: Sums

    @property
    def dtype(self) -> DType:
        return self.sums.dtype


def strategy(shape: Shape) -> str:
    """The name of the strategy for a shape."""
    elements, updates = shape.rows * shape.width, shape.count * shape.width
    if order.has_lanes(shape.count, shape.rows, shape.width, shape.sums.parts):
        return "columns"
    if updates <= MOST_ALONE:
        return "direct" if elements <= max(4096, 4 * updates) else "sparse"
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
    """A plan of `count` indices into `rows` rows, in one of four forms.

    "narrow": the row numbers, checked, in 8 or 16 bits.
    "pairs": the cells of pairs of row numbers, in 16 bits.
    "order": the positions in the order of their rows, and where those of each row start.
    "buckets" (of 2**shift rows): the positions in each chunk in the order of their buckets, the
    numbers of the destinations in their buckets in that order, and where each bucket starts.
    """

    form: str
    count: int
    rows: int
    shift: int = 0

    def sizes(self) -> tuple[int, ...]:
        """The bytes of its arrays."""
        if self.form == "narrow":
            return (narrow_dtype(self.rows).itemsize * self.count,)
        if self.form == "pairs":
            return (2 * -(-self.count // 2),)
        if self.form == "order":
            return 4 * self.count, 4 * (self.rows + 1)
        p = _partitioned(self.count, self.rows, 1 << self.shift)
        return *[-(-2 * self.count // LINE) * LINE] * 2, 4 * p.chunks * (p.buckets + 1)


PlanSlots = Sequence[int]  # of the arrays of a plan


def wants_plan(
    kernel: Scatter,
    x_shape: Sequence[int],
    shape: Sequence[int],
    index_strides: Sequence[Strides],
) -> Wanted | None:
    """The plan of the one index array that is of use, if there is one."""
    lead = leading_axes(x_shape, shape, index_strides)
    if not is_folded(kernel) or lead is None:
        return None
    count, width = math.prod(shape[:lead]), math.prod(shape[lead:])
    real = 2 if kernel.dtype.is_complex else 1
    found = Shape(count, x_shape[0], width * real, _accumulators(kernel))
    chosen = strategy(found)
    if _is_exact(kernel) or chosen == "segments":
        return Wanted("order", count, x_shape[0])
    if chosen == "columns":
        paired = order.is_paired(found.rows, found.width, found.sums.parts)
        form = "pairs" if paired else "narrow"
        return narrow_plan(kernel.indices[0], count, x_shape[0], form)
    if chosen == "buckets":
        return Wanted("buckets", count, x_shape[0], _bucketed(found).shift)
    return None


def narrow_plan(index: DType, count: int, rows: int, form: str = "narrow") -> Wanted | None:
    """The plan of narrow row numbers, or of their pairs, if indices of this dtype are wider."""
    shorter = rows <= FEW_ROWS and narrow_dtype(rows).itemsize < index.itemsize
    return Wanted(form, count, rows) if shorter and count > MOST_ALONE else None


def held_plan(count: int, rows: int) -> Wanted:
    """The plan that is made at once for someone who holds it."""
    return Wanted("narrow" if rows <= FEW_ROWS else "order", count, rows)


def is_folded(kernel: Scatter) -> bool:
    """Whether the strategies here do what the kernel does."""
    return kernel.sums or (bool(kernel.fold) and not kernel.dtype.is_complex)


def _accumulators(kernel: Scatter) -> Sums:
    return Sums(_wide(kernel.dtype).real, kernel.fold or "add")


def _is_exact(kernel: Scatter) -> bool:
    """Whether sums are to be exact, and are not so by themselves."""
    return kernel.exact and _wide(kernel.dtype).real is dt.float32


def _wide(dtype: DType) -> DType:
    """The dtype in which updates are read."""
    return dt.float32 if dtype.is_float and dtype.itemsize == 2 else dtype


def sum_stages(
    kernel: Scatter,
    x: tuple[Sequence[int], int, Strides],
    updates: tuple[Sequence[int], int, Strides],
    out: tuple[int, Strides],
    indices: IndexArrays,
    area: Area,
    plan: PlanSlots | None = None,
) -> list[native.Stage]:
    """The stages that add updates to a copy of x: arguments as in `scatter_stages.scatter_stages`.

    `plan` has the positions of the rows sorted already.
    """
    (x_shape, x_slot, x_strides), (shape, update_slot, update_strides) = x, updates
    index_slots, index_strides, indexed, first_code = indices
    dtype, depth = kernel.dtype, len(indexed)
    elements = math.prod(x_shape)
    if math.prod(shape) == 0:
        if x_slot == out[0] or not elements:
            return []
        return [copy_stage(dtype, dtype, x_shape, out[0], x_slot, x_strides)]
    lead = len(shape) - (len(x_shape) - depth)
    whole = all(is_constant(own[lead:], shape[lead:]) for own in index_strides)
    taken = lead if whole else len(shape)
    width = math.prod(shape[taken:])
    stages: list[native.Stage] = []
    index, index_slot = row_numbers(
        kernel, shape[:taken], index_slots, [s[:taken] for s in index_strides],
        out[1][:taken], indexed, width, area, first_code, stages,
    )  # fmt: skip
    wide = _wide(dtype)
    update_slot = dense_operand(update_slot, shape, update_strides, dtype, wide, area, stages)
    narrow = wide is not dtype
    out_slot = area(elements * wide.itemsize) if narrow else out[0]
    split = depth if whole else len(x_shape)
    x_slot, x_row = x_rows(
        x_slot, x_shape, x_strides, split, dtype, wide, out_slot if narrow else None, area, stages
    )
    real = 2 if dtype.is_complex else 1
    task = Task(
        Shape(math.prod(shape[:taken]), elements // width, width * real, _accumulators(kernel)),
        index, index_slot, update_slot, x_slot, x_row * real, out_slot, first_code,
    )  # fmt: skip
    if _is_exact(kernel):
        stages += _sorted(task, area, plan, exact_code.exact_segments(odd=narrow))
    else:
        stages += _STRATEGIES[strategy(task.shape)](task, area, plan)
    if narrow:
        dense = dense_strides(x_shape)
        stages.append(copy_stage(wide, dtype, x_shape, out[0], out_slot, dense))
    return stages


# -- strategies ------------------------------------------------------------------------------------


def _power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()


def _columns(task: Task, area: Area, plan: PlanSlots | None) -> list[native.Stage]:
    s = task.shape
    sums = s.sums
    elements = s.rows * s.width
    chunk = order.chunk_of_updates(s.count)
    chunks = -(-s.count // chunk)
    partial = area(chunks * elements * sums.nbytes)
    number = narrow_dtype(s.rows)
    index = task.index if plan is None else None
    paired = order.is_paired(s.rows, s.width, s.sums.parts)
    capacity = 0 if paired else max(64, _power(elements))
    code = column_code.columns(s.sums, index, number, s.width, capacity, paired)
    params = column_code.COLUMNS.packed(
        index=task.index_slot if plan is None else plan[0], updates=task.update_slot,
        partial=partial, count=s.count, chunk=chunk, rows=s.rows, width=s.width,
        code=task.first_code,
    )  # fmt: skip
    join = column_code.JOINED.packed(
        partial=partial, x=task.x_slot, out=task.out_slot, chunks=chunks, elements=elements,
        row=s.width, x_row=task.x_row,
    )  # fmt: skip
    return [
        native.Stage(code, chunks, 1, params),
        native.Stage(column_code.join_columns(s.sums), elements, 1024, join),
    ]


def _direct(task: Task, area: Area, plan: PlanSlots | None) -> list[native.Stage]:
    s = task.shape
    table = area(max(1, s.rows * s.width * s.sums.nbytes))
    params = direct_code.DIRECT.packed(
        index=task.index_slot, updates=task.update_slot, x=task.x_slot, out=task.out_slot,
        table=table, count=s.count, rows=s.rows, width=s.width, x_row=task.x_row,
        code=task.first_code,
    )  # fmt: skip
    return [native.Stage(direct_code.direct(s.sums, task.index), 1, 1, params)]


def _sparse(task: Task, area: Area, plan: PlanSlots | None) -> list[native.Stage]:
    s = task.shape
    stages = []
    if task.x_slot != task.out_slot:
        shape, strides = (s.rows, s.width), (task.x_row, 1)
        stages = [copy_stage(s.dtype, s.dtype, shape, task.out_slot, task.x_slot, strides)]
    params = direct_code.SPARSE.packed(
        index=task.index_slot, updates=task.update_slot, out=task.out_slot,
        table=area(s.count * s.width * s.sums.nbytes), places=area(4 * s.rows),
        keys=area(8 * s.count), count=s.count, rows=s.rows, width=s.width, code=task.first_code,
    )  # fmt: skip
    return [*stages, native.Stage(direct_code.sparse(s.sums, task.index), 1, 1, params)]


@dataclass(frozen=True)
class _BucketPartition:
    """How updates are sorted into buckets of 2**shift rows."""

    shift: int
    buckets: int
    chunk: int
    chunks: int

    @property
    def grain(self) -> int:
        """Chunks that a task sorts one after the other, so that each can ask for the next."""
        return max(1, min(MOST_IN_A_ROW, self.chunks // PARTS))

    def words(self, rows: int) -> dict[str, int]:
        """What kernels of sorted updates want to know of them."""
        return {
            "rows": rows, "shift": self.shift, "buckets": self.buckets, "chunks": self.chunks,
            "chunk": self.chunk,
        }  # fmt: skip


def _partitioned(count: int, rows: int, most_rows: int) -> _BucketPartition:
    """Buckets of at most `most_rows` rows (a power of two), unless they are too many."""
    shift = min(most_rows, max(64, _power(rows) // LEAST_BUCKETS)).bit_length() - 1
    while -(-rows >> shift) > MOST_BUCKETS and shift < 16:
        shift += 1
    buckets = -(-rows // (1 << shift))
    return _BucketPartition(shift, buckets, PARTED, -(-count // PARTED))


def _partition_stage(
    task: Task, p: _BucketPartition, row_bytes: int, area: Area, slots: dict[str, int] | None = None
) -> tuple[native.Stage, tuple[int, int, int]]:
    """The stage, and the slots of the runs: locals, moved, offsets; some may be given."""
    s = task.shape
    sizes = {
        "locals": partition_code.LOCAL_BYTES * s.count,
        "moved": (row_bytes or 4) * s.count,
        "offsets": 4 * p.chunks * (p.buckets + 1),
    }
    found = slots or {}
    locals_, moved, offsets = (
        found[name] if name in found else area(n) for name, n in sizes.items()
    )
    far = sizes["locals"] + sizes["moved"] > FAR_BYTES
    number = narrow_dtype(s.rows)
    bucket = narrow_dtype(p.buckets)
    code = partition_code.partition(task.index, number, bucket, row_bytes, p.chunk, far)
    params = partition_code.PARTITION.packed(
        index=task.index_slot, updates=task.update_slot, locals=locals_, moved=moved,
        offsets=offsets, count=s.count, chunk=p.chunk, rows=s.rows, shift=p.shift,
        buckets=p.buckets, width=s.width, code=task.first_code,
    )  # fmt: skip
    return native.Stage(code, p.chunks, p.grain, params), (locals_, moved, offsets)


def _named(runs: tuple[int, int, int]) -> dict[str, int]:
    """The slots of sorted updates, by name."""
    return dict(zip(("locals", "moved", "offsets"), runs, strict=True))


def _bucketed(s: Shape) -> _BucketPartition:
    """The buckets whose accumulators fit in the cache."""
    most = 1 << ((TABLE_BYTES // (s.width * s.sums.nbytes)).bit_length() - 1)
    return _partitioned(s.count, s.rows, min(most, 1 << 16))


def _buckets(task: Task, area: Area, plan: PlanSlots | None) -> list[native.Stage]:
    s = task.shape
    p = _bucketed(s)
    row_bytes = s.width * s.dtype.itemsize
    if plan is None:
        first, runs = _partition_stage(task, p, row_bytes, area)
    else:
        places, numbers, offsets = plan
        nbytes = row_bytes * s.count
        moved = area(nbytes)
        params = partition_code.MOVED.packed(
            updates=task.update_slot, places=places, rows=moved, count=s.count, chunk=p.chunk
        )
        code = partition_code.move_rows(row_bytes, nbytes > FAR_BYTES)
        first = native.Stage(code, p.chunks, p.grain, params)
        runs = (numbers, moved, offsets)
    code = bucket_code.sum_runs(s.sums, s.width, 1 << p.shift)
    params = bucket_code.SUMMED.packed(
        **_named(runs), x=task.x_slot, out=task.out_slot, **p.words(s.rows), x_row=task.x_row
    )
    return [first, native.Stage(code, p.buckets, 1, params)]


def plan_stages(task: Task, wanted: Wanted, slots: PlanSlots, area: Area) -> list[native.Stage]:
    """The stages that make a plan, whose arrays are at `slots`."""
    s = task.shape
    if s.count >= 1 << 32:
        raise ShapeError(f"scatter_add: takes fewer than 2**32 rows of updates, got {s.count}.")
    if wanted.form in ("narrow", "pairs"):
        code = scatter_numbers.narrow(task.index, narrow_dtype(s.rows), wanted.form == "pairs")
        (numbers,) = slots
        params = scatter_numbers.NARROWED.packed(
            index=task.index_slot, numbers=numbers, count=s.count, chunk=PLAN_CHUNK, rows=s.rows,
            width=1, code=task.first_code,
        )  # fmt: skip
        return [native.Stage(code, -(-s.count // PLAN_CHUNK), 1, params)]
    rows = PLAN_ROWS if wanted.form == "order" else 1 << wanted.shift
    p = _partitioned(s.count, s.rows, rows)
    if wanted.form == "buckets":
        places, numbers, offsets = slots
        given = {"locals": numbers, "offsets": offsets}
        first, (_, positions, _) = _partition_stage(task, p, 0, area, given)
        params = partition_code.PLACES.packed(
            positions=positions, places=places, count=s.count, chunk=p.chunk
        )
        return [first, native.Stage(partition_code.plan_places(), p.chunks, 1, params)]
    first, runs = _partition_stage(task, p, 0, area)
    code = bucket_code.sort_runs(1 << p.shift)
    positions, starts = slots
    params = bucket_code.SORTED.packed(
        **_named(runs), order=positions, starts=starts, **p.words(s.rows)
    )
    return [first, native.Stage(code, p.buckets, 1, params)]


def _segments(task: Task, area: Area, plan: PlanSlots | None) -> list[native.Stage]:
    return _sorted(task, area, plan, segment_code.segments(task.shape.sums))


def _sorted(task: Task, area: Area, plan: PlanSlots | None, code: int) -> list[native.Stage]:
    """The updates of each row together, for the kernel `code`."""
    s = task.shape
    stages = []
    if plan is None:
        wanted = Wanted("order", s.count, s.rows)
        plan = [area(n) for n in wanted.sizes()]
        stages = plan_stages(task, wanted, plan, area)
    blocks = -(-s.width // segment_code.BLOCK)
    positions, starts = plan
    params = segment_code.SEGMENTS.packed(
        order=positions, starts=starts, updates=task.update_slot, x=task.x_slot,
        out=task.out_slot, count=s.count, rows=s.rows, width=s.width, x_row=task.x_row,
        parts=PARTS, blocks=blocks,
    )  # fmt: skip
    return [*stages, native.Stage(code, PARTS * blocks, 1, params)]


_STRATEGIES = {
    "columns": _columns,
    "direct": _direct,
    "sparse": _sparse,
    "buckets": _buckets,
    "segments": _segments,
}
