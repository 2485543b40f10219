"""A sequence of row-wise groups as one kernel, which goes through a row in a few passes.

Groups that need nothing but what earlier passes have found are computed in one loop along the row,
where they share what they load and compute. A number of each row, such as a mean, stays in a
register; a row that only the sequence needs lies in a buffer, or nowhere if one pass has all its
uses.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from pullback.compile.kernel.forms import Accumulate, Reduce
from pullback.compile.kernel.order import BLOCK, SMALL
from pullback.compile.schedule.groups import (
    Access,
    CallGroup,
    FoldGroup,
    Group,
    MapGroup,
    Stored,
    squeezed,
)
from pullback.core.avals import dense_strides
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr, load, substituted

__all__ = ["Pass", "RowKernel", "RowMembers", "RowPlan", "Stream", "is_one_row", "row_plan"]
__tuning__ = ("MOST_INSTRUCTIONS", "MANY", "NUMBER_SHARE")

MOST_INSTRUCTIONS = 1500  # of one kernel: beyond, compile time grows faster than speed
NUMBER_SHARE = 8  # elements of a row for an instruction of a number: threads of a row repeat it
MANY = 128  # rows: with fewer, accumulators of all lanes would be a large part of the array

Member = MapGroup | FoldGroup
Body = tuple[Expr, ...]


class Stream(NamedTuple):
    """What `load(k)` of a row kernel reads.

    `kind` is "unit" (a row of an array), "zero" (one element of an array for each row), "scalar" (a
    number that the kernel has computed for the row) or "buffer" (a row that it keeps for itself).
    """

    dtype: DType
    kind: str


class Pass(NamedTuple):
    """Numbers computed from earlier ones, then one loop along the row."""

    scalars: tuple[tuple[int, Body], ...]  # stream and value
    stores: tuple[tuple[int, Body], ...]  # stream and value of each element
    folds: tuple[tuple[int, Reduce], ...]  # stream of the result, and what is folded along the row
    columns: tuple[Reduce, ...]  # what is folded from row to row
    wholes: tuple[Reduce, ...]  # what is folded over everything


@dataclass(frozen=True)
class RowKernel:
    """The passes over each row; `kept` are pairs of a scalar and the array that takes it."""

    streams: tuple[Stream, ...]
    passes: tuple[Pass, ...]
    kept: tuple[tuple[int, int], ...]

    @property
    def columns(self) -> tuple[Reduce, ...]:
        return tuple(r for p in self.passes for r in p.columns)

    @property
    def wholes(self) -> tuple[Reduce, ...]:
        return tuple(r for p in self.passes for r in p.wholes)


class RowPlace(NamedTuple):
    """Where a row starts: element `offset + row * stride` of a stored value."""

    stored: Stored
    offset: int
    stride: int


@dataclass(eq=False)
class RowPlan:
    """A row kernel, the places of its streams in memory, and the results of its other folds."""

    kernel: RowKernel
    places: dict[int, RowPlace]
    columns: list[Stored]
    wholes: list[Stored]


class _Reading(NamedTuple):
    place: RowPlace
    step: str  # "unit" or "zero"


class _Walk(NamedTuple):
    """A member, what it is for a row, and how it reads."""

    member: Member
    form: str  # "map", "scalar", "fold", "column" or "whole"
    reads: list[_Reading]
    instructions: int

    @property
    def bodies(self) -> list[Body]:
        if isinstance(self.member, MapGroup):
            return self.member.bodies
        return [self.member.kernel.element]


def _merged(axes: Sequence[tuple[int, int]]) -> int | None:
    """The stride of axes (size, stride) walked as one, None if they can't be."""
    axes = [a for a in axes if a[0] != 1]
    if any(outer != inner * size for (_, outer), (size, inner) in pairwise(axes)):
        return None
    return axes[-1][1] if axes else 0


