"""Index plans: the positions of an index array sorted by what they point at, kept for the next use.

A plan is found by the buffer of its indices, and dies with it, or when these change; memory that
is shared with others may change, and gets none. The second sum
with the same buffer makes it; sums give the same bits with and without. The bytes of all plans are
bounded: the one that was not used for longest goes first.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from pullback.compile.program.target import WantedPlan
from pullback.core.dtypes import DType

__all__ = ["IndexPlan", "PlanCache"]

DEFAULT_LIMIT = 1 << 29  # bytes: a plan of 100 million narrow indices has 100 MB

Key = tuple[int, DType, WantedPlan]


class IndexPlan:
    """The arrays of a plan, and their bytes."""

    __slots__ = ("__weakref__", "arrays", "nbytes")

    def __init__(self, arrays: tuple[Any, ...], nbytes: int):
        self.arrays, self.nbytes = arrays, nbytes


Build = Callable[[Any, DType, WantedPlan], IndexPlan | tuple[int, int, int]]


class _Entry:
    """What is known of a buffer: `plan` is None after the first use."""

    __slots__ = ("plan", "ref")

    def __init__(self, ref: weakref.ref):
        self.ref = ref
        self.plan: IndexPlan | None = None


class PlanCache:
    """Plans by index buffer and what is wanted.

    `build(buffer, dtype, wanted)` makes a plan, or gives (code, position, value) of a bad index;
    `shares(buffer)` is whether others may write to it.
    """

    def __init__(self, build: Build, shares: Callable[[Any], bool], limit: int = DEFAULT_LIMIT):
        self._build, self._shares, self._limit = build, shares, limit
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._held: Counter[int] = Counter()  # buffers by their id, and how many hold their plans
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

    def find(self, buf: Any, index: DType, wanted: WantedPlan) -> IndexPlan | None:
        """The plan of a buffer, made at its second use, at its first if somebody holds its plans.

        None before that, if an index is bad, or if the indices may change under our hands.
        """
        if self._shares(buf):
            return None
        key = (id(buf), index, wanted)
        with self._lock:
            entry, held = self._entry(key, buf), id(buf) in self._held
            if entry is not None and entry.plan is not None:
                self._entries.move_to_end(key)
                return entry.plan
            if entry is None and not held:
                self._add(key, buf)
                return None
        if not held and sum(wanted.sizes()) > self._limit:
            return None
        made = self._build(buf, index, wanted)
        return None if isinstance(made, tuple) else self.keep(buf, index, wanted, made)

    def keep(self, buf: Any, index: DType, wanted: WantedPlan, plan: IndexPlan) -> IndexPlan:
        """Keep a plan that was made."""
        key = (id(buf), index, wanted)
        with self._lock:
            entry = self._entry(key, buf) or self._add(key, buf)
            if entry.plan is None:
                entry.plan = plan
                self._nbytes += plan.nbytes
            self._entries.move_to_end(key)
            self._shrink()
            return plan

    def hold(self, buf: Any, by: object) -> None:
        """Keep all plans of a buffer, whatever the limit, as long as `by`, which has it, lives."""
        with self._lock:
            self._held[id(buf)] += 1
        weakref.finalize(by, self._release, id(buf))

    def bytes_of(self, buf: Any) -> int:
        """The bytes of the plans of one buffer."""
        with self._lock:
            entries = [e for (owner, *_), e in self._entries.items() if owner == id(buf)]
            return sum(e.plan.nbytes for e in entries if e.plan is not None)

    def forget(self, buf: Any) -> None:
        """Drop the plans of a buffer, whose indices are about to change."""
        if not self._entries:
            return
        with self._lock:
            for key, entry in list(self._entries.items()):
                if key[0] == id(buf):
                    self._forget(key, entry.ref)

    def _entry(self, key: Key, buf: Any) -> _Entry | None:
        entry = self._entries.get(key)
        return entry if entry is not None and entry.ref() is buf else None

    def _add(self, key: Key, buf: Any) -> _Entry:
        entry = _Entry(weakref.ref(buf, lambda ref: self._forget(key, ref)))
        self._entries[key] = entry
        return entry

    def _release(self, owner: int) -> None:
        with self._lock:
            self._held[owner] -= 1
            if not self._held[owner]:
                del self._held[owner]
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
        for (owner, *_), entry in list(self._entries.items()):
            if self._nbytes <= self._limit:
                return
            if entry.plan is not None and owner not in self._held:
                self._nbytes -= entry.plan.nbytes
                entry.plan = None
