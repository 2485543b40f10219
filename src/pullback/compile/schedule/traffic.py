"""The bytes that a group has to move at least: what it reads, once, and what it writes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from pullback.compile.schedule.groups import (
    Access,
    CallGroup,
    FoldGroup,
    Group,
    MapGroup,
    Region,
    Stored,
)
from pullback.ir.lowering import GatherRows

__all__ = ["least_bytes"]


def least_bytes(group: Group, local: Iterable[Stored] = ()) -> int:
    """Bytes of the elements that the group touches; `local` values have no memory.

    What a member of a joint group reads of another is counted once. Of what a loop or a branch
    does inside, only operands and results count.
    """
    apart = {id(s) for s in local}
    written: dict[int, int] = {}
    read: dict[int, int] = {}
    for stored, elements, is_write in _touched(group):
        if id(stored) not in apart:
            place = written if is_write else read
            nbytes = min(elements * stored.dtype.itemsize, stored.nbytes)
            place[id(stored)] = max(place.get(id(stored), 0), nbytes)
    return sum(written.values()) + sum(n for s, n in read.items() if s not in written)


def _touched(group: Group) -> Iterator[tuple[Stored, int, bool]]:
    if isinstance(group, MapGroup):
        yield from ((a.stored, _elements(a, group.shape), False) for a in group.reads)
        yield from ((a.stored, _elements(a, group.shape), True) for a in group.writes)
    elif isinstance(group, FoldGroup):
        shape = group.kept + group.folded
        yield from ((a.stored, _elements(a, shape), False) for a in group.reads)
        yield group.write.stored, group.write.stored.aval.size, True
    elif isinstance(group, CallGroup):
        yield from ((s, s.aval.size, True) for s in group.values_written())
        if group.then:
            yield from (t for t in _touched(group.then) if t[0] not in group.results)
        rows = isinstance(getattr(group.equation.op, "lowering", None), GatherRows)
        most = group.results[0].aval.size  # of the array that rows are taken from
        for k, r in enumerate(group.operands):
            yield r.stored, min(_size(r), most) if rows and k == 0 else _size(r), False
    else:
        for member in group.members:
            yield from _touched(member)


def _elements(access: Access, shape: tuple[int, ...]) -> int:
    """How many elements of a value a walk over the shape meets."""
    return math.prod(n for n, s in zip(shape, access.strides, strict=True) if s != 0)


def _size(region: Region) -> int:
    strides = region.aval.strides or ()
    return math.prod(n for n, s in zip(region.aval.shape, strides, strict=True) if s != 0)
