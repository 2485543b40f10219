"""Values of which there is one for each key, as long as somebody has it."""

from __future__ import annotations

from collections.abc import Hashable
from threading import RLock
from typing import Generic, TypeVar
from weakref import ref

__all__ = ["Interned"]

V = TypeVar("V")

LEAST = 1024  # entries from which on it pays to look for dead ones


class Interned(Generic[V]):
    """Unlike `weakref.WeakValueDictionary` this runs no Python code when a value dies: an interrupt
    that came during such code would be lost, and an endless loop would go on. Entries of dead
    values are dropped when there may be as many of them as of others.
    """

    def __init__(self) -> None:
        self._refs: dict[Hashable, ref[V]] = {}
        self._lock = RLock()
        self._limit = LEAST

    def get(self, key: Hashable) -> V | None:
        found = self._refs.get(key)
        return None if found is None else found()

    def add(self, key: Hashable, value: V) -> V:
        """The value to use from now on: `value`, or that of a thread that was quicker."""
        with self._lock:
            found = self.get(key)
            if found is not None:
                return found
            self._refs[key] = ref(value)
            if len(self._refs) > self._limit:
                self._refs = {k: r for k, r in self._refs.items() if r() is not None}
                self._limit = max(LEAST, 2 * len(self._refs))
            return value

    def __len__(self) -> int:
        """Entries, dead ones included."""
        return len(self._refs)
