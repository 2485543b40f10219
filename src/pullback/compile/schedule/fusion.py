"""Which equations of a graph run together: from equations to groups.

`storage` decides what gets memory. Here kernels over one index space are joined, and what was
stored only to be read in the same kernel stays in registers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pullback.compile.schedule.bodies import Bodies
from pullback.compile.schedule.endings import ended
from pullback.compile.schedule.groups import (
    Access,
    CallGroup,
    FoldGroup,
    Group,
    Grouped,
    MapGroup,
    Stored,
    squeezed,
)
from pullback.compile.schedule.product_rows import chained, parallel
from pullback.compile.schedule.sequences import sequenced
from pullback.compile.schedule.storage import (
    MOST_ARRAYS,
    Draft,
    Storage,
    is_moderate,
    squeezed_region,
)
from pullback.core.avals import Aval, dense_strides
from pullback.ir.graph import Graph, Var

__all__ = ["fuse"]
__tuning__ = ("SMALL", "RECENT")

SMALL = 4096  # elements below which a launch costs more than the work
RECENT = 16  # maps of one kind that another may join


def fuse(
    graph: Graph, layouts: Sequence[Aval], together: bool = True, ending: Collection[str] = ()
) -> Grouped:
    """The groups of `graph` for inputs with these (concrete) avals.

    Small groups are put `together`, so that threads share them: chains of products, and what is
    independent. Intrinsics of the names `ending` take in a map of what they have made.
    """
    plan = Storage(graph, layouts)
    plan.visit()
    order = _joined(plan.drafts)
    _share_elements(order, plan)
    return _built(plan, order, together, ending)


# -- joining kernels over one index space ----------------------------------------------------------


def _joined(drafts: Sequence[Draft]) -> list[Draft]:
    """The drafts in an order of execution, maps over one index space joined where that is sound.

    A map joins an earlier one if all else that it reads is there by then, and if it reads what the
    other computes element by element.
    """
    order: list[Draft] = []
    made_at: dict[Stored, int] = {}
    hosts = _Hosts()
    for draft in drafts:
        needed = {made_at[r.stored] for r in draft.leaves if r.stored in made_at}
        place = _host(draft, needed, order, hosts, made_at) if draft.kind == "map" else None
        if place is None:
            place = len(order)
            order.append(draft)
            hosts.add(draft, place)
        else:
            _absorb(order[place], draft)
        hosts.touch(draft, place)
        made_at.update((s, place) for s in draft.results)
    return order


class _Hosts:
    """Maps that others may join: by what they read and write, and the latest of each shape."""

    def __init__(self):
        self._by_shape: dict[tuple[int, ...], list[int]] = {}
        self._by_array: dict[tuple[Stored, tuple[int, ...]], list[int]] = {}

    def add(self, draft: Draft, place: int) -> None:
        if draft.kind == "map":
            self._by_shape.setdefault(draft.shape, []).append(place)

    def touch(self, draft: Draft, place: int) -> None:
        if draft.kind == "map":
            for stored in (*(r.stored for r in draft.leaves), *draft.results):
                self._by_array.setdefault((stored, draft.shape), []).append(place)

    def candidates(self, draft: Draft) -> list[int]:
        """Where a map may go, the latest first; not all, so that this takes linear time."""
        found: set[int] = set()
        for r in draft.leaves:
            found.update(self._by_array.get((r.stored, draft.shape), ())[-RECENT:])
        if draft.results[0].aval.size <= SMALL:
            found.update(self._by_shape.get(draft.shape, ())[-RECENT:])
        return sorted(found, reverse=True)


def _host(
    draft: Draft,
    needed: set[int],
    order: Sequence[Draft],
    hosts: _Hosts,
    made_at: dict[Stored, int],
) -> int | None:
    """The position of the map that `draft` can join."""
    latest = max(needed, default=-1)
    for place in hosts.candidates(draft):
        if place < latest:
            return None
        host = order[place]
        inside = [r for r in draft.leaves if made_at.get(r.stored) == place]
        if not all(r.is_whole and r.aval.shape == draft.shape for r in inside):
            continue
        arrays = {id(r.stored) for r in (*host.leaves, *draft.leaves)}
        outputs = len(host.results) + len(draft.results)
        if is_moderate(host.parts | draft.parts) and len(arrays) + outputs <= MOST_ARRAYS:
            return place
    return None


def _absorb(host: Draft, draft: Draft) -> None:
    own = {id(s) for s in host.results}
    known = {(id(r.stored), r.offset, r.aval) for r in host.leaves}
    host.members += draft.members
    host.results += draft.results
    host.parts = host.parts | draft.parts
    host.leaves += [
        r
        for r in draft.leaves
        if id(r.stored) not in own and (id(r.stored), r.offset, r.aval) not in known
    ]


def _share_elements(order: list[Draft], plan: Storage) -> None:
    """Let a map compute the elements of a later fold that need values which only the map has.

    One array of elements is then stored instead of the several that they are made of.
    """
    made_at = {s: k for k, d in enumerate(order) for s in d.results}
    readers: dict[Stored, set[int]] = {}
    for k, d in enumerate(order):
        for r in d.leaves:
            readers.setdefault(r.stored, set()).add(k)
    for k, fold in enumerate(order):
        if fold.kind != "fold" or fold.equation is None:
            continue
        (x,) = fold.equation.inputs
        if x in plan.regions or x not in plan.lazy:
            continue
        own = [
            r.stored
            for r in fold.leaves
            if r.is_whole and readers[r.stored] == {k} and not r.stored.is_output
        ]
        places = {made_at[s] for s in own if s in made_at and order[made_at[s]].kind == "map"}
        if len(places) != 1:
            continue
        (place,) = places
        host = order[place]
        others = [made_at.get(r.stored, -1) for r in fold.leaves]
        if host.shape != squeezed(x.aval.shape) or max(others) > place:
            continue
        inside = [r for r in fold.leaves if made_at.get(r.stored) == place]
        if not all(squeezed_region(r).is_whole for r in inside):
            continue
        lazy = plan.lazy[x]
        if not is_moderate(host.parts | lazy.parts):
            continue
        region = plan.new_region(x)
        leaves = [squeezed_region(r) for r in lazy.leaves]
        _absorb(host, Draft("map", host.shape, [x], leaves, None, lazy.parts, [region.stored]))
        plan.regions[x] = region
        fold.leaves = [region]
        made_at[region.stored] = place
        readers[region.stored] = {k}


# -- from drafts to groups -------------------------------------------------------------------------


def _built(
    plan: Storage, order: Sequence[Draft], together: bool, ending: Collection[str]
) -> Grouped:
    readers: dict[Stored, set[int]] = {}
    for k, d in enumerate(order):
        for r in d.leaves:
            readers.setdefault(r.stored, set()).add(k)
    groups: list[Group] = []
    for k, d in enumerate(order):
        if d.kind == "map":
            kept = [s for s in d.results if s.is_output or readers.get(s, set()) - {k}]
            groups += _map_group(plan, d, kept)
        elif d.kind == "copy":
            groups += _copy_group(d)
        elif d.kind == "fold":
            groups += _fold_group(plan, d)
        elif d.kind == "boxes":
            groups += _box_groups(plan, d)
        else:
            assert d.equation is not None
            groups.append(CallGroup(d.equation, d.regions, d.results))
    groups = ended(sequenced(groups), ending)
    if together:
        groups = parallel(chained(groups))
    return Grouped(plan.inputs, plan.constants, groups, plan.outputs)


def _bodies(
    plan: Storage, d: Draft, shape: tuple[int, ...], own: dict[Stored, Var] | None = None
) -> Bodies:
    # A variable may have been stored after this kernel was drafted, and is not there yet.
    readable = {r.stored for r in d.leaves}
    squeeze = own is not None
    return Bodies(plan.regions, plan.lazy, plan.literals, shape, squeeze, own, readable)


def _map_group(plan: Storage, d: Draft, kept: list[Stored]) -> list[Group]:
    if 0 in d.shape or not kept:
        return []
    own = dict(zip(d.results, d.members, strict=True))
    bodies = _bodies(plan, d, d.shape, own)
    found = [bodies.member(s) for s in kept]
    strides = dense_strides(d.shape)
    writes = [Access(s, 0, strides) for s in kept]
    label = "+".join(plan.lazy[v].eq.op.name for v in d.members)
    return [MapGroup(d.shape, bodies.reads, writes, found, label)]


def _copy_group(d: Draft) -> list[Group]:
    if 0 in d.shape:
        return []
    (region,) = d.regions
    (copy,) = d.results
    body = Bodies.plain_copy(region.aval.dtype)
    assert region.aval.strides is not None
    reads = [Access(region.stored, region.offset, region.aval.strides)]
    return [MapGroup(d.shape, reads, [Access(copy, 0, dense_strides(d.shape))], [body], "copy")]


def _fold_group(plan: Storage, d: Draft) -> list[Group]:
    eq = d.equation
    assert eq is not None
    (x,) = eq.inputs
    shape, ndim = x.aval.shape, x.aval.ndim
    running = eq.op.lowering.keep
    axes = (eq.static["axis"],) if running else eq.static["axes"]
    order = [a for a in range(ndim) if a not in axes] + list(axes)
    if d.results[0].aval.size == 0:
        return []
    bodies = _bodies(plan, d, shape)
    kernel = bodies.fold(eq)
    reads = [Access(a.stored, a.offset, tuple(a.strides[k] for k in order)) for a in bodies.reads]
    strides = (
        dense_strides(shape)
        if running
        else dense_strides(tuple(shape[a] for a in order[: ndim - len(axes)]))
    )
    write = Access(d.results[0], 0, tuple(strides[k] for k in order) if running else strides)
    kept = tuple(shape[a] for a in order[: ndim - len(axes)])
    folded = tuple(shape[a] for a in axes)
    reverse = running and eq.static["reverse"]
    return [FoldGroup(kernel, kept, folded, reads, write, reverse, eq.op.name)]


def _box_groups(plan: Storage, d: Draft) -> list[Group]:
    eq = d.equation
    assert eq is not None
    (result,) = d.results
    dense = dense_strides(result.aval.shape)
    groups: list[Group] = []
    for p in eq.op.lowering.place(*[v.aval for v in eq.inputs], **eq.static):
        if 0 in p.shape:
            continue
        bodies = _bodies(plan, d, p.shape)
        body = bodies.part(eq.inputs[p.operand], p.shape)
        offset = sum(b * s for b, s in zip(p.start, dense, strict=True))
        steps = tuple(t * s for t, s in zip(p.step, dense, strict=True))
        write = Access(result, offset, steps)
        groups.append(MapGroup(p.shape, bodies.reads, [write], [body], eq.op.name))
    return groups
