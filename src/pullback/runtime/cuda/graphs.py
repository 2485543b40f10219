"""Programs as graphs of launches: one line of nodes, replayed by a single call of the driver.

A graph has scratch memory of its own. Nodes whose arguments have changed since the last replay get
new ones before the next; those are what touches inputs and outputs.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from threading import Lock, RLock
from typing import Any
from weakref import finalize, ref

from pullback.runtime.cuda.driver import Driver
from pullback.runtime.cuda.launcher import ADD, REPLAY
from pullback.runtime.cuda.memory import Buffer

__all__ = ["LEAST_NODES", "MOST_NODES", "RETIRED", "Graphs", "ProgramGraph"]

# Building a graph takes some 5 us a node, and as long again to make it executable (H200,
# 2026-11-16).
LEAST_NODES = 3  # of a graph: one of two nodes takes as long as two launches
MOST_NODES = 1 << 15  # of a graph, which is a third of a second to build: longer loops are launched
MOST_BYTES = 1 << 31  # of scratch memory that the graphs of a GPU hold together
RETIRED = -5  # the status of a graph that has made room for others


class ProgramGraph:
    """A program as a graph: `play` walks its table, and `scratch` is its memory.

    `stop` is the address of the word that ends its loops, if it has some.
    """

    def __init__(
        self,
        graphs: Graphs,
        play: Callable[..., int],
        sizes: tuple[int, int, int],
        scratch: Buffer,
        record: int,
        stop: int,
    ):
        nodes, values, numbers = sizes
        driver = graphs.driver
        self._play, self._scratch, self._record = play, scratch, record
        self._nodes = (ctypes.c_void_p * nodes)()
        self._values = (ctypes.c_int64 * values)()
        self._waits = (ctypes.c_void_p * nodes)()
        self._numbers = (ctypes.c_int64 * numbers)()
        self._numbers[0] = stop
        at = ctypes.addressof
        drawn = driver.new_graph()
        self._state = (ctypes.c_int64 * 15)(
            *(drawn, 0, at(self._nodes), at(self._values), 0, 0, nodes, values),
            *(0, at(self._waits), 0, 0, at(self._numbers), 0, 0),
        )
        self._address, self._lock, self._driver = at(self._state), Lock(), driver
        self.was_used = True
        # Garbage is collected in any thread, at any point: nothing is asked of the driver there.
        self._end = finalize(self, graphs.dead.append, self._state)
        self._end.atexit = False  # the driver may be gone by then

    @property
    def nbytes(self) -> int:
        """Bytes of its scratch memory."""
        return self._scratch.nbytes

    def build(self, stream: int, out: int, buffers: tuple[Any, ...]) -> int:
        """Add the nodes, with the arguments of a call; the status."""
        status = self._walk(ADD, stream, out, buffers)
        if status == 0:
            self._state[1] = self._driver.executable(self._state[0])
        return status

    def replay(self, stream: int, out: int, buffers: tuple[Any, ...]) -> int:
        """Launch it for these buffers; the status."""
        self.was_used = True
        with self._lock:
            if not self._end.alive:
                return RETIRED
            return self._walk(REPLAY, stream, out, buffers)

    def _walk(self, mode: int, stream: int, out: int, buffers: tuple[Any, ...]) -> int:
        base = self._scratch.address
        return self._play(mode, self._address, stream, out, base, self._record, buffers)

    def retire(self) -> None:
        """Make room for others."""
        with self._lock:
            self._end()
            self._scratch = Buffer(0, 0, None)


class Graphs:
    """The graphs of a GPU; what was not used for a while makes room for others."""

    def __init__(self, driver: Driver):
        self._kept: deque[ref[ProgramGraph]] = deque()
        self._lock, self.driver = RLock(), driver
        self.dead: deque[Any] = deque()  # the states of graphs that nobody has any more

    def free(self) -> None:
        """Free what nobody has, in the context that it was made in."""
        while self.dead:
            try:
                state = self.dead.popleft()
            except IndexError:  # another thread took the last one
                return
            self.driver.forget_graph(state)

    def retire(self) -> None:
        """Let go of all graphs."""
        with self._lock:
            for graph in [kept() for kept in self._kept]:
                if graph is not None:
                    graph.retire()
            self._kept.clear()
        self.free()

    def add(self, graph: ProgramGraph) -> None:
        """Keep a graph, within the bounds of what all may hold."""
        with self._lock:
            self._kept.append(ref(graph))
            alive = [g for g in (kept() for kept in self._kept) if g is not None]
            self._kept = deque(map(ref, alive))
            total = sum(g.nbytes for g in alive)
            while total > MOST_BYTES and len(self._kept) > 1:
                oldest = self._kept.popleft()()
                if oldest is None:
                    continue
                if oldest is graph or oldest.was_used:
                    oldest.was_used = False
                    self._kept.append(ref(oldest))
                else:
                    total -= oldest.nbytes
                    oldest.retire()
        self.free()
