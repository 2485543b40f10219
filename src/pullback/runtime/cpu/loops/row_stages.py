"""Row kernels as stages: places of their streams, memory of their folds, and tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pullback.compile.kernel.forms import Reduce
from pullback.compile.kernel.order import BLOCK, LANES
from pullback.compile.schedule.groups import Stored
from pullback.compile.schedule.row_kernel import RowKernel, RowPlan
from pullback.runtime.cpu.loops import reduce_code, row_code
from pullback.runtime.cpu.loops.map_stages import weight
from pullback.runtime.cpu.loops.tree_code import (
    FoldWriter,
)
from pullback.runtime.cpu.native import Stage

__all__ = ["row_stages"]
__tuning__ = ("TASK_ELEMENTS", "ENOUGH_TASKS", "LANE_BYTES")

TASK_ELEMENTS = 1 << 16  # of a task: some tens of microseconds
ENOUGH_TASKS = 16  # so that a few threads share the work evenly
LANE_BYTES = 1 << 16  # of the lanes that a task has at hand
LINE = 64  # bytes of a cache line: accumulators of tasks do not share one


def row_stages(
    plan: RowPlan,
    rows: int,
    length: int,
    slot: Callable[[Stored, int], int],
    area: Callable[[int], int],
) -> list[Stage]:
    """The stages of a plan; `slot` finds element `offset` of a value, `area` scratch memory."""
    kernel = plan.kernel
    blocks = -(-rows // BLOCK)
    together = _lanes_together(kernel, blocks, length)
    places = [place for _, place in sorted(plan.places.items())]
    streams = [slot(p.stored, p.offset) for p in places]
    steps = [p.stride * p.stored.dtype.itemsize for p in places]
    lines = blocks * LANES * length
    columns: list[tuple[int, int]] = []  # slots of accumulators, and their pitches
    wholes: list[tuple[int, int]] = []
    after: list[Stage] = []
    for reduce, result in zip(kernel.columns, plan.columns, strict=True):
        lanes, pitch = _accumulators(reduce, lines, area)
        columns.append((lanes, pitch))
        joined = row_code.COLUMN.packed(
            out=slot(result, 0), lanes=lanes, pitch=pitch, rows=rows, columns=length
        )
        grain = max(1, TASK_ELEMENTS // (blocks * LANES))
        after.append(Stage(row_code.column_kernel(reduce), length, grain, joined))
    for reduce, result in zip(kernel.wholes, plan.wholes, strict=True):
        partials, pitch = _accumulators(reduce, rows, area)
        wholes.append((partials, pitch))
        joined = reduce_code.MERGED.packed(
            groups=rows, partials=partials, pitch=pitch, out=slot(result, 0)
        )
        after.append(Stage(reduce_code.merge(reduce), 1, 1, joined))
    params = row_code.params(kernel).packed(
        rows=rows, length=length, together=together, stream=streams, stream_step=steps,
        column=[at for at, _ in columns], column_pitch=[pitch for _, pitch in columns],
        whole=[at for at, _ in wholes], whole_pitch=[pitch for _, pitch in wholes],
    )  # fmt: skip
    if kernel.columns:
        units, grain = blocks * BLOCK, (BLOCK // LANES) << together
    else:
        units, grain = rows, max(1, TASK_ELEMENTS // (length * _weight(kernel)))
    code = row_code.row_kernel(kernel, row_code.Lengths.of(length))
    return [Stage(code, units, grain, params), *after]


def _accumulators(reduce: Reduce, count: int, area: Callable[[int], int]) -> tuple[int, int]:
    """Slot of the accumulators of `count` parts of a fold, and bytes from one array to the next."""
    dtypes = FoldWriter(reduce).dtypes
    pitch = math.ceil(count * max(d.itemsize for d in dtypes) / LINE) * LINE
    return area(pitch * len(dtypes)), pitch


def _lanes_together(kernel: RowKernel, blocks: int, length: int) -> int:
    """The logarithm of how many lanes of a block a task takes."""
    nbytes = sum(FoldWriter(r).nbytes for r in kernel.columns) * length
    together = LANES.bit_length() - 1
    while together:
        few = blocks * (LANES >> together) < ENOUGH_TASKS
        large = (BLOCK // LANES << together) * length > TASK_ELEMENTS
        if (nbytes << together) <= LANE_BYTES and not (few and large):
            break
        together -= 1
    return together


def _weight(kernel: RowKernel) -> int:
    def roots(reduces: Sequence[Reduce]):
        return [e for r in reduces for e in (*r.element, *r.combine)]

    found = []
    for p in kernel.passes:
        found += [e for _, body in p.stores for e in body]
        found += roots([r for _, r in p.folds]) + roots(p.wholes)
    return weight(found)
