"""Values of which there is one for each key, as long as somebody has it."""

from __future__ import annotations

from collections.abc import Hashable
from threading import RLock
from typing import Generic, TypeVar
from weakref import ref

__all__ = ["Interned", "Unhashed"]

V = TypeVar("V")

LEAST = 1024  # entries from which on it pays to look for dead ones


class Unhashed(TypeError):
    """Of what is no key, because it stands for many values: see `compile.program.sizes`."""


class Interned(Generic[V]):
    """Unlike `weakref.WeakValueDictionary` this runs no Python code when a value dies: an interrupt
    that came during such code would be lost, and an endless loop would go on. Entries of dead
    values are dropped when there may be as many of them as of others.
    """

    def __init__(self) -> None:
        self._refs: dict[Hashable, ref[V]] = {}
        # Of whoever replaces entries or takes them away; to add one needs none.
        self._lock = RLock()
        self._limit = LEAST

    def get(self, key: Hashable) -> V | None:
        found = self._refs.get(key)
        return None if found is None else found()

    def add(self, key: Hashable, value: V) -> V:
        """The value to use from now on: `value`, or that of a thread that was quicker."""
        refs, own = self._refs, ref(value)
        if refs.setdefault(key, own) is not own:
            with self._lock:
                kept = refs.setdefault(key, own)
                if kept is not own:
                    found = kept()
                    if found is not None:
                        return found
                    refs[key] = own
        if len(refs) > self._limit:
            self._drop_dead()
        return value

    def _drop_dead(self) -> None:
        refs = self._refs
        with self._lock:
            for key, kept in refs.copy().items():
                if kept() is None:  # nobody replaces it without the lock
                    del refs[key]
            self._limit = max(LEAST, 2 * len(refs))

    def __len__(self) -> int:
        """Entries, dead ones included."""
        return len(self._refs)
