"""Row-wise pipelines: groups that can be run one after the other for a few rows at a time.

Softmax, normalisations and their derivatives are chains of folds along rows and of maps that read
the results back; run row by row, everything but the first read and the last write stays in cache.
A reduction of everything is cut into pieces in the same way, which are whole subtrees of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pullback.compile.kernel.forms import Accumulate
from pullback.compile.kernel.order import BLOCK
from pullback.compile.schedule.groups import (
    Access,
    CallGroup,
    FoldGroup,
    Group,
    MapGroup,
    SequenceGroup,
    Stored,
    is_dense,
    squeezed,
)
from pullback.compile.schedule.row_kernel import RowMembers
from pullback.core.avals import dense_strides

__all__ = ["local_values", "sequenced"]
__tuning__ = ("LEAST_RUN", "LEAST_SIZE", "MOST_ROW_BYTES", "MOST_MEMBERS")

LEAST_SIZE = 1 << 15  # elements: smaller arrays stay in cache anyway
MOST_ROW_BYTES = 1 << 18  # of one array: a row is to stay in the L2 cache
MOST_MEMBERS = 32  # groups of one sequence: its code grows with each
NEAR = 4 * MOST_MEMBERS  # groups before and after a seed that are looked at
LEAST_RUN = 16  # elements: of shorter ones a map of its own makes several at a time
PIECE = 8  # blocks, where a reduction of everything is cut


def sequenced(groups: Sequence[Group]) -> list[Group]:
    """The groups, with those that work row by row put into sequences."""
    todo = list(groups)
    for is_seed, around in ((_is_seed, _kernel), (_is_column_seed, _kernel), (_is_seed, _blocks)):
        tried: set[int] = set()
        low = 0
        while True:
            rest = range(low, len(todo))
            at = next((k for k in rest if id(todo[k]) not in tried and is_seed(todo[k])), None)
            if at is None:
                break
            start = todo[at]
            tried.add(id(start))
            assert isinstance(start, FoldGroup)
            low, high = max(0, at - NEAR), at + NEAR
            todo[low:high] = around(start, todo[low:high])
    return todo


def _kernel(seed: FoldGroup, groups: list[Group]) -> list[Group]:
    """The groups with a row kernel around a seed, unless that would leave out some members."""
    across = _is_across(seed)
    rows = _RowShape.across(seed) if across else _RowShape.of(seed)
    if not rows.lead:
        return groups
    before, members, after = _fused_cut(seed, rows, groups)
    least = 2 if across else max(2, len(_Cut(seed, rows).split(groups)[1]))
    if len(members) < least:
        return groups
    own = SequenceGroup(rows.count, 1, members, 0, lead=rows.lead, length=rows.length)
    return [*before, own, *after]


def _blocks(seed: FoldGroup, groups: list[Group]) -> list[Group]:
    """The groups with a sequence of kernels around a seed, which share blocks of rows."""
    rows = _RowShape.of(seed)
    if not rows.lead and _is_broken(seed):
        return groups
    before, members, after = _Cut(seed, rows).split(groups)
    if len(members) < 2:
        return groups
    whole = any(isinstance(m, FoldGroup) and not squeezed(m.kept) for m in members)
    taken = rows.taken if whole else 1
    return [*before, SequenceGroup(rows.count, taken, members, taken * rows.length), *after]


def _fused_cut(
    seed: FoldGroup, rows: _RowShape, groups: list[Group]
) -> tuple[list[Group], list[MapGroup | FoldGroup], list[Group]]:
    """The cut for one kernel, with all that can join because later members read the same."""
    kernel = RowMembers(rows.lead, rows.length)
    cut = _Cut(seed, rows, kernel)
    found = cut.split(groups)
    while True:
        kernel = kernel.empty()
        barred = _barred(found[1], found[0], kernel)
        wider = _Cut(seed, rows, kernel, cut.shared, barred, _numbers(found[1], groups, kernel))
        more = wider.split(groups)
        if len(more[1]) <= len(found[1]):
            return found
        cut, found = wider, more


def _barred(members: Sequence[Group], before: Sequence[Group], kernel: RowMembers) -> set[int]:
    """Those groups before the members that they need, but can't read if these groups join them."""
    wanted = {s for m in members for s in m.values_read()}
    lost: set[Stored] = set()
    found = set()
    for g in reversed(before):
        made = set(g.values_written())
        rows = isinstance(g, (MapGroup, FoldGroup)) and kernel.makes_rows(g)
        if made & lost or (made & wanted and not rows):
            found.add(id(g))
            lost.update(g.values_read())
        elif made & wanted:
            wanted.update(g.values_read())
    return found


