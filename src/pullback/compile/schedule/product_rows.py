"""Small products and what is done with their rows, for some rows at a time; independent groups.

One product of a small network is too short to be shared by threads. But each row of a batch goes
through all layers, there and back, without the others: threads share the rows of the whole chain.
What remains, such as the gradients of the weights, needs nothing of each other: threads share these
groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pullback.compile.kernel.forms import Accumulate
from pullback.compile.schedule.groups import (
    Access,
    CallGroup,
    FoldGroup,
    Group,
    MapGroup,
    ParallelGroup,
    Region,
    SequenceGroup,
    Stored,
    is_dense,
)
from pullback.compile.schedule.work import is_product, product_work, work_of
from pullback.core import dtypes as dt

__all__ = ["chained", "parallel"]
__tuning__ = (
    "LEAST_ROWS", "MOST_ELEMENTS", "MOST_FACTOR_BYTES", "MOST_MEMBERS", "MOST_REACH", "LEAST_WORK",
    "LEAST_GAIN",
)  # fmt: skip

LEAST_ROWS = 16  # rows of a batch: fewer give two threads nothing to share
MOST_ELEMENTS = 1 << 15  # of an array: larger ones are shared by themselves
MOST_FACTOR_BYTES = 1 << 17  # of the right operand, which is read again for every few rows
MOST_MEMBERS = 40  # groups of one chain: its code grows with each
MOST_REACH = (
    160  # groups that a chain's members are looked for in: time grows with products times it
)
LEAST_WORK = 1 << 20  # operations that are worth a second thread
LEAST_GAIN = 1 << 18  # operations that other threads take over: some ten microseconds
Member = MapGroup | FoldGroup | CallGroup


def _row_product(g: Group) -> int:
    """The rows of a product of two matrices that can be made row by row, else 0."""
    if not isinstance(g, CallGroup) or not is_product(g) or g.equation.static or g.then:
        return 0
    a, b = (r.aval for r in g.operands)
    result = g.results[0].aval
    if a.ndim != 2 or b.ndim != 2 or result.dtype not in (dt.float32, dt.float64):
        return 0
    assert a.strides is not None and b.strides is not None
    readable = a.strides[1] == 1 and 1 in b.strides and 0 not in (*a.shape, *b.shape)
    small = b.nbytes <= MOST_FACTOR_BYTES and result.size < MOST_ELEMENTS
    rows = result.shape[0]
    return rows if readable and small and rows >= LEAST_ROWS else 0


class _Facts(NamedTuple):
    """What a chain asks of a group again and again."""

    group: Group
    rows: int  # of a product that can be made row by row, else 0
    work: int
    reads: frozenset[Stored]
    writes: frozenset[Stored]

    @classmethod
    def of(cls, g: Group) -> _Facts:
        rows = _row_product(g)
        work = product_work(g) if rows and isinstance(g, CallGroup) else 0
        return cls(g, rows, work, frozenset(g.values_read()), frozenset(g.values_written()))


def chained(groups: Sequence[Group]) -> list[Group]:
    """The groups, with chains of small products put into sequences over their rows."""
    todo, done = [_Facts.of(g) for g in groups], []
    while True:
        at = next((k for k, g in enumerate(todo) if g.rows), None)
        if at is None:
            return [*done, *(g.group for g in todo)]
        near, far = todo[at : at + MOST_REACH], todo[at + MOST_REACH :]
        rows = near[0].rows
        if sum(g.work for g in near if g.rows == rows) >= LEAST_WORK:
            before, members, after = _Chain(rows).split(near)
            products = [g for g in members if isinstance(g, CallGroup)]
            if len(products) > 1 and sum(map(product_work, products)) >= LEAST_WORK:
                done += [*(g.group for g in todo[:at]), *before]
                done.append(SequenceGroup(rows, 1, members, 0, "products"))
                todo = after + far
                continue
        done += [g.group for g in todo[: at + 1]]
        todo = todo[at + 1 :]


class _Chain:
    """Splits groups into those before a chain over so many rows, its members, and those after."""

    def __init__(self, rows: int):
        self.rows = rows
        self.inside: set[Stored] = set()

    def split(self, groups: Sequence[_Facts]) -> tuple[list[Group], list[Member], list[_Facts]]:
        before: list[Group] = []
        members: list[Member] = []
        after: list[_Facts] = []
        late: set[Stored] = set()
        for facts in groups:
            g = facts.group
            # What is put together from parts is written by several groups, in their order.
            early = late.isdisjoint(facts.reads) and late.isdisjoint(facts.writes)
            if early and len(members) < MOST_MEMBERS and self._joins(facts):
                assert isinstance(g, (MapGroup, FoldGroup, CallGroup))
                members.append(g)
                self.inside.update(facts.writes)
            elif not early or not self.inside.isdisjoint(facts.reads):
                after.append(facts)
                late.update(facts.writes)
            else:
                before.append(g)
        return before, members, after

    def _joins(self, facts: _Facts) -> bool:
        g = facts.group
        if self.inside and self.inside.isdisjoint(facts.reads):
            return False
        if isinstance(g, CallGroup):
            if facts.rows != self.rows:
                return False
            a, b = g.operands
            return b.stored not in self.inside and (
                a.stored not in self.inside or self._is_whole(a)
            )
        if not isinstance(g, MapGroup) or not g.shape or g.shape[0] != self.rows:
            return False
        straight = all([self._starts_rows(a, g.shape, True) for a in g.writes])
        return straight and all(
            [self._starts_rows(a, g.shape, False) for a in g.reads if a.stored in self.inside]
        )

    def _is_whole(self, a: Region) -> bool:
        return a.is_whole and a.aval.shape == a.stored.aval.shape

    def _starts_rows(self, a: Access, shape: tuple[int, ...], dense: bool) -> bool:
        """Whether row i of the walk is in row i of the value; `dense`: and is all of it."""
        size = a.stored.aval.size
        row = size // self.rows
        if dense:
            return a.offset == 0 and size == math.prod(shape) and is_dense(shape, a.strides)
        if size % self.rows or a.strides[0] != row or a.offset:
            return False
        spans = [(n - 1) * s for n, s in zip(shape[1:], a.strides[1:], strict=True)]
        return all(s >= 0 for s in spans) and sum(spans) < row


# -- groups side by side ---------------------------------------------------------------------------


def parallel(groups: Sequence[Group]) -> list[Group]:
    """The groups, with those that are small and need nothing of each other side by side."""
    done: list[Group] = []
    run: list[Member] = []
    for g in groups:
        if isinstance(g, (MapGroup, FoldGroup, CallGroup)) and _is_small(g):
            run.append(g)
        else:
            done += [*_layered(run), g]
            run = []
    return done + _layered(run)


def _is_small(g: Member) -> bool:
    """Whether threads would not share the group itself."""
    if isinstance(g, CallGroup) and not (is_product(g) and g.operands[1].aval.ndim == 2):
        return False
    if isinstance(g, FoldGroup) and isinstance(g.kernel, Accumulate):
        return False
    return all([s.aval.size < MOST_ELEMENTS for s in (*g.values_read(), *g.values_written())])


def _layered(groups: Sequence[Member]) -> list[Group]:
    """Groups in an order in which those that need nothing of each other come together."""
    level: dict[Stored, int] = {}
    layers: list[list[Member]] = []
    for g in groups:
        touched = (*g.values_read(), *g.values_written())  # parts of a value come in their order
        depth = max([level.get(s, 0) for s in touched], default=0)
        if depth == len(layers):
            layers.append([])
        layers[depth].append(g)
        level.update((s, depth + 1) for s in g.values_written())
    gains = [_gain(layer) for layer in layers]
    if max(gains, default=0) < LEAST_GAIN:
        return list(groups)
    found: list[Group] = []
    for layer, gain in zip(layers, gains, strict=True):
        found += [ParallelGroup(layer)] if gain >= LEAST_GAIN else layer
    return found


def _gain(layer: Sequence[Member]) -> int:
    """What two threads could spare at least."""
    work = [work_of(g) for g in layer]
    return min(sum(work) // 2, sum(work) - max(work)) if len(work) > 1 else 0
