"""The plans of index arrays, made by programs of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

from pullback.compile.kernel.forms import Gather
from pullback.compile.program.index_plans import IndexPlan, PlanCache
from pullback.compile.program.stages import Program
from pullback.core.dtypes import DType
from pullback.runtime.cpu import native
from pullback.runtime.cpu.indexing import gather_code
from pullback.runtime.cpu.indexing.gather_stages import plain_gather
from pullback.runtime.cpu.native.stages import encode
from pullback.runtime.cpu.scatter.strategies import Shape, Task, Wanted, narrow_plan, plan_stages
from pullback.runtime.cpu.scatter.sums import Sums

__all__ = ["PLANS", "build", "gather_wants_plan"]

Strides = Sequence[int]

_LINE = 64  # bytes of a cache line, at which every scratch area starts


@lru_cache(maxsize=256)
def _program(index: DType, wanted: Wanted) -> Callable[..., Any]:
    """The function of an index buffer that gives the arrays of a plan in one buffer."""
    arena, used, sizes = 2, 0, wanted.sizes()
    pointers = [(0, at) for at in accumulate(sizes[:-1], initial=0)]

    def area(nbytes: int) -> int:
        nonlocal used
        pointers.append((arena, used))
        used += -(-nbytes // _LINE) * _LINE
        return arena + len(pointers)

    task = Task(Shape(wanted.count, wanted.rows, 1, Sums(index)), index, 1, 1, 1, 0, 0, 1)
    slots = range(arena + 1, arena + 1 + len(sizes))
    stages = plan_stages(task, wanted, slots, area)
    return encode(Program(1, sum(sizes), (used,), pointers, stages, True))


def build(buf: native.Buffer, index: DType, wanted: Any) -> IndexPlan | tuple[int, int, int]:
    """The plan of dense indices, or (code, position, value) of a bad one."""
    made = _program(index, wanted)(buf)
    if isinstance(made, tuple):
        return made
    starts = accumulate(wanted.sizes()[:-1], initial=0)
    return IndexPlan(tuple(native.view(made, at) for at in starts), made.nbytes)


def gather_wants_plan(
    kernel: Gather,
    shape: Sequence[int],
    x_strides: Strides,
    index_strides: Sequence[Strides],
    size: int,
) -> Wanted | None:
    """The plan that is of use to read from `size` rows, if there is one."""
    plain = plain_gather(shape, x_strides, index_strides)
    if plain is None or plain[1] * kernel.dtype.itemsize > gather_code.MOST_WORD:
        return None
    return narrow_plan(kernel.indices[0], plain[0], size)


PLANS = PlanCache(build, native.is_foreign)
