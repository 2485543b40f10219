"""Slices, embeddings and concatenations: what indexing and its derivative leave behind."""

from __future__ import annotations

from typing import Any

from pullback.compile.graph.passes.constants import is_pointwise
from pullback.compile.graph.passes.movement import without_units
from pullback.compile.graph.passes.rewriter import Rewriter, Rules
from pullback.core.avals import Aval
from pullback.ir.graph import Equation, Var
from pullback.ops.movement import broadcast_to, concat, embed, permute_dims, reshape
from pullback.ops.movement import slice as slice_

__all__ = ["rules"]

MOST_PIECES = 64  # of a concatenation that others are made part of
MOST_WRITES = 64  # looked through for the one that a slice reads
Box = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # starts, shape, steps


def _box(static: dict[str, Any]) -> Box:
    return static["starts"], static["shape"], static["steps"]


def _cut(rw: Rewriter, x: Var, box: Box, to: tuple[int, ...]) -> Var:
    starts, shape, steps = box
    static = {"starts": starts, "shape": shape, "steps": steps, "to": to}
    return rw.emit(slice_.op, (x,), static)


def _span(start: int, count: int, step: int) -> tuple[int, int]:
    """The first and last position of a range."""
    last = start + (count - 1) * step
    return min(start, last), max(start, last)


def disjoint(a: Box, b: Box) -> bool:
    """Whether two boxes certainly have no element in common."""
    for s, n, t, s2, n2, t2 in zip(*a, *b, strict=True):
        if n == 0 or n2 == 0:
            return True
        (low, high), (low2, high2) = _span(s, n, t), _span(s2, n2, t2)
        if high < low2 or high2 < low:
            return True
        if abs(t) == abs(t2) > 1 and (s - s2) % t:
            return True
    return False


# -- slices ----------------------------------------------------------------------------------------


