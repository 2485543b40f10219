"""Row-wise pipelines: groups that can be run one after the other for a few rows at a time.

Softmax, normalisations and their derivatives are chains of folds along rows and of maps that read
the results back; run row by row, everything but the first read and the last write stays in cache.
A reduction of everything is cut into pieces in the same way, which are whole subtrees of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pullback.compile.groups import (
    Access,
    FoldGroup,
    Group,
    MapGroup,
    SequenceGroup,
    Stored,
    squeezed,
)
from pullback.compile.kernel import Accumulate
from pullback.core.avals import dense_strides

__all__ = ["local_values", "sequenced"]

LEAST_SIZE = 1 << 15  # elements: smaller arrays stay in cache anyway
MOST_ROW_BYTES = 1 << 17  # of one array
MOST_MEMBERS = 32
PIECE = 8  # blocks, where a reduction of everything is cut


def sequenced(groups: Sequence[Group], block: int) -> list[Group]:
    """The groups, with those that work row by row put into sequences.

    `block` elements, and any power of two of blocks, are a subtree of a reduction of everything.
    """
    todo, done = list(groups), []
    tried: set[int] = set()
    while True:
        start = next((g for g in todo if id(g) not in tried and _is_seed(g)), None)
        if start is None:
            return done + todo
        tried.add(id(start))
        assert isinstance(start, FoldGroup)
        rows = _Rows.of(start, block)
        before, members, after = _Cut(start, rows).split(todo)
        if len(members) > 1:
            whole = any(isinstance(m, FoldGroup) and not squeezed(m.kept) for m in members)
            taken = rows.taken if whole else 1
            done += [*before, SequenceGroup(rows.count, taken, members, taken * rows.length)]
            todo = after


def _is_seed(g: Group) -> bool:
    """Whether a sequence may be built around this group: a large reduction."""
    if not isinstance(g, FoldGroup) or isinstance(g.kernel, Accumulate):
        return False
    size = math.prod(g.kept) * math.prod(g.folded)
    if size < LEAST_SIZE:
        return False
    if not squeezed(g.kept):
        return True
    row = math.prod(g.folded) * max((a.stored.dtype.itemsize for a in g.reads), default=1)
    return row <= MOST_ROW_BYTES


@dataclass(frozen=True)
class _Rows:
    """What a row is: a position along the leading axes `lead`, or one element of everything.

    `taken` rows, of `length` elements each, are a subtree of a reduction of everything; 0 if no
    number of rows is.
    """

    lead: tuple[int, ...]
    count: int
    length: int
    taken: int

    @staticmethod
    def of(seed: FoldGroup, block: int) -> _Rows:
        lead = squeezed(seed.kept)
        length = math.prod(seed.folded)
        if not lead:
            return _Rows((), length, 1, PIECE * block)
        taken = 1
        while taken * length % block and taken < block:
            taken *= 2
        blocks, rest = divmod(taken * length, block)
        if rest or blocks & (blocks - 1):
            return _Rows(lead, math.prod(lead), length, 0)
        while taken * length < PIECE * block:
            taken *= 2
        return _Rows(lead, math.prod(lead), length, taken)

    def fits(self, g: Group) -> bool:
        """Whether a group works on rows, if what it reads allows it."""
        if isinstance(g, MapGroup):
            if not all(_is_dense(a, g.shape) for a in g.writes):
                return False
            if not self.lead:
                return math.prod(g.shape) == self.count * self.length
            return g.shape[: len(self.lead)] == self.lead
        if not isinstance(g, FoldGroup) or isinstance(g.kernel, Accumulate):
            return False
        kept, folded = squeezed(g.kept), squeezed(g.folded)
        if not kept:
            same = math.prod(folded) == self.count * self.length
            return bool(same and self.taken and folded[: len(self.lead)] == self.lead)
        return kept == self.lead

    def is_local(self, access: Access, shape: tuple[int, ...]) -> bool:
        """Whether a row of the walk reads only the same row of the (dense) value."""
        if not self.lead:
            return _is_dense(access, shape)
        axes = [(n, s) for n, s in zip(shape, access.strides, strict=True) if n != 1]
        count, size = len(self.lead), access.stored.aval.size
        if size % self.count:
            return False
        row = size // self.count
        outer = [s * row for s in dense_strides(self.lead)]
        if [s for _, s in axes[:count]] != outer:
            return False
        spans = [(n - 1) * s for n, s in axes[count:]]
        low = access.offset + sum(min(0, s) for s in spans)
        high = access.offset + sum(max(0, s) for s in spans)
        return low >= 0 and high < row


class _Cut:
    """Splits groups into those before a sequence, its members, and those after it."""

    def __init__(self, seed: FoldGroup, rows: _Rows):
        self.seed = seed
        self.rows = rows
        self.inside: dict[Stored, Group] = {}
        self.late: set[Stored] = set()
        self.shared: set[Stored] = set()

    def split(
        self, groups: Sequence[Group]
    ) -> tuple[list[Group], list[MapGroup | FoldGroup], list[Group]]:
        sources = self._sources(groups)
        before, members, after = [], [], []
        for g in groups:
            reads = set(g.values_read())
            if reads & self.late or len(members) >= MOST_MEMBERS:
                after.append(g)
                self.late.update(g.values_written())
            elif self._joins(g, reads, sources):
                members.append(g)
                self.inside.update((s, g) for s in g.values_written())
                self.shared.update(reads)
            elif reads & set(self.inside):
                after.append(g)
                self.late.update(g.values_written())
            else:
                before.append(g)
        return before, members, after

    def _sources(self, groups: Sequence[Group]) -> set[int]:
        """The groups that the seed's operands come from and that could be members."""
        made = {s: g for g in groups for s in g.values_written()}
        found: set[int] = {id(self.seed)}
        stack: list[Group] = [self.seed]
        while stack:
            for s in stack.pop().values_read():
                g = made.get(s)
                if g is not None and id(g) not in found and self.rows.fits(g):
                    found.add(id(g))
                    stack.append(g)
        return found

    def _joins(self, g: Group, reads: set[Stored], sources: set[int]) -> bool:
        if not self.rows.fits(g):
            return False
        assert isinstance(g, (MapGroup, FoldGroup))
        large = {s for s in reads & self.shared if s.aval.size >= LEAST_SIZE}
        if id(g) not in sources and not reads & set(self.inside) and not large:
            return False
        shape = g.shape if isinstance(g, MapGroup) else g.kept + g.folded
        return all(self.rows.is_local(a, shape) for a in g.reads if a.stored in self.inside)


def _is_dense(access: Access, shape: tuple[int, ...]) -> bool:
    pairs = zip(shape, access.strides, dense_strides(shape), strict=True)
    same = all(n == 1 or s == d for n, s, d in pairs)
    return same and access.offset == 0 and access.stored.aval.size == math.prod(shape)


def local_values(groups: Sequence[Group], group: SequenceGroup) -> list[Stored]:
    """What only this sequence needs, and reads from where rows start."""
    elsewhere = {s for g in groups if g is not group for s in g.values_read()}
    offsets = {a.stored for m in group.members for a in m.reads if a.offset}
    folds = {
        m.write.stored for m in group.members if isinstance(m, FoldGroup) and not squeezed(m.kept)
    }
    return [
        s
        for s in dict.fromkeys(group.values_written())
        if not s.is_output and s not in elsewhere | offsets | folds
    ]
