"""Maps of what a product has just made: the end of its kernel, where a target has that.

The map sees the finished element, rounded to its dtype, as it would read it from memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pullback.compile.schedule.bodies import Bodies
from pullback.compile.schedule.groups import (
    Access,
    CallGroup,
    Group,
    MapGroup,
    Stored,
    squeezed,
)
from pullback.core.avals import dense_strides
from pullback.ir.cost import instructions
from pullback.ir.lowering import Intrinsic

__all__ = ["ended"]
__tuning__ = ("MOST_READS", "MOST_WRITES", "MOST_INSTRUCTIONS", "MOST_ELEMENTS")

MOST_READS = 5  # arrays that the map reads: each takes a pointer, and registers
MOST_WRITES = 3  # arrays that it writes: likewise, each takes a pointer
# The ends of large tiles hide nothing of what they wait for, which costs more than a launch of the
# map (an H200, layers of 2048: a twentieth in float32, a fifth in bfloat16).
MOST_ELEMENTS = 1 << 17  # of a result: larger ones lose more by an end than they gain
MOST_INSTRUCTIONS = 300  # of an element: nothing else of the kernel goes on meanwhile


def ended(groups: Sequence[Group], names: Collection[str]) -> list[Group]:
    """The groups; intrinsics of these names have taken in the first map of their result.

    They move to where the map was: what reads the result between them keeps them apart.
    """
    if not names:
        return list(groups)
    found: list[Group | None] = list(groups)
    places: dict[Stored, list[int]] = {}  # of the groups that read a value
    for k, g in enumerate(groups):
        for s in set(g.values_read()):
            places.setdefault(s, []).append(k)
    taken: set[int] = set()
    for k, g in enumerate(groups):
        if not isinstance(g, CallGroup) or not _has_end(g, names):
            continue
        (result,) = g.results
        first, *others = places.get(result, [k])
        m = groups[first]
        if first in taken or not isinstance(m, MapGroup) or not _takes(m, result):
            continue
        taken.add(first)
        found[k] = None
        found[first] = CallGroup(
            g.equation, g.operands, g.results, _kept(m, result) if others or result.is_output else m
        )
    return [g for g in found if g is not None]


def _has_end(g: CallGroup, names: Collection[str]) -> bool:
    low = getattr(g.equation.op, "lowering", None)
    if not isinstance(low, Intrinsic) or low.name not in names:
        return False
    # an operation whose result nobody wants may be left for its errors alone
    return len(g.results) == 1 and 0 < g.results[0].aval.size <= MOST_ELEMENTS


def _takes(m: MapGroup, result: Stored) -> bool:
    """Whether a map takes every element of the result in turn, and not too much else."""
    dense = dense_strides(m.shape)
    own = [a for a in m.reads if a.stored is result]
    straight = len(own) == 1 and own[0].offset == 0 and own[0].strides == dense
    whole = straight and m.shape == squeezed(result.aval.shape)
    out = all(w.offset == 0 and w.strides == dense for w in m.writes)
    few = len(m.reads) - 1 <= MOST_READS and len(m.writes) <= MOST_WRITES
    light = instructions(e for body in m.bodies for e in body) <= MOST_INSTRUCTIONS
    return whole and out and few and light


def _kept(m: MapGroup, result: Stored) -> MapGroup:
    """The map, which writes the result too."""
    position = next(k for k, a in enumerate(m.reads) if a.stored is result)
    write = Access(result, 0, dense_strides(m.shape))
    copy = Bodies.plain_copy(result.dtype, position)
    return MapGroup(m.shape, m.reads, [*m.writes, write], [*m.bodies, copy], m.label)