def _numbers(members: Sequence[Group], groups: Sequence[Group], kernel: RowMembers) -> set[int]:
    """Those maps that make numbers of rows, cheap ones, for members alone."""
    own = {id(m) for m in members}
    made = {s: g for g in groups for s in g.values_written() if kernel.makes_number(g)}
    others = {s for g in groups if id(g) not in own for s in g.values_read()}
    lost = {id(made[s]) for s in made if s in others or s.is_output}
    wanted = {s for m in members for s in m.values_read()}
    return {id(g) for s, g in made.items() if s in wanted} - lost - own


def _is_seed(g: Group) -> bool:
    """Whether a sequence may be built around this group: a large reduction."""
    if not isinstance(g, FoldGroup) or isinstance(g.kernel, Accumulate):
        return False
    size = math.prod(g.kept) * math.prod(g.folded)
    if size < LEAST_SIZE:
        return False
    if not squeezed(g.kept):
        return True
    if _is_across(g):
        return False
    row = math.prod(g.folded) * max((a.stored.dtype.itemsize for a in g.reads), default=1)
    return row <= MOST_ROW_BYTES


def _is_across(g: FoldGroup) -> bool:
    """Whether results, rather than what is folded, lie side by side in memory."""
    kept = [k for k, n in enumerate(g.kept) if n != 1]
    folded = [len(g.kept) + k for k, n in enumerate(g.folded) if n != 1]
    if not kept or not folded:
        return False
    return any(a.strides[kept[-1]] == 1 and a.strides[folded[-1]] not in (0, 1) for a in g.reads)


def _is_column_seed(g: Group) -> bool:
    """Whether this is a large reduction from row to row."""
    if not isinstance(g, FoldGroup) or isinstance(g.kernel, Accumulate) or not _is_across(g):
        return False
    length = math.prod(g.kept)
    row = length * max((a.stored.dtype.itemsize for a in g.reads), default=1)
    return length * math.prod(g.folded) >= LEAST_SIZE and row <= MOST_ROW_BYTES


