"""Row kernels on a GPU: all passes over a row in one launch, with the row in shared memory.

    NAME_passes (stream_0 .., partials_0 .., Rows<M, S> r)

M streams lie in memory, S are kept in shared memory while a row is worked on: those with a row of
their own that a pass reads. They are copied there at once, and what one pass stores for another is
kept beside. 16 threads have a block of the tree of a row, each a lane of it, and find again what
they wrote. A fold over everything leaves an accumulator for each row, which `merge` of `folds`
joins. Folds from row to row are a launch of their own, which reads the rows again; or a thread
block walks along the rows of a lane, and `row_walks` says the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pullback.compile.kernel.forms import Reduce
from pullback.compile.kernel.order import BLOCK
from pullback.compile.schedule.row_kernel import Pass, RowKernel
from pullback.ir.scalar import Expr, topological
from pullback.runtime.cuda.kernels import weight
from pullback.runtime.cuda.row_functions import PAD

__all__ = ["THREADS", "RowCode", "loads_of", "roots_of"]

THREADS = 512  # of a thread block at most


@dataclass(frozen=True)
class RowCode:
    """A row kernel, which of its streams have the same row for all rows, and who has a lane."""

    kernel: RowKernel
    fixed: tuple[bool, ...]
    turns: int = 1  # threads that have a lane in turns: 1 or 2
    bounds: tuple[int, int] = (THREADS, 1)  # of registers: threads of a block, blocks at a time
    walks: bool = False  # along the rows of a lane, with what is folded from row to row
    near: tuple[int, ...] = ()  # the same row for all rows, in shared memory from the start

    @cached_property
    def memory(self) -> list[int]:
        """The streams that lie in memory."""
        return [k for k, s in enumerate(self.kernel.streams) if s.kind in ("unit", "zero")]

    @cached_property
    def read(self) -> dict[int, list[int]]:
        """The passes in which elements of a stream are read; 0 to n."""
        found: dict[int, list[int]] = {}
        for p, one in enumerate(self.kernel.passes):
            for k in loads_of(roots_of(one)):
                found.setdefault(k, []).append(p)
        if self.walks:  # after all passes
            for k in loads_of([e for r in self.kernel.columns for e in r.element]):
                found.setdefault(k, []).append(len(self.kernel.passes))
        return found

    @cached_property
    def written(self) -> dict[int, int]:
        """The pass that stores a stream."""
        return {k: p for p, one in enumerate(self.kernel.passes) for k, _ in one.stores}

    @cached_property
    def shared(self) -> list[int]:
        """The streams in shared memory."""
        rows = [k for k, s in enumerate(self.kernel.streams) if s.kind in ("unit", "buffer")]
        return [k for k in rows if k in self.read and not self.fixed[k]]

    @property
    def has_fixed(self) -> bool:
        """Whether rows are read that are the same for all, where they are."""
        return any(self.fixed[k] and self.kernel.streams[k].kind == "unit" for k in self.read)

    def is_near(self, stream: int) -> bool:
        """Whether a stream is a row that is the same for all rows, and is read."""
        is_row = self.kernel.streams[stream].kind == "unit" and self.fixed[stream]
        return is_row and stream in self.read and stream not in self.written

    @cached_property
    def fetched(self) -> list[int]:
        """The streams that are copied to shared memory, those first that are read first."""
        found = [k for k in self.shared if k not in self.written]
        return sorted(found, key=lambda k: self.read[k][0])

    @cached_property
    def areas(self) -> tuple[dict[int, int], list[int]]:
        """The area of each shared stream, and bytes of an element in each area.

        What is stored takes the place of what is not read in later passes.
        """
        area, sizes, free_from = {}, [], []
        for k in sorted(self.shared, key=lambda k: self.written.get(k, -1)):
            size, born = self.kernel.streams[k].dtype.itemsize, self.written.get(k, -1)
            fits = [a for a, n in enumerate(sizes) if n == size and free_from[a] <= born]
            if not fits:
                fits = [len(sizes)]
                sizes.append(size)
                free_from.append(0)
            area[k] = fits[0]
            free_from[fits[0]] = max(self.read[k])
        return area, sizes

    @cached_property
    def folds(self) -> list[Reduce]:
        """What is folded along rows, pass by pass."""
        passes = self.kernel.passes
        return [r for p in passes for r in (*(r for _, r in p.folds), *p.wholes)]

    @cached_property
    def joining(self) -> int:
        """The instructions that join an element to what is folded, of the fold that has most."""
        return max((weight(r.combine) for r in self.folds), default=0)

    @property
    def places(self) -> int:
        """The words of a launch that say where something lies in shared memory."""
        own = len(self.near) + len(self.kernel.columns) + 1 if self.walks else 0
        return max(1, len(self.areas[1]) + own)

    def room(self, length: int) -> tuple[list[int], int]:
        """Where areas start in the room of a row, and the bytes of that."""
        starts, end = [], 0
        for size in self.areas[1]:
            starts.append(end)
            end += length * size + -(-length // BLOCK) * PAD
            end = -(-end // PAD) * PAD
        return starts, max(end, PAD)


def roots_of(p: Pass) -> list[Expr]:
    """All that is computed for each element in a pass."""
    bodies = [body for _, body in p.stores]
    bodies += [r.element for r in (*(r for _, r in p.folds), *p.wholes)]
    return [e for body in bodies for e in body]


def loads_of(roots: Sequence[Expr]) -> list[int]:
    done: dict[Expr, int] = {}
    for root in roots:
        done.update((e, 0) for e in topological(root, done))
    return list(dict.fromkeys(e.value[0] for e in done if e.op == "load"))  # type: ignore[index]
