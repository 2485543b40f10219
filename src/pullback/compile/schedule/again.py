"""Steps that are run again: a program in which values before the turn are made anew when asked for.

A step that is run again is the same group on other memory: what it reads is where it is by then,
and what it writes are copies. So every value has the bits that it had before, and no later pass
sees the two as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pullback.compile.schedule.chain import Again, Chain, Keep, Option, Way
from pullback.compile.schedule.flow import Flow
from pullback.compile.schedule.groups import (
    Access,
    CallGroup,
    FoldGroup,
    Group,
    MapGroup,
    Stored,
)

__all__ = ["Rerun", "reruns"]
__tuning__ = ("MOST_PLANNED",)

SHARES = (0.0, 0.3, 0.6, 0.85)  # of the crossing bytes, the cheapest, that options drop
MOST_PLANNED = 20_000  # steps of all ways together: planning 1000 takes a tenth of a second
MOST_WAYS, LEAST_WAYS = 48, 16


class Rerun(NamedTuple):
    """Steps, and what they take: `work` of all of them, `first` of those that are no repetition."""

    groups: list[Group]
    work: int
    first: int


class _Part(NamedTuple):
    """Stages that were run without keeping all, and how to run them when that is asked for."""

    start: int
    end: int
    way: Way | None  # None: a stage of which everything is wanted


def reruns(groups: Sequence[Group]) -> list[Rerun]:
    """Ways to run the steps in less memory, with more work."""
    flow = Flow(groups)
    if not flow.crossing:
        return []
    kept, touched = _options(flow)
    options, going_on = [], []
    for i, stage in enumerate(flow.stages):
        whole = sum(s.nbytes for s in stage)
        own = [sum(s.nbytes for s in k) for k in kept[i]]
        needs = [
            sum(s.nbytes for s in t if s not in kept[i - 1][j]) for j, t in enumerate(touched[i])
        ]
        works = [_work(flow, flow.closure(_without(stage, k), _known(flow, i, k))[0])
                 for k in kept[i]]  # fmt: skip
        options.append(
            [Option(a + n, whole - a, w) for a, n, w in zip(own, needs, works, strict=True)]
        )
        behind = flow.frontiers[i + 1] if i + 1 < len(flow.frontiers) else ()
        going_on.append([sum(s.nbytes for s in behind if s not in k) for k in kept[i]])
    work = [flow.stage_work(i) for i in range(len(flow.stages))]
    frontier = [sum(s.nbytes for s in f) for f in flow.frontiers]
    chain = Chain(work, options, frontier, going_on)
    found = []
    most = max(LEAST_WAYS, min(MOST_WAYS, MOST_PLANNED // len(groups)))
    for way in chain.ways(most):
        found.append(_Emitter(flow, kept, touched).run(way))
    return found


def _without(stage: Iterable[Stored], kept: set[Stored]) -> list[Stored]:
    return [s for s in stage if s not in kept]


def _known(flow: Flow, i: int, kept: set[Stored]) -> set[Stored]:
    return kept | flow.frontiers[i]


def _work(flow: Flow, steps: Iterable[int]) -> int:
    return sum(flow.work[k] for k in steps)


def _options(flow: Flow) -> tuple[list[list[set[Stored]]], list[list[set[Stored]]]]:
    """By stage and option: what is kept, and which of the frontier is needed to have the rest."""
    price: dict[Stored, float] = {}
    for i, stage in enumerate(flow.stages):
        known = flow.frontiers[i].union(stage)
        for s in stage:
            price[s] = _work(flow, flow.closure([s], known - {s})[0]) / s.nbytes
    total = sum(s.nbytes for s in price)
    order = sorted(price, key=lambda s: (price[s], flow.born(s), s.name))
    kept: list[list[set[Stored]]] = [[] for _ in flow.stages]
    touched: list[list[set[Stored]]] = [[] for _ in flow.stages]
    for share in SHARES:
        dropped, left = set(), share * total
        for s in order:
            left -= s.nbytes
            if left < 0:
                break
            dropped.add(s)
        for i, stage in enumerate(flow.stages):
            keep = {s for s in stage if s not in dropped}
            missing = _without(stage, keep)
            kept[i].append(keep)
            touched[i].append(flow.closure(missing, _known(flow, i, keep))[1] & flow.frontiers[i])
    return kept, touched


class _Emitter:
    """Writes down the steps of a program whose stages are run in some way."""

    def __init__(self, flow: Flow, kept: list[list[set[Stored]]], touched: list[list[set[Stored]]]):
        self._flow, self._kept, self._touched = flow, kept, touched
        self._at: dict[Stored, Stored] = {}  # where values from before the turn are after it
        self._parts: list[_Part] = []
        self._again: set[int] = set()  # ids of repeated groups
        self._work = 0

    def run(self, way: Way) -> Rerun:
        flow = self._flow
        groups = list(flow.groups[: flow.turn + 1])
        for s in self._open(way, len(flow.stages) - 1):
            self._at[s] = s
        for k in range(flow.turn + 1, len(flow.groups)):
            for s in flow.reads[k]:
                if s in flow.movable:
                    self._want(s, k, groups)
            group = flow.groups[k]
            if any(self._at.get(s, s) is not s for s in flow.reads[k]):
                group = _renamed(group, self._at)
            groups.append(group)
        first = sum(flow.work)
        return Rerun(_pruned(groups, self._again), first + self._work, first)

    def _open(self, way: Way, end: int) -> set[Stored]:
        """What is kept while the stages up to `end` are run in a way; notes the parts to come."""
        flow = self._flow
        saved: set[Stored] = set()
        while not isinstance(way, Keep):
            if isinstance(way, Again):
                self._parts.append(_Part(way.start, way.cut - 1, way.before))
                saved |= flow.frontiers[way.cut]
            else:
                saved |= self._one(way.start, way.option) | flow.frontiers[way.start + 1]
            way = way.rest
        for i in range(way.start, end + 1):
            saved |= self._one(i, way.option)
        return saved

    def _one(self, i: int, option: int) -> set[Stored]:
        kept = self._kept[i][option]
        if len(kept) < len(self._flow.stages[i]):
            self._parts.append(_Part(i, i, None))
        return kept | self._touched[i][option]

    def _want(self, s: Stored, step: int, groups: list[Group]) -> None:
        """See to it that a value is there before a step."""
        while s not in self._at:
            stage = self._flow.stage_of[s]
            at = [p for p in self._parts if p.start <= stage <= p.end]
            if not at:
                self._make([s], groups)
                continue
            part = at[-1]
            self._parts.remove(part)
            if part.way is None:
                targets = set(self._flow.stages[part.start])
            else:
                targets = self._open(part.way, part.end)
            ahead = {x for p in self._parts for x in self._flow.frontiers[p.start]}
            live = [x for x in targets if self._flow.last_read(x) >= step or x in ahead]
            self._make(live, groups)

    def _make(self, targets: Iterable[Stored], groups: list[Group]) -> None:
        """Run the steps again that make the targets which are not there."""
        flow = self._flow
        wanted = [s for s in targets if s not in self._at]
        copies: dict[Stored, Stored] = {}
        for k in flow.closure(wanted, self._at)[0]:
            known = {s: self._at[s] for s in flow.reads[k] if s in self._at}
            for s in flow.writes[k]:
                copies.setdefault(s, Stored(f"{s.name}*", s.aval))
            own = {s: copies[s] for s in flow.writes[k]}
            group = _renamed(flow.groups[k], {**copies, **known, **own})
            self._again.add(id(group))
            self._work += flow.work[k]
            groups.append(group)
        self._at.update((s, copies[s]) for s in wanted)


def _pruned(groups: Sequence[Group], again: set[int]) -> list[Group]:
    """The groups without what repeated maps write and nobody reads."""
    read: set[Stored] = set()
    found: list[Group] = []
    for g in reversed(groups):
        if id(g) in again:
            if not any(s in read for s in g.values_written()):
                continue
            if isinstance(g, MapGroup):
                pairs = [p for p in zip(g.writes, g.bodies, strict=True) if p[0].stored in read]
                g = replace(g, writes=[w for w, _ in pairs], bodies=[b for _, b in pairs])
        read.update(g.values_read())
        found.append(g)
    return found[::-1]


def _renamed(g: Group, to: Mapping[Stored, Stored]) -> Group:
    """The group on other memory."""

    def moved(accesses: Iterable[Access]) -> list[Access]:
        return [a._replace(stored=to.get(a.stored, a.stored)) for a in accesses]

    if isinstance(g, MapGroup):
        return replace(g, reads=moved(g.reads), writes=moved(g.writes))
    if isinstance(g, FoldGroup):
        return replace(g, reads=moved(g.reads), write=moved([g.write])[0])
    if isinstance(g, CallGroup):
        operands = [r._replace(stored=to.get(r.stored, r.stored)) for r in g.operands]
        assert g.then is None
        return replace(g, operands=operands, results=[to.get(s, s) for s in g.results])
    return replace(g, members=[_renamed(m, to) for m in g.members])