def _readings(
    reads: Sequence[Access], shape: Sequence[int], lead: Sequence[int], inner: Sequence[int]
) -> list[_Reading] | None:
    """The accesses over the axes `lead`, which count rows, and `inner`."""
    found = []
    for a in reads:
        stride, step = (_merged([(shape[d], a.strides[d]) for d in s]) for s in (lead, inner))
        if stride is None or step not in (0, 1):
            return None
        found.append(_Reading(RowPlace(a.stored, a.offset, stride), "unit" if step else "zero"))
    return found


def _walk(m: Member, lead: tuple[int, ...], length: int) -> _Walk | None:
    count = len(lead)
    if isinstance(m, FoldGroup) and isinstance(m.kernel, Accumulate):
        return None
    instructions, indexed = _facts(m.bodies if isinstance(m, MapGroup) else [m.kernel.element])
    if isinstance(m, MapGroup):
        if m.shape[:count] != lead or indexed or not all(_is_all(a, m.shape) for a in m.writes):
            return None
        if m.shape != lead and math.prod(m.shape[count:]) != length:
            return None
        reads = _readings(m.reads, m.shape, range(count), range(count, len(m.shape)))
        form = "scalar" if m.shape == lead else "map"
        return None if reads is None else _Walk(m, form, reads, instructions)
    kept, folded = squeezed(m.kept), squeezed(m.folded)
    shape = m.kept + m.folded
    outer, inner = range(len(m.kept)), range(len(m.kept), len(shape))
    options: list[tuple[str, Sequence[int], Sequence[int]]] = []
    if kept == lead and math.prod(folded) == length:
        options.append(("fold", outer, inner))
    if folded == lead and math.prod(kept) == length and not indexed:
        options.append(("column", inner, outer))
    if not kept and folded[:count] == lead and math.prod(folded) == math.prod(lead) * length:
        at = [d for d in inner if shape[d] != 1]
        options += [] if indexed else [("whole", at[:count], at[count:])]
    for form, rows, along in options:
        reads = _readings(m.reads, shape, rows, along)
        if reads is not None:
            return _Walk(m, form, reads, instructions)
    return None


def _is_all(a: Access, shape: tuple[int, ...]) -> bool:
    """Whether a walk writes every element of the value, in order."""
    pairs = zip(shape, a.strides, dense_strides(shape), strict=True)
    same = all(n == 1 or s == d for n, s, d in pairs)
    return same and a.offset == 0 and a.stored.aval.size == math.prod(shape)


def _facts(bodies: Sequence[Body]) -> tuple[int, bool]:
    """How many expressions there are, and whether one of them is the index."""
    seen: set[Expr] = set()
    stack = [root for body in bodies for root in body]
    indexed = False
    while stack:
        e = stack.pop()
        if e not in seen:
            seen.add(e)
            indexed = indexed or e.op == "index"
            stack.extend(e.args)
    return len(seen), indexed


class RowMembers:
    """The members that one row kernel can take, as they are found in order."""

    def __init__(self, lead: tuple[int, ...], length: int, most: int = MOST_INSTRUCTIONS):
        self.lead, self.length, self._most = lead, length, most
        blocks, rest = divmod(length, BLOCK)
        self._is_subtree = not rest and not blocks & (blocks - 1)
        # how a row is read again; None is for what is complete only after the last row
        self._made: dict[Stored, tuple[int, int, str] | None] = {}
        self._instructions = 0
        self._walks: dict[int, _Walk | None] = {}

    def empty(self) -> RowMembers:
        """The same rows without members, for the same groups."""
        other = RowMembers(self.lead, self.length, self._most)
        other._walks = self._walks
        return other

    def _walk(self, m: Member) -> _Walk | None:
        if id(m) not in self._walks:
            self._walks[id(m)] = _walk(m, self.lead, self.length)
        return self._walks[id(m)]

    def takes(self, m: Member) -> bool:
        """Whether `m` may come next."""
        walk = self._walk(m)
        if walk is None or not self._is_long_enough(walk.form):
            return False
        for r in walk.reads:
            straight = (r.place.offset, r.place.stride, r.step)
            if self._made.get(r.place.stored, straight) != straight:
                return False
        return self._instructions + walk.instructions <= self._most

    def makes_rows(self, m: Member) -> bool:
        """Whether `m` computes something for each row, which others could read."""
        walk = self._walk(m)
        return walk is not None and walk.form not in ("column", "whole")

    def makes_number(self, m: Group) -> bool:
        """Whether `m` is a map to a number of each row, next to nothing beside the row itself."""
        if not isinstance(m, MapGroup) or m.shape != self.lead:
            return False
        walk = self._walk(m)
        return walk is not None and walk.instructions * NUMBER_SHARE <= self.length

    def add(self, m: Member) -> None:
        walk = self._walk(m)
        assert walk is not None
        straight = None
        if self.makes_rows(m):
            many = int(math.prod(self.lead) > 1)  # no stride leads from a single row to others
            straight = (0, many * self.length, "unit") if walk.form == "map" else (0, many, "zero")
        self._made.update((s, straight) for s in m.values_written())
        self._instructions += walk.instructions

    def _is_long_enough(self, form: str) -> bool:
        if form == "fold":
            return self.length >= SMALL
        if form == "column":
            return math.prod(self.lead) >= MANY
        return form != "whole" or self._is_subtree


