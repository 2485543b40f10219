"""A traced scan as one equation, with derivatives of any order.

A derivative of a scan is again a scan: cotangents run against the direction of the loop, tangents
along it. Both read values of the loop's steps, which the first scan is then asked to return as
well: its equation gets more outputs. Cheap values are computed again instead.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

from pullback.autodiff.calls import Expanding, Slots, call_node, item_node, with_item
from pullback.autodiff.residuals import Definitions, choose
from pullback.autodiff.reverse import with_recording, zeros
from pullback.autodiff.series import Terms, filled_from, is_zero, lowest
from pullback.autodiff.workspace import Workspace, assembled, moved_carries, reached
from pullback.core.avals import Aval, symbolic
from pullback.ir.array import Array, Node, make, mode
from pullback.ir.control import SCAN
from pullback.ir.graph import Equation, Graph, Var
from pullback.ir.op import bind, newest_graph

__all__ = ["ScanCall", "staged_scan"]


class ScanEntry(NamedTuple):
    """Something that a call can be differentiated by."""

    kind: str  # "constant", "row" (of an array that the loop goes through) or "carry"
    inside: Node  # what stands for it on the tape of the body
    edge: Node | None  # its node outside
    position: int = 0  # among the carries


def _rows(av: Aval, length: int) -> Aval:
    return symbolic((length, *av.shape), av.dtype, av.device)


class ScanCall(Expanding):
    """One scan: of the traced function itself, or of a derivative of another scan's body."""

    def __init__(
        self,
        space: Workspace,
        length: int,
        reverse: bool,
        parent: ScanCall | None = None,
        name: str = "scan",
        recompute: bool = False,
    ):
        self.name = name
        self.space = space
        self.length = length
        self.reverse = reverse
        self.parent = parent
        self.recompute = recompute if parent is None else parent.recompute
        self.homes: dict[Equation, ScanCall] = {} if parent is None else parent.homes
        self.rows: dict[Var, Any] = {} if parent is None else parent.rows  # stacked arrays outside
        self.owners: dict[Var, ScanCall] = {} if parent is None else parent.owners  # of carries
        self.carries: list[Any] = []
        self.init: list[Any] = []
        self.results: list[Any] = []
        self.ys: list[Any] = []
        self.entries: list[ScanEntry] = []
        self.node: Node | None = None
        self.items: dict[int, Node] = {}  # nodes of the carries as they come into each step

    # -- building ----------------------------------------------------------------------------------

    def add_carry(self, init: Any, tracked: bool) -> Any:
        """A new carry that starts as `init`."""
        x = self.space.variable(init._aval, tracked)
        self.owners[x._buf] = self
        self.carries.append(x)
        self.init.append(init)
        return x

    def add_row(self, array: Any) -> Any:
        """A new input: one row of an array in each step."""
        av = array._aval
        tracked = mode.recording and array._node is not None
        x = self.space.variable(symbolic(av.shape[1:], av.dtype, av.device), tracked)
        self.rows[x._buf] = array
        if x._node is not None:
            self.entries.append(ScanEntry("row", x._node, array._node))
        return x

    def add_constant(self, array: Any) -> Any:
        """A new input that is the same in each step."""
        x = self.space.constant(array)
        if x._node is not None:
            self.entries.append(ScanEntry("constant", x._node, array._node))
        return x

    def close(self, results: Sequence[Any], ys: Sequence[Any]) -> list[Any]:
        """Add the equation; the final carries and stacked ys, connected to the tape outside."""
        self.results, self.ys = list(results), list(ys)
        self.declared = len(results) + len(ys)
        if mode.recording:
            self._find_entries()
        operands, static = self._built()
        self.graph = self._place(operands)
        avals = [a._aval for a in self.results] + [_rows(y._aval, self.length) for y in self.ys]
        avals = [symbolic(a.shape, a.dtype, a.device) for a in avals]
        outs = self.graph.add(SCAN, operands, static, avals)
        self.equation = self.graph.equations[-1]
        return self._connected(outs)

    def _place(self, operands: Sequence[Any]) -> Graph:
        """The graph that gets the equation, even if all operands are known or not used."""
        if self.parent is None:
            return newest_graph([*operands, *self.rows.values()])
        traced = [a for a in operands if a._aval.is_symbolic]
        graphs = [self.parent.graph, *([newest_graph(traced)] if traced else [])]
        return max(graphs, key=lambda g: g.depth)

    def _find_entries(self) -> None:
        """Complete the list of what the results can be differentiated by."""
        own = [x._node for x in self.carries if x._node is not None]
        if self.parent is not None:
            self.entries = self.parent.inherited() + self.entries
        known = {e.inside for e in self.entries}
        found = self.space.foreign([*self.results, *self.ys], [*known, *own])
        self.entries += [ScanEntry("constant", n, n) for n in found]
        known.update(found)
        ends = [*known, *own]
        varying = {k for k, a in enumerate(self.init) if a._node is not None}
        while True:  # a carry varies if it starts so, or becomes so in a step
            nodes = [self.carries[k]._node for k in varying if self.carries[k]._node is not None]
            self.live = reached([*self.results, *self.ys], [*known, *nodes], ends)
            more = {k for k in range(len(self.results)) if self.live[k]} - varying
            if not more:
                break
            varying |= more
        for k in sorted(varying):
            node = self.carries[k]._node
            if node is not None:
                self.entries.append(ScanEntry("carry", node, self.init[k]._node, k))

    def _connected(self, outs: list[Any]) -> list[Any]:
        if not mode.recording or not any(e.edge is not None for e in self.entries):
            return outs
        edges = [e.edge for e in self.entries]
        avals = [e.inside.aval for e in self.entries]
        self.node = call_node(self, edges, avals, outs[0]._aval, ())
        count = self.declared + len(self.carries)
        live = [*self.live, *[True] * (len(outs) - len(self.live))]
        return [
            with_item(o, self.node, i, count) if live[i] and o._aval.dtype.is_inexact else o
            for i, o in enumerate(outs)
        ]

    def inherited(self) -> list[ScanEntry]:
        """What derivatives of this call can be differentiated by: in each step a carry is a row."""
        return [
            ScanEntry("row", e.inside, self._item(e.position)) if e.kind == "carry" else e
            for e in self.entries
        ]

    def _item(self, k: int) -> Node:
        """The node of carry `k` as it comes into each step."""
        if k not in self.items:
            assert self.node is not None
            count = self.declared + len(self.carries)
            av = _rows(self.carries[k]._aval, self.length)
            self.items[k] = item_node(self.node, self.declared + k, count, av)
        return self.items[k]

    # -- cutting -----------------------------------------------------------------------------------

    def _built(self) -> tuple[list[Any], dict[str, Any]]:
        """The operands and static parameters of the equation, with all outputs asked for so far."""
        space = self.space
        outputs = space.variables_of([*self.results, *self.ys])
        carries = [x._buf for x in self.carries]
        definitions = space.definitions()
        checks = space.checks if self.parent is None else []
        cut = choose(self, [*outputs, *checks], definitions)
        for eq in cut.equations:
            self.homes.setdefault(eq, self)
        constants = {v: space.outer(v) for v in cut.needed if space.outer(v) is not None}
        rows = [v for v in cut.needed if v not in constants and v not in carries]
        homes = {v: self.home_of(v, definitions) for v in rows if v not in self.rows}
        for home in dict.fromkeys(homes.values()):
            home.keep([v for v, h in homes.items() if h is home])
        stacks = [self.rows[v] if v in self.rows else homes[v].stack_of(v) for v in rows]
        body, fixed = assembled(self.name, constants, [*carries, *rows], cut.equations, outputs)
        static = {
            "body": body, "length": self.length, "constants": len(fixed),
            "carries": len(carries), "reverse": self.reverse,
        }  # fmt: skip
        return [*fixed, *self.init, *stacks], static

    def home_of(self, var: Var, definitions: Definitions) -> ScanCall:
        """The call that computes a variable of the body."""
        return self.owners[var] if var in self.owners else self.homes[definitions[var][1]]

    def is_foreign(self, var: Var, definitions: Definitions) -> bool:
        """Whether another call computes a variable of the body."""
        return self.homes.get(definitions[var][1], self) is not self

    def is_kept(self, var: Var, definitions: Definitions) -> bool:
        """Whether the values of a variable in all steps are an output of the call it belongs to."""
        return self.home_of(var, definitions).place(var) >= 0

    def is_given(self, var: Var) -> bool:
        """Whether a variable comes from outside."""
        return var in self.rows or self.space.outer(var) is not None

    def stack_of(self, var: Var) -> Any:
        """The values in all steps of a variable that this call was asked to keep."""
        out = self.equation.outs[self.place(var)]
        return make(out, out.aval)

    def place(self, var: Var) -> int:
        """The output that stacks a variable, or -1."""
        n = len(self.results)
        for i, y in enumerate(self.ys):
            if y._buf is var:
                return n + i
        return -1

    def keep(self, variables: Sequence[Var]) -> None:
        """Let the equation return the values of these variables in all steps as well."""
        new = [v for v in dict.fromkeys(variables) if self.place(v) < 0]
        if not new:
            return
        self.ys += [make(v, v.aval) for v in new]
        operands, static = with_recording(False, self._built)
        more = [_rows(v.aval, self.length) for v in new]
        self.graph.extend(self.equation, operands, static, more)

    # -- derivatives -------------------------------------------------------------------------------

    def pull(self, node: Node, g: Slots, wanted: Container[Node] | None) -> list[Any]:
        """The cotangents, by a scan in the other direction."""
        asked = [e.edge is not None and (wanted is None or e.edge in wanted) for e in self.entries]
        back = ScanCall(self.space, self.length, not self.reverse, self, f"{self.name}.pull")
        n = len(self.results)
        outputs: list[Any] = []
        weights: list[Any] = []
        moving = [e for e in self.entries if e.kind == "carry"]
        for e in moving:
            k = e.position
            given = g.values[k]
            init = zeros(self.init[k]._aval) if given is None else given
            outputs.append(self.results[k])
            weights.append(back.add_carry(init, mode.recording))
        inside = [*self.ys[: self.declared - n], *self.carries]
        for out, given in zip(inside, g.values[n:], strict=True):
            if given is not None:
                outputs.append(out)
                weights.append(back.add_row(given))
        pairs = [(o, w) for o, w in zip(outputs, weights, strict=True) if o._node is not None]
        found = self.space.pulled(
            [o for o, _ in pairs], [w for _, w in pairs], [e.inside for e in self.entries]
        )
        return back.collected(self.entries, found, asked)

    def collected(
        self, entries: list[ScanEntry], found: list[Any], asked: Sequence[bool]
    ) -> list[Any]:
        """Close a scan of cotangents: the last value of carries, sums for constants, all rows."""
        moving = [i for i, e in enumerate(entries) if e.kind == "carry"]
        wanted = [i for i, e in enumerate(entries) if asked[i] and found[i] is not None]
        ends = {i: zeros(entries[i].inside.aval) if found[i] is None else found[i] for i in moving}
        sinks = [found[i] for i in wanted if entries[i].kind != "carry"]
        kept = self._live(sinks, [ends[i] for i in moving], [asked[i] for i in moving])
        self.carries = [self.carries[k] for k in kept]
        self.init = [self.init[k] for k in kept]
        order = [moving[k] for k in kept]
        results = [ends[i] for i in order]
        for i in wanted:
            if entries[i].kind == "constant":
                order.append(i)
                start = zeros(entries[i].inside.aval)
                results.append(self.add_carry(start, mode.recording) + found[i])
        rows = [i for i in wanted if entries[i].kind == "row"]
        values: list[Any] = [None] * len(entries)
        if not results and not rows:
            return values
        outs = self.close(results, [found[i] for i in rows])
        for i, out in zip([*order, *rows], outs, strict=True):
            values[i] = out if asked[i] else None
        return values

    def _live(self, sinks: list[Any], ends: list[Any], asked: list[bool]) -> list[int]:
        """Those carries, with the values `ends` after a step, that what is asked for depends on."""
        space = self.space
        definitions = space.definitions()
        live = {k for k, want in enumerate(asked) if want}
        while True:
            roots = space.variables_of([*sinks, *[ends[k] for k in live]])
            needed = set(space.cut(roots, definitions).needed)
            more = {k for k, x in enumerate(self.carries) if x._buf in needed} - live
            if not more:
                return sorted(live)
            live |= more

    def expand(self, node: Node, series: Sequence[Terms]) -> list[Slots]:
        """The Taylor coefficients, by a scan in the same direction that carries all of them."""
        along = ScanCall(self.space, self.length, self.reverse, self, f"{self.name}.push")
        order, first = len(series[0]), lowest(series)
        moved = self._moved(series)
        targets: list[Node] = []
        seeds: list[list[Any]] = []
        moving: list[int] = []
        for e, terms in zip(self.entries, series, strict=True):
            if e.kind == "carry" and e.position in moved:
                filled = filled_from(first, terms, e.inside.aval)
                add = lambda t: along.add_carry(t, mode.recording)  # noqa: E731
                moving.append(e.position)
            elif e.kind != "carry" and not is_zero(terms):
                filled, add = terms, along.add_row if e.kind == "row" else along.add_constant
            else:
                continue
            targets.append(e.inside)
            seeds.append([None if t is None else add(t) for t in filled])
        outputs = [*self.results, *self.ys[: self.declared - len(self.results)]]
        found = self.space.expanded(outputs, targets, seeds)
        values: list[list[Any]] = [[None] * (self.declared + len(self.carries)) for _ in series[0]]
        if not targets:
            return [Slots(v) for v in values]
        carried = dict(zip(moving, along.carries_of(len(moving), order - first), strict=True))
        places: list[tuple[int, int]] = []
        results: list[Any] = []
        ys: list[Any] = []
        for k in moving:
            for i in range(first, order):
                t = found[k][i]
                results.append(zeros(outputs[k]._aval) if t is None else t)
                places.append((i, k))
        for k in range(len(self.results), self.declared):
            for i, t in enumerate(found[k]):
                if t is not None:
                    ys.append(t)
                    places.append((i, k))
        for k in moving:
            if k in self.items:
                ys += carried[k]
                places += [(i, self.declared + k) for i in range(first, order)]
        if places:
            for (i, k), out in zip(places, along.close(results, ys), strict=True):
                values[i][k] = out
        return [Slots(v) for v in values]

    def carries_of(self, count: int, orders: int) -> list[list[Any]]:
        """The carries, which are coefficients of as many orders of `count` values."""
        return [self.carries[i * orders : (i + 1) * orders] for i in range(count)]

    def _moved(self, series: Sequence[Terms]) -> set[int]:
        """The carries that move, for series of the entries; others stay as they are."""
        pairs = list(zip(self.entries, series, strict=True))
        starts = [e.inside for e, terms in pairs if not is_zero(terms)]
        carries = {e.position: e.inside for e in self.entries if e.kind == "carry"}
        return moved_carries(self.results, carries, starts)


def staged_scan(
    f: Callable[[list[Any], list[Any]], tuple[list[Any], list[Any]]],
    init: Sequence[Any],
    xs: Sequence[Any],
    length: int,
    reverse: bool,
    name: str = "scan",
    recompute: bool = False,
) -> list[Any]:
    """The last carries and stacked ys of `f(carries, rows) -> (carries, ys)`, as one equation."""
    call = ScanCall(Workspace(name), length, reverse, name=name, recompute=recompute)
    carries = [call.add_carry(a, mode.recording) for a in init]
    rows = [call.add_row(a) for a in xs]
    results, ys = f(carries, rows)
    call.space.close()
    return call.close(results, ys)


def _run_scan(
    arrays: Sequence[Array], body: Graph, length: int, constants: int, carries: int, reverse: bool
) -> list[Any]:
    """An equation of a graph that is run on traced arrays."""
    fixed, xs = arrays[:constants], arrays[constants + carries :]

    def f(carry: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
        outs = body.run(*fixed, *carry, *rows, bind=bind)
        return outs[:carries], outs[carries:]

    init = arrays[constants : constants + carries]
    return staged_scan(f, init, xs, length, reverse, body.name)


SCAN.stage = _run_scan