def _slice(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    (x,) = inputs
    starts, shape, steps = box = _box(static)
    if (
        not any(starts)
        and shape == x.aval.shape
        and all(t == 1 for t, n in zip(steps, shape, strict=True) if n > 1)
    ):
        return rw.reshape(x, av.shape)
    eq = rw.made.get(x)
    if eq is None or 0 in shape:
        return None
    if not rw.only_use(x):  # then what it is made of is read for it, and for this part again
        for v in eq.inputs:
            rw.uses[v] = max(rw.uses.get(v, 0), 2)
    found = _SLICED.get(eq.op, _slice_of_pointwise)
    return found(rw, x, eq, box, av)


def _slice_of_slice(rw: Rewriter, x: Var, eq: Equation, box: Box, av: Aval) -> Var | None:
    first, outer = _box(eq.static), eq.static["to"]
    if without_units(outer) != without_units(first[1]):
        return None
    inner = iter([b for b, n in zip(zip(*box, strict=True), outer, strict=True) if n != 1])
    starts, shape, steps = [], [], []
    for s, n, t in zip(*first, strict=True):
        s2, n2, t2 = (0, 1, 1) if n == 1 else next(inner)
        starts.append(s + t * s2)
        shape.append(n2)
        steps.append(t * t2)
    return _cut(rw, eq.inputs[0], (tuple(starts), tuple(shape), tuple(steps)), av.shape)


def _slice_of_reshape(rw: Rewriter, x: Var, eq: Equation, box: Box, av: Aval) -> Var | None:
    """A reshape that only adds or drops axes of size 1 is no obstacle."""
    whole = eq.inputs[0].aval.shape
    if without_units(whole) != without_units(x.aval.shape):
        return None
    spans = zip(zip(*box, strict=True), x.aval.shape, strict=True)
    inner = iter([b for b, n in spans if n != 1])
    placed = [(0, 1, 1) if n == 1 else next(inner) for n in whole]
    starts, shape, steps = zip(*placed, strict=True) if placed else ((), (), ())
    return _cut(rw, eq.inputs[0], (starts, shape, steps), av.shape)


def _slice_of_broadcast(rw: Rewriter, x: Var, eq: Equation, box: Box, av: Aval) -> Var | None:
    small = _cut_operand(rw, eq.inputs[0], x.aval, box)
    return rw.reshape(rw.broadcast(small, box[1]), av.shape)


def _slice_of_embed(rw: Rewriter, x: Var, eq: Equation, box: Box, av: Aval) -> Var | None:
    """What was written last to the box, or the first array below that says something about it."""
    source = x
    for _ in range(MOST_WRITES):
        base, part = eq.inputs
        written = (eq.static["starts"], part.aval.shape, eq.static["steps"])
        if box == written:
            return rw.reshape(part, av.shape)
        if not disjoint(box, written):
            break
        source = base
        below = rw.maker(base, embed.op)
        if below is None:
            break
        eq = below
    else:
        return None
    return None if source is x else _cut(rw, rw.broadcast(source, x.aval.shape), box, av.shape)


def _slice_of_concat(rw: Rewriter, x: Var, eq: Equation, box: Box, av: Aval) -> Var | None:
    starts, shape, steps = box
    axis = eq.static["axis"]
    low, high = _span(starts[axis], shape[axis], steps[axis])
    at = 0
    for part in eq.inputs:
        size = part.aval.shape[axis]
        if at <= low and high < at + size:
            moved = tuple(s - at if d == axis else s for d, s in enumerate(starts))
            return _cut(rw, part, (moved, shape, steps), av.shape)
        at += size
    return None


def _slice_of_permuted(rw: Rewriter, x: Var, eq: Equation, box: Box, av: Aval) -> Var | None:
    axes = eq.static["axes"]
    placed = [b for _, b in sorted(zip(axes, zip(*box, strict=True), strict=True))]
    starts, shape, steps = zip(*placed, strict=True)
    moved = rw.emit(
        permute_dims.op, (_cut(rw, eq.inputs[0], (starts, shape, steps), shape),), eq.static
    )
    return rw.reshape(moved, av.shape)


def _slice_of_pointwise(rw: Rewriter, x: Var, eq: Equation, box: Box, av: Aval) -> Var | None:
    """A part of an elementwise result that nobody else uses is all that is computed of it."""
    if not is_pointwise(eq.op) or not rw.only_use(x) or box[1] == x.aval.shape:
        return None
    dropped = _dropped(box[1], av.shape)
    parts = tuple([_cut_operand(rw, v, x.aval, box, dropped) for v in eq.inputs])
    return rw.reshape(rw.emit(eq.op, parts, eq.static), av.shape)


def _dropped(shape: tuple[int, ...], to: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of size 1 that `shape` has and `to` has not; none if there is more to it."""
    found, at = [], 0
    for d, n in enumerate(shape):
        if at < len(to) and to[at] == n:
            at += 1
        else:
            found.append(d)
    return tuple(found) if at == len(to) and all(shape[d] == 1 for d in found) else ()


def _cut_operand(rw: Rewriter, v: Var, whole: Aval, box: Box, dropped: tuple[int, ...] = ()) -> Var:
    """The part of an operand that broadcasts to a box of `whole`, without the dropped axes."""
    lead = whole.ndim - v.aval.ndim
    spans = list(zip(*box, strict=True))[lead:]
    placed = [(0, 1, 1) if n == 1 else b for n, b in zip(v.aval.shape, spans, strict=True)]
    if not placed:
        return v
    starts, shape, steps = zip(*placed, strict=True)
    to = tuple(n for d, n in enumerate(shape, lead) if d not in dropped)
    return _cut(rw, v, (starts, shape, steps), to)


_SLICED = {
    slice_.op: _slice_of_slice,
    reshape.op: _slice_of_reshape,
    broadcast_to.op: _slice_of_broadcast,
    embed.op: _slice_of_embed,
    concat.op: _slice_of_concat,
    permute_dims.op: _slice_of_permuted,
}


# -- embeddings and concatenations -----------------------------------------------------------------


def _embed(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    base, x = inputs
    starts, shape, steps = written = static["starts"], x.aval.shape, static["steps"]
    if 0 in shape:
        return rw.broadcast(base, av.shape)
    if (
        shape == av.shape
        and not any(starts)
        and all(t == 1 for t, n in zip(steps, shape, strict=True) if n > 1)
    ):
        return x
    small = rw.maker(base, broadcast_to.op)
    if small is not None:
        return rw.emit(op, (small.inputs[0], x), static)
    eq = rw.maker(base, op)
    if (
        eq is not None
        and (eq.static["starts"], eq.inputs[1].aval.shape, eq.static["steps"]) == written
    ):
        return rw.emit(op, (eq.inputs[0], x), static)
    return None


def _concat(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    axis = static["axis"]
    filled = tuple(x for x in inputs if x.aval.shape[axis])
    if len(filled) == 1:
        return filled[0]
    if filled and len(filled) < len(inputs):
        return rw.emit(op, filled, static)
    flat = tuple(u for x in inputs for u in _pieces(rw, x, static))
    if len(inputs) < len(flat) <= MOST_PIECES:
        return rw.emit(op, flat, static)
    return _rejoined(rw, inputs, axis, av)


def _pieces(rw: Rewriter, x: Var, static: dict) -> tuple[Var, ...]:
    """What `x` is put together from along the same axis, if nobody else uses it."""
    eq = rw.maker(x, concat.op)
    return eq.inputs if eq is not None and eq.static == static and rw.only_use(x) else (x,)


def _rejoined(rw: Rewriter, inputs: tuple, axis: int, av: Aval) -> Var | None:
    """Neighbouring slices of one array, put together again, are one slice of it."""
    cuts = [rw.maker(x, slice_.op) for x in inputs]
    first = cuts[0]
    if (
        first is None
        or first.static["to"] != first.static["shape"]
        or first.static["steps"][axis] != 1
    ):
        return None
    at = first.static["starts"][axis]
    for eq in cuts:
        if eq is None or eq.inputs != first.inputs or eq.static["to"] != eq.static["shape"]:
            return None
        starts, shape, steps = _box(eq.static)
        here = tuple(at if d == axis else s for d, s in enumerate(first.static["starts"]))
        if starts != here or steps != first.static["steps"]:
            return None
        at += shape[axis]
    return _cut(
        rw, first.inputs[0], (first.static["starts"], av.shape, first.static["steps"]), av.shape
    )


def rules() -> Rules:
    """The rules of boxes."""
    return {slice_.op: [_slice], embed.op: [_embed], concat.op: [_concat]}