def is_one_row(members: Sequence[Member | CallGroup], length: int) -> bool:
    """Whether members, in order, could be a row kernel for one row of so many elements."""
    row = RowMembers((), length, len(members) * MOST_INSTRUCTIONS)  # they are fused already
    for m in members:
        if isinstance(m, CallGroup) or not row.takes(m):
            return False
        row.add(m)
    return True


def row_plan(
    members: Sequence[Member | CallGroup],
    lead: tuple[int, ...],
    length: int,
    local: Collection[Stored],
) -> RowPlan:
    """The kernel of members that `RowMembers` takes; nobody else needs the `local` values."""
    walks = []
    for m in members:
        walk = None if isinstance(m, CallGroup) else _walk(m, lead, length)
        assert walk is not None
        walks.append(walk)
    return _Builder(walks, length, local).plan()


class _Builder:
    """Gives every member a pass, every value a stream, and writes the passes."""

    def __init__(self, walks: Sequence[_Walk], length: int, local: Collection[Stored]):
        self.walks, self.length, self.local = walks, length, local
        self.maker = {s: k for k, w in enumerate(walks) for s in w.member.values_written()}
        self.used = {r.place.stored for w in walks for r in w.reads}
        self.at = self._passes(self._passes(None))
        self.streams: list[Stream] = []
        self.places: dict[int, RowPlace] = {}
        self._numbers: dict[tuple, int] = {}
        self._made: dict[Stored, Body] = {}

    # -- which pass ------------------------------------------------------------------------------

    def _passes(self, first: list[int] | None) -> list[int]:
        """The pass of each member; with a `first` draft, results go where their operands are read.

        A scalar belongs to the pass before which it is computed.
        """
        at: list[int] = []
        for k, w in enumerate(self.walks):
            ready = 0
            for r in w.reads:
                j = self.maker.get(r.place.stored)
                if j is not None:
                    ready = max(ready, at[j] + (self.walks[j].form == "fold"))
            if w.form == "map":  # it may be written over what others read up to here
                own = {r.place.stored for r in w.reads}
                others = (j for j, v in enumerate(self.walks[:k])
                          if any(r.place.stored in own for r in v.reads))  # fmt: skip
                ready = max(ready, *(at[j] for j in others), 0)
            if first is not None and self._is_last(w):
                ready = self._best(k, ready, first)
            at.append(ready)
        return at

    def _is_last(self, w: _Walk) -> bool:
        """Whether no member reads what this one makes along rows."""
        return w.form in ("map", "column", "whole") and not self.used & set(
            w.member.values_written()
        )

    def _best(self, k: int, ready: int, first: Sequence[int]) -> int:
        """The pass, from `ready` on, in which others read most of what member `k` reads."""
        own = {r.place.stored for r in self.walks[k].reads if r.step == "unit"}
        shared = [0] * (max(first) + 1)
        for j, w in enumerate(self.walks):
            if j != k and not self._is_last(w):
                loaded = {r.place.stored for r in w.reads if r.step == "unit"}
                shared[first[j]] = max(shared[first[j]], len(own & loaded))
        later = range(ready, len(shared))
        return max(later, key=lambda p: (shared[p], -p), default=ready)

    # -- streams ---------------------------------------------------------------------------------

    def _stream(self, key: tuple, stream: Stream, place: RowPlace | None = None) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self.streams)
            self.streams.append(stream)
            if place is not None:
                self.places[self._numbers[key]] = place
        return self._numbers[key]

    def _memory(self, r: _Reading) -> int:
        return self._stream((r.place, r.step), Stream(r.place.stored.dtype, r.step), r.place)

    def _row(self, s: Stored) -> int:
        """The stream of a row that the kernel makes."""
        if s in self.local:
            return self._stream((s, "buffer"), Stream(s.dtype, "buffer"))
        return self._memory(_Reading(RowPlace(s, 0, self.length), "unit"))

    def _scalar(self, s: Stored) -> int:
        return self._stream((s, "scalar"), Stream(s.dtype, "scalar"))

    def _rewritten(self, k: int, body: Body) -> Body:
        """A body of member `k` that reads streams, or computes again what its pass computes."""
        reads, here = self.walks[k].reads, self.at[k]

        def leaf(e: Expr) -> Expr:
            position, part = e.value  # type: ignore[misc]
            r = reads[position]
            j = self.maker.get(r.place.stored)
            if j is None:
                return load(self._memory(r), e.dtype, part)
            if self.walks[j].form != "map":
                return load(self._scalar(r.place.stored), e.dtype, part)
            if self.at[j] == here:
                return self._made[r.place.stored][part]
            return load(self._row(r.place.stored), e.dtype, part)

        return substituted(body, leaf)

    # -- passes ----------------------------------------------------------------------------------

    def plan(self) -> RowPlan:
        count = max(p + (w.form == "fold") for p, w in zip(self.at, self.walks, strict=True)) + 1
        parts: list[tuple[list, ...]] = [([], [], [], [], []) for _ in range(count)]
        columns: list[tuple[int, Stored]] = []
        wholes: list[tuple[int, Stored]] = []
        for k, w in enumerate(self.walks):
            scalars, stores, folds, across, everything = parts[self.at[k]]
            bodies = [self._rewritten(k, body) for body in w.bodies]
            results = w.member.values_written()
            if isinstance(w.member, MapGroup):
                pairs = list(zip(results, bodies, strict=True))
                if w.form == "scalar":
                    scalars += [(self._scalar(s), body) for s, body in pairs]
                else:
                    self._made.update(pairs)
                    stores += [(self._row(s), b) for s, b in pairs if self._is_stored(s, k)]
                continue
            kernel = replace(w.member.kernel, inputs=(), element=bodies[0])
            if w.form == "fold":
                folds.append((self._scalar(results[0]), kernel))
            elif w.form == "column":
                across.append(kernel)
                columns.append((self.at[k], results[0]))
            else:
                everything.append(kernel)
                wholes.append((self.at[k], results[0]))
        passes = tuple(Pass(*map(tuple, own)) for own in parts)
        while not any(passes[-1]):
            passes = passes[:-1]
        kernel = RowKernel(tuple(self.streams), passes, ())
        kernel = replace(kernel, kept=self._kept(), streams=tuple(self.streams))
        in_order = [[s for _, s in sorted(own, key=lambda x: x[0])] for own in (columns, wholes)]
        return RowPlan(kernel, self.places, *in_order)

    def _is_stored(self, s: Stored, k: int) -> bool:
        later = any(
            r.place.stored is s and self.at[j] != self.at[k]
            for j, w in enumerate(self.walks)
            for r in w.reads
        )
        return later or s not in self.local

    def _kept(self) -> tuple[tuple[int, int], ...]:
        """The scalars that others need, and where they go."""
        found = []
        for w in self.walks:
            if w.form in ("fold", "scalar"):
                for s in w.member.values_written():
                    if s not in self.local:
                        place = RowPlace(s, 0, 1)
                        found.append((self._scalar(s), self._memory(_Reading(place, "zero"))))
        return tuple(found)