@dataclass(frozen=True)
class _RowShape:
    """What a row is: a position along the leading axes `lead`, or one element of everything.

    `taken` rows, of `length` elements each, are a subtree of a reduction of everything; 0 if no
    number of rows is.
    """

    lead: tuple[int, ...]
    count: int
    length: int
    taken: int

    @staticmethod
    def of(seed: FoldGroup) -> _RowShape:
        lead = squeezed(seed.kept)
        length = math.prod(seed.folded)
        if not lead:
            return _RowShape((), length, 1, PIECE * BLOCK)
        taken = 1
        while taken * length % BLOCK and taken < BLOCK:
            taken *= 2
        blocks, rest = divmod(taken * length, BLOCK)
        if rest or blocks & (blocks - 1):
            return _RowShape(lead, math.prod(lead), length, 0)
        while taken * length < PIECE * BLOCK:
            taken *= 2
        return _RowShape(lead, math.prod(lead), length, taken)

    @staticmethod
    def across(seed: FoldGroup) -> _RowShape:
        """The rows that a fold over columns goes through."""
        lead = squeezed(seed.folded)
        return _RowShape(lead, math.prod(lead), math.prod(seed.kept), 0)

    def fits(self, g: Group) -> bool:
        """Whether a group works on rows, if what it reads allows it."""
        if isinstance(g, MapGroup):
            if not all(_is_dense(a, g.shape) for a in g.writes):
                return False
            if not self.lead:
                return math.prod(g.shape) == self.count * self.length and not _is_broken(g)
            return g.shape[: len(self.lead)] == self.lead
        if not isinstance(g, FoldGroup) or isinstance(g.kernel, Accumulate):
            return False
        kept, folded = squeezed(g.kept), squeezed(g.folded)
        if not kept:
            if not self.lead and _is_broken(g):
                return False
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

    def __init__(
        self,
        seed: FoldGroup,
        rows: _RowShape,
        kernel: RowMembers | None = None,  # that all members are to be
        shared: Collection[Stored] = (),
        barred: Collection[int] = (),
        numbers: Collection[int] = (),  # groups that join because members read what they make
    ):
        self.seed = seed
        self.rows = rows
        self.kernel = kernel
        self.barred, self.numbers = barred, numbers
        self.inside: dict[Stored, Group] = {}
        self.late: set[Stored] = set()
        self.shared: set[Stored] = set(shared)

    def split(
        self, groups: Sequence[Group]
    ) -> tuple[list[Group], list[MapGroup | FoldGroup], list[Group]]:
        sources = self._sources(groups)
        before, members, after = [], [], []
        for g in groups:
            reads = set(g.values_read())
            # What is put together from parts is written by several groups, in their order.
            if self.late & {*reads, *g.values_written()} or len(members) >= MOST_MEMBERS:
                after.append(g)
                self.late.update(g.values_written())
            elif self._joins(g, reads, sources):
                assert isinstance(g, (MapGroup, FoldGroup))
                members.append(g)
                if self.kernel is not None:
                    self.kernel.add(g)
                self.inside.update((s, g) for s in g.values_written())
                self.shared.update(reads)
            elif reads & self.inside.keys():
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
                if g is not None and id(g) not in found and self._is_source(g):
                    found.add(id(g))
                    stack.append(g)
        return found

    def _is_source(self, g: Group) -> bool:
        """Whether others of the sequence could read what this group makes."""
        if self.kernel is None:
            return self.rows.fits(g)
        return isinstance(g, (MapGroup, FoldGroup)) and self.kernel.makes_rows(g)

    def _fits(self, g: Group) -> bool:
        if self.kernel is None:
            return self.rows.fits(g)
        return isinstance(g, (MapGroup, FoldGroup)) and self.kernel.takes(g)

    def _joins(self, g: Group, reads: set[Stored], sources: set[int]) -> bool:
        large = {s for s in reads & self.shared if s.aval.size >= LEAST_SIZE}
        wanted = id(g) in sources or id(g) in self.numbers
        if not wanted and not reads & self.inside.keys() and not large:
            return False
        if id(g) in self.barred or not self._fits(g):
            return False
        assert isinstance(g, (MapGroup, FoldGroup))
        if self.kernel is not None:
            return True
        shape = g.shape if isinstance(g, MapGroup) else g.kept + g.folded
        return all(self.rows.is_local(a, shape) for a in g.reads if a.stored in self.inside)


def _is_broken(g: MapGroup | FoldGroup) -> bool:
    """Whether an array is read in short runs, as small transposed matrices are: from any element
    on, as pieces of everything begin, that takes long.
    """
    shape = g.shape if isinstance(g, MapGroup) else g.kept + g.folded
    return any(_last_run(a.strides, shape) < LEAST_RUN for a in g.reads)


def _last_run(strides: Sequence[int], shape: Sequence[int]) -> int:
    """Elements walked at one stride along the last axes; LEAST_RUN at least, if all are."""
    run, step = 1, None
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if n == 1:
            continue
        if step is not None and s != step * run:
            return run
        step = s if step is None else step
        run *= n
    return max(run, LEAST_RUN)


def _is_dense(access: Access, shape: tuple[int, ...]) -> bool:
    whole = access.offset == 0 and access.stored.aval.size == math.prod(shape)
    return whole and is_dense(shape, access.strides)


def local_values(readers: Mapping[Stored, int], group: SequenceGroup) -> list[Stored]:
    """What only this sequence needs, and reads from where rows start.

    `readers` says how many groups read a value.
    """
    loops = [m for m in group.members if not isinstance(m, CallGroup)]
    offsets = {a.stored for m in loops for a in m.reads if a.offset}
    read = {s for m in group.members for s in m.values_read()}
    folds = {
        m.write.stored
        for m in group.members
        if isinstance(m, FoldGroup) and (not squeezed(m.kept) or m.write.stored not in read)
    }
    return [
        s
        for s in dict.fromkeys(group.values_written())
        if not s.is_output and readers[s] <= (s in read) and s not in offsets | folds
    ]
