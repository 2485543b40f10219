"""Index plans: the positions of an index array sorted by what they point at, kept for the next use.

A plan is found by the buffer of its indices, which never changes, and dies with it. The second sum
with the same buffer makes it; sums give the same bits with and without. The bytes of all plans are
bounded: the one that was not used for longest goes first.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

from pullback.core.dtypes import DType
from pullback.runtime.cpu import native
from pullback.runtime.cpu.scatter_kernels import Shape, Task, Wanted, plan_stages

__all__ = ["PLANS", "Plan", "PlanCache", "build"]

DEFAULT_LIMIT = 1 << 29  # bytes
_LINE = 64

Key = tuple[int, Wanted]


class Plan:
    """The arrays of a plan: see `scatter_kernels.Wanted`."""

    __slots__ = ("__weakref__", "arrays", "nbytes")

    def __init__(self, memory: native.Buffer, sizes: Sequence[int]):
        starts = accumulate(sizes, initial=0)
        self.arrays = tuple(native.view(memory, at) for at, _ in zip(starts, sizes, strict=False))
        self.nbytes = memory.nbytes


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

    task = Task(Shape(wanted.count, wanted.rows, 1, index), index, 1, 1, 1, 0, 0, 1)
    slots = range(arena + 1, arena + 1 + len(sizes))
    stages = plan_stages(task, wanted, slots, area)
    return native.arena_program(1, sum(sizes), used, pointers, stages, True)


def build(buf: native.Buffer, index: DType, wanted: Wanted) -> Plan | tuple:
    """The plan of dense indices, or (code, position, value) of a bad one."""
    made = _program(index, wanted)(buf)
    return made if isinstance(made, tuple) else Plan(made, wanted.sizes())


class _Entry:
    """What is known of a buffer: `plan` is None after the first use, `held` counts who keeps it."""

    __slots__ = ("held", "plan", "ref")

    def __init__(self, ref: weakref.ref):
        self.ref = ref
        self.plan: Plan | None = None
        self.held = 0


class PlanCache:
    """Plans by index buffer and what is wanted."""

    def __init__(self, limit: int):
        self._limit = limit
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.RLock()  # a buffer may die, and call back, at any point

    @property
    def nbytes(self) -> int:
        """The bytes of all plans."""
        return self._nbytes

    @property
    def limit(self) -> int:
        """The most bytes of plans that nobody holds."""
        return self._limit

    def set_limit(self, nbytes: int) -> None:
        with self._lock:
            self._limit = nbytes
            self._shrink()

    def find(self, buf: native.Buffer, index: DType, wanted: Wanted) -> Plan | None:
        """The plan of a buffer, made at its second use; None before, or if an index is bad."""
        with self._lock:
            entry = self._entry(buf, wanted)
            if entry is None:
                self._add(buf, wanted)
                return None
            if entry.plan is not None:
                self._entries.move_to_end((id(buf), wanted))
                return entry.plan
        if sum(wanted.sizes()) > self._limit:
            return None
        made = build(buf, index, wanted)
        return None if isinstance(made, tuple) else self._keep(buf, wanted, made, 0)

    def hold(self, buf: native.Buffer, wanted: Wanted, plan: Plan, by: object) -> None:
        """Keep a plan, whatever the limit, as long as the object `by` lives."""
        self._keep(buf, wanted, plan, 1)
        weakref.finalize(by, self._release, (id(buf), wanted), weakref.ref(buf))

    def _entry(self, buf: native.Buffer, wanted: Wanted) -> _Entry | None:
        entry = self._entries.get((id(buf), wanted))
        return entry if entry is not None and entry.ref() is buf else None

    def _add(self, buf: native.Buffer, wanted: Wanted) -> _Entry:
        key = (id(buf), wanted)
        entry = _Entry(weakref.ref(buf, lambda ref: self._forget(key, ref)))
        self._entries[key] = entry
        return entry

    def _keep(self, buf: native.Buffer, wanted: Wanted, plan: Plan, held: int) -> Plan:
        with self._lock:
            entry = self._entry(buf, wanted) or self._add(buf, wanted)
            if entry.plan is None:
                entry.plan = plan
                self._nbytes += plan.nbytes
            entry.held += held
            self._entries.move_to_end((id(buf), wanted))
            self._shrink()
            return plan

    def _release(self, key: Key, ref: weakref.ref) -> None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and entry.ref() is ref() is not None:
                entry.held -= 1
                self._shrink()

    def _forget(self, key: Key, ref: weakref.ref) -> None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and entry.ref is ref:
                del self._entries[key]
                if entry.plan is not None:
                    self._nbytes -= entry.plan.nbytes

    def _shrink(self) -> None:
        """Drop plans that nobody holds, the least recently used first, down to the limit."""
        for entry in list(self._entries.values()):
            if self._nbytes <= self._limit:
                return
            if entry.plan is not None and not entry.held:
                self._nbytes -= entry.plan.nbytes
                entry.plan = None


PLANS = PlanCache(DEFAULT_LIMIT)
