"""Which values of a graph get memory, and a draft of the kernel for each of them.

A value is *stored* if it gets memory, else it is *lazy*: computed anew in every kernel that reads
it. Equations are visited in order. Elementwise operations and views of lazy values start lazy; they
are stored where an operation needs them in memory, or where computing them again would cost more
than reading them back. Views of stored values are other strides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

from pullback.compile.schedule.bodies import (
    MOST_KINDS,
    Lazy,
    applied,
    broadcast,
    dense,
    literal_of,
)
from pullback.compile.schedule.groups import Region, Stored, squeezed
from pullback.core.avals import Aval, aval
from pullback.ir.cost import AGAIN, AGAIN_REPEATED, element_facts
from pullback.ir.graph import Equation, Graph, Var
from pullback.ir.lowering import Boxes, Elementwise, Fold, View
from pullback.ir.scalar import Value
from pullback.ops.movement import broadcast_to, reshape

__all__ = ["MOST_ARRAYS", "Draft", "Storage", "is_moderate", "squeezed_region"]
__tuning__ = ("MOST_INSTRUCTIONS", "MOST_OPERATIONS", "MOST_ARRAYS")

MOST_INSTRUCTIONS = 1500  # of one kernel: beyond, compile time grows faster than speed
MOST_OPERATIONS = 128  # of one kernel, for the same reason
MOST_ARRAYS = 24  # that one kernel walks: each takes a pointer, of which registers hold few


@dataclass(eq=False)
class Draft:
    """A kernel to be: `members` are the variables it computes (one, but for maps)."""

    kind: str  # "map", "fold", "boxes", "call", "copy"
    shape: tuple[int, ...]  # of the index space, axes of size 1 left out
    members: list[Var]
    leaves: list[Region]  # what it reads, over its index space
    equation: Equation | None = None
    parts: dict[Any, int] = field(default_factory=dict)  # see `Lazy`
    results: list[Stored] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)  # operands of a call; source of a copy


def is_moderate(parts: dict[Any, int]) -> bool:
    """Whether one kernel may compute all these equations."""
    return _is_moderate(len(parts), sum(parts.values()))


def _is_moderate(operations: int, instructions: int) -> bool:
    return operations <= MOST_OPERATIONS and instructions <= MOST_INSTRUCTIONS


def _kind(eq: Equation) -> type:
    """The class of the operation's lowering; control flow has none."""
    return type(eq.op.lowering)


class Storage:
    """Decides what is stored, and drafts a kernel for each stored value."""

    def __init__(self, graph: Graph, layouts: Sequence[Aval]):
        self.graph = graph
        self.regions: dict[Var, Region] = {}
        self.lazy: dict[Var, Lazy] = {}
        self.literals: dict[Var, Value] = {}
        self.drafts: list[Draft] = []
        self.copies: dict[tuple, Region] = {}
        self.users: dict[Var, list[Equation]] = {}
        for eq in graph.equations:
            for v in dict.fromkeys(eq.inputs):
                self.users.setdefault(v, []).append(eq)
        self.wanted = set(graph.outputs)
        self.inputs = [Stored(f"input{k}", av, "input", k) for k, av in enumerate(layouts)]
        self.constants = [
            Stored(f"constant{k}", v.constant[1], "constant", k)
            for k, v in enumerate(graph.constants)
        ]
        for v, s in zip(
            (*graph.inputs, *graph.constants), (*self.inputs, *self.constants), strict=True
        ):
            self.regions[v] = Region(s, 0, s.aval)
        for v in graph.constants:
            value = literal_of(v)
            if value is not None:
                self.literals[v] = value
        self.outputs: list[Region] = []

    def visit(self) -> None:
        visitors = {
            Elementwise: self._elementwise,
            View: self._view,
            Fold: self._fold,
            Boxes: self._boxes,
        }
        for eq in self.graph.equations:
            visitors.get(_kind(eq), self._call)(eq)
        for v in self.graph.outputs:
            self.outputs.append(self._output(v))

    # -- lazy values -----------------------------------------------------------------------------

    def leaves(self, v: Var, shape: tuple[int, ...]) -> list[Region]:
        """What reading `v`, broadcast to `shape`, reads."""
        if v in self.literals:
            return []
        region = self.regions.get(v)
        own = self.lazy[v].leaves if region is None else [region]
        return own if v.aval.shape == shape else [broadcast(r, shape) for r in own]

    def _elementwise(self, eq: Equation) -> None:
        (out,) = eq.outs
        shape = out.aval.shape
        operands = list(dict.fromkeys(eq.inputs))
        while True:
            lazy = self._combined(eq, operands, shape)
            if _is_moderate(len(lazy.parts), lazy.cost) and len(lazy.leaves) < MOST_ARRAYS:
                break
            pending = [u for u in operands if u in self.lazy and u not in self.regions]
            if not pending:
                break
            self.store(max(pending, key=lambda u: self.lazy[u].cost))
        self.lazy[out] = lazy
        if self._worth_storing(out, lazy):
            self.store(out)

    def _combined(self, eq: Equation, operands: Sequence[Var], shape: tuple[int, ...]) -> Lazy:
        leaves: dict[tuple, Region] = {}
        cost, indexed = element_facts(eq)
        parts: dict[Any, int] = {eq: cost}
        for u in operands:
            for r in self.leaves(u, shape):
                leaves[id(r.stored), r.offset, r.aval] = r
            below = self.lazy.get(u)
            if below is not None and u not in self.regions:
                parts |= below.parts
                indexed = indexed or below.indexed
        return Lazy(eq, list(leaves.values()), parts, indexed)

    def _worth_storing(self, v: Var, lazy: Lazy) -> bool:
        if v in self.wanted:
            return True
        users = self.users.get(v, [])
        # Most are read once, element by element.
        once = len(users) == 1 and _kind(users[0]) is Elementwise
        if once and users[0].out.aval.size == v.aval.size:
            return False
        return self._pays(v, lazy)

    def _pays(self, v: Var, lazy: Lazy) -> bool:
        """Whether computing a value again where it is used would cost more than memory does."""
        uses = list(self._uses(v))
        kinds = {_kind(eq) for eq, _, _ in uses}
        if kinds - {Elementwise, Fold, Boxes}:
            return True
        if any(repeated for _, repeated, _ in uses) and lazy.cost > AGAIN_REPEATED:
            return True
        read = sum(size for _, _, size in uses)  # beyond its own size, elements are computed again
        if len({id(eq) for eq, _, _ in uses}) < 2 and read <= v.aval.size:
            return False
        large = sum(r.stored.aval.size * 2 > v.aval.size for r in lazy.leaves)
        return lazy.cost > AGAIN or large > 2

    def _uses(self, v: Var) -> Iterable[tuple[Equation, bool, int]]:
        """The equations that read `v`, through views too, whether its elements repeat there, and
        how many of them are read.
        """
        stack = [(v, False)]
        seen: set[tuple[Var, bool]] = set()
        while stack:
            at, repeated = stack.pop()
            for eq in self.users.get(at, ()):
                more = repeated or any(o.aval.size > at.aval.size for o in eq.outs[:1])
                if _kind(eq) is View:
                    if (eq.out, more) not in seen:
                        seen.add((eq.out, more))
                        stack.append((eq.out, more))
                else:
                    size = min(at.aval.size, v.aval.size)
                    yield eq, more and _kind(eq) is Elementwise, size

    def store(self, v: Var) -> Region:
        """Give `v` memory."""
        if v in self.regions:
            return self.regions[v]
        lazy = self.lazy[v]
        region = self.new_region(v)
        shape = squeezed(v.aval.shape)
        leaves = [squeezed_region(r) for r in lazy.leaves]
        draft = Draft("map", shape, [v], leaves, None, lazy.parts, [region.stored])
        self.drafts.append(draft)
        self.regions[v] = region
        return region

    def new_region(self, v: Var) -> Region:
        av = dense(v.aval)
        return Region(Stored(f"v{v.number}", av), 0, av)

    # -- the other kinds of equations ------------------------------------------------------------

    def _view(self, eq: Equation) -> None:
        (source,) = eq.inputs
        if source in self.literals:
            self.literals[eq.out] = self.literals[source]
        if source not in self.regions:
            lazy = self.lazy[source]
            leaves = [seen for r in lazy.leaves if (seen := applied(r, eq)) is not None]
            whole = len(leaves) == len(lazy.leaves)
            if whole and (not lazy.indexed or self._keeps_order(eq)):
                # Elements at other places are computed apart from those that are read directly.
                moved = eq.op not in (reshape.op, broadcast_to.op)
                parts = {(eq, k): n for k, n in lazy.parts.items()} if moved else lazy.parts
                self.lazy[eq.out] = Lazy(eq, leaves, parts, lazy.indexed)
                return
            self.store(source)
        region = self.regions[source]
        region = applied(region, eq) or applied(self.dense(region), eq)
        assert region is not None
        self.regions[eq.out] = region

    def _keeps_order(self, view: Equation) -> bool:
        """Whether the linear index of every element stays what it is."""
        (source,) = view.inputs
        seen = applied(self.new_region(source), view)
        return seen is not None and seen.is_whole

    def dense(self, region: Region) -> Region:
        """A row-major copy."""
        key = (id(region.stored), region.offset, region.aval)
        if key not in self.copies:
            av = aval(region.aval.shape, region.aval.dtype, region.aval.device)
            copy = Stored(f"{region.stored.name}'", av)
            own = squeezed_region(region)
            self.drafts.append(Draft("copy", own.aval.shape, [], [own], None, {}, [copy], [own]))
            self.copies[key] = Region(copy, 0, av)
        return self.copies[key]

    def _inlined(self, v: Var, free_index: bool) -> list[Region]:
        """What a kernel reads that computes `v` too; `free_index`: its index is the linear one."""
        if v in self.lazy and v not in self.regions and self.lazy[v].indexed and not free_index:
            self.store(v)
        return self.leaves(v, v.aval.shape)

    def _fold(self, eq: Equation) -> None:
        (x,) = eq.inputs
        running = eq.op.lowering.keep
        everything = not running and eq.static["axes"] == tuple(range(x.aval.ndim))
        leaves = self._inlined(x, everything)
        if x in self.lazy and not running and _is_broken(leaves, eq.static["axes"]):
            leaves = [self.store(x)]
        if not leaves:  # of numbers alone: walks are made by what is read
            leaves = [self.store(x)]
        region = self.new_region(eq.out)
        self.drafts.append(
            Draft("fold", squeezed(x.aval.shape), [eq.out], leaves, eq, {}, [region.stored])
        )
        self.regions[eq.out] = region

    def _boxes(self, eq: Equation) -> None:
        leaves = [r for v in dict.fromkeys(eq.inputs) for r in self._inlined(v, False)]
        region = self.new_region(eq.out)
        self.drafts.append(Draft("boxes", (), [eq.out], leaves, eq, {}, [region.stored]))
        self.regions[eq.out] = region

    def _call(self, eq: Equation) -> None:
        operands = [self.store(v) for v in eq.inputs]
        new = [self.new_region(v) for v in eq.outs]
        results = [r.stored for r in new]
        self.drafts.append(Draft("call", (), list(eq.outs), operands, eq, {}, results, operands))
        self.regions.update(zip(eq.outs, new, strict=True))

    def _output(self, v: Var) -> Region:
        region = self.store(v)
        part = region.stored.origin == "computed" and not region.is_whole
        if part or not region.aval.dense:
            region = self.dense(region)
        if region.stored.origin == "computed":
            region.stored.is_output = True
        return region


def squeezed_region(r: Region) -> Region:
    return Region(r.stored, r.offset, _squeezed(r.aval))


@lru_cache(MOST_KINDS)
def _squeezed(av: Aval) -> Aval:
    """The array without axes of size 1."""
    assert av.strides is not None
    strides = tuple([s for n, s in zip(av.shape, av.strides, strict=True) if n != 1])
    return aval(squeezed(av.shape), av.dtype, av.device, strides)


def _is_broken(leaves: Sequence[Region], axes: Sequence[int]) -> bool:
    """Whether a walk over these axes, as one, would stop and start in an array that it repeats."""
    for r in leaves:
        assert r.aval.strides is not None
        pairs = [(r.aval.shape[a], r.aval.strides[a]) for a in axes if r.aval.shape[a] != 1]
        merges = all(a[1] == b[0] * b[1] for a, b in pairwise(pairs))
        if not merges and any(s == 0 for _, s in pairs):
            return True
    return False
