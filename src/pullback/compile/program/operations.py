"""Stages of the operations that are no fused loop nests: indexing, sorting, products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pullback.compile.kernel.forms import Map, MultiMap
from pullback.compile.kernel.lower import broadcast_strides, gather_kernel, scatter_kernel
from pullback.compile.program.indexing import indexed_axes
from pullback.compile.program.slots import Context
from pullback.compile.program.stages import Node, Stage
from pullback.compile.program.target import Ending, Fault, IndexArrays
from pullback.compile.schedule.bodies import is_plain
from pullback.compile.schedule.groups import CallGroup, MapGroup, Region
from pullback.core.avals import Aval, dense_strides
from pullback.core.errors import PullbackError
from pullback.ir.lowering import GatherRows, Intrinsic, ScatterRows

__all__ = ["map_kernel", "product_rows", "stages_of"]


def map_kernel(g: MapGroup) -> Map | MultiMap:
    """The kernel of a map."""
    inputs = tuple(a.stored.dtype for a in g.reads)
    outputs = tuple(a.stored.dtype for a in g.writes)
    if len(outputs) == 1:
        return Map(inputs, outputs[0], g.bodies[0])
    return MultiMap(inputs, outputs, tuple(g.bodies))


def stages_of(frame: Context, group: CallGroup) -> Sequence[Node]:
    """The stages of one operation, reading and writing where the frame has its values."""
    low = getattr(group.equation.op, "lowering", None)
    if isinstance(low, Intrinsic):
        if group.then:
            return _ended(frame, group, group.then, low)
        return _intrinsic(frame, group, low, frame.slot(group.results[0]))
    build = _BUILDERS.get(type(low))
    if build is None:
        raise PullbackError(f"{group.label}: can't be compiled into a graph.")
    return build(frame, group)


def _slot(frame: Context, r: Region) -> int:
    return frame.slot(r.stored, r.offset)


def _layout(r: Region) -> tuple[Aval, tuple[int, ...]]:
    assert r.aval.strides is not None
    return r.aval, r.aval.strides


def _first_code(frame: Context, faults: Sequence[tuple[str, Fault]]) -> int:
    """The error code of the first of these faults."""
    frame.table.errors += faults
    return len(frame.table.errors) - len(faults) + 1


def _axes_code(
    frame: Context,
    name: str,
    sizes: Sequence[int],
    indices: Sequence[Region],
    places: Aval,
    lead: int,
) -> int:
    """The error code of the first of these axes, which indices go into."""
    axes = indexed_axes(sizes, [i.aval for i in indices], places.shape, lead)
    return _first_code(frame, [(name, axis) for axis in axes])


def _gather(frame: Context, group: CallGroup) -> list[Stage]:
    (result,) = group.results
    x, strides = _layout(group.operands[0])
    indices = group.operands[1:]
    shape, n = result.aval.shape, len(indices)
    if result.aval.size == 0:
        return []
    lead = len(shape) - (x.ndim - n)
    kernel = gather_kernel([r.aval for r in group.operands])
    x_strides = (0,) * lead + strides[n:]
    index_strides = [broadcast_strides(r.aval, shape) for r in indices]
    slots = [_slot(frame, r) for r in indices]
    wanted = frame.target.gather_plan(kernel, shape, x_strides, index_strides, x.shape[0])
    return frame.target.gather(
        kernel,
        shape,
        _slot(frame, group.operands[0]),
        x_strides,
        IndexArrays(
            slots,
            index_strides,
            list(zip(x.shape[:n], strides[:n], strict=True)),
            _axes_code(frame, group.label, x.shape[:n], indices, result.aval, lead),
        ),
        frame.slot(result),
        frame.table.plan(slots[0], kernel.indices[0], wanted),
    )


def _scatter(frame: Context, group: CallGroup) -> list[Stage]:
    (result,) = group.results
    base, updates, *indices = group.operands
    x, x_strides = _layout(base)
    new, new_strides = _layout(updates)
    n = len(indices)
    dense = dense_strides(x.shape)
    if x.size == 0 and new.size == 0:
        return []
    kernel = scatter_kernel(group.equation.op.lowering, [r.aval for r in group.operands])
    index_strides = [broadcast_strides(r.aval, new.shape) for r in indices]
    slots = [_slot(frame, r) for r in indices]
    wanted = frame.target.scatter_plan(kernel, x.shape, new.shape, index_strides)
    return frame.target.scatter(
        kernel,
        (x.shape, _slot(frame, base), x_strides),
        (new.shape, _slot(frame, updates), new_strides),
        (frame.slot(result), (0,) * (new.ndim - (x.ndim - n)) + dense[n:]),
        IndexArrays(
            slots,
            index_strides,
            list(zip(x.shape[:n], dense[:n], strict=True)),
            _axes_code(frame, group.label, x.shape[:n], indices, new, new.ndim - (x.ndim - n)),
        ),
        frame.scratch,
        frame.table.plan(slots[0], kernel.indices[0], wanted),
    )


def product_rows(frame: Context, group: CallGroup) -> list[Stage]:
    """The stages of a product of matrices; the last one has a unit for each row."""
    (result,) = group.results
    (a, a_strides), (b, b_strides) = map(_layout, group.operands)
    x, y = (_slot(frame, r) for r in group.operands)
    m, n = result.aval.shape
    out = frame.slot(result)

    def made(slots: Sequence[int], scratch: Callable[[int], int]) -> list[Stage] | None:
        x, y, out = slots
        return frame.target.product_rows(
            result.dtype, (m, n, a.shape[1]), (x, a_strides), (y, b_strides), out, scratch
        )

    key = "rows of a product", a, b, result.dtype
    found = frame.table.templates.stages(key, (x, y, out), frame.scratch, made)
    if found is None:
        raise PullbackError(f"matmul: no kernel makes the rows of a product of {a} and {b}.")
    return found


def _ended(frame: Context, group: CallGroup, then: MapGroup, low: Intrinsic) -> Sequence[Node]:
    """An intrinsic and a map of its result, as one kernel if the target has one."""
    (result,) = group.results
    static, routine, kernel = (
        group.equation.static,
        frame.target.routines[low.name],
        map_kernel(then),
    )
    position = next(k for k, a in enumerate(then.reads) if a.stored is result)
    outs = [frame.slot(a.stored) for a in then.writes]
    ins = [0 if a.stored is result else frame.slot(a.stored, a.offset) for a in then.reads]
    strides = [_along(a.strides, result.aval.shape) for a in then.reads]
    places = [(_slot(frame, r), r.aval) for r in group.operands]
    end = Ending(kernel, position, outs, ins, strides)
    assert routine.ended is not None
    found = routine.ended(places, static, result.aval, end, frame.scratch)
    if found is not None:
        return found
    ins[position] = frame.scratch(result.nbytes)
    first = _intrinsic(frame, group, low, ins[position])
    return [
        *first,
        *frame.target.map(
            kernel, then.shape, outs, [a.strides for a in then.writes],
            ins, [a.strides for a in then.reads],
        ),
    ]  # fmt: skip


def _along(strides: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Strides over the axes of a shape that are longer than 1, over all of them."""
    rest = iter(strides)
    return tuple(0 if n == 1 else next(rest) for n in shape)


def _intrinsic(frame: Context, group: CallGroup, low: Intrinsic, slot: int) -> Sequence[Node]:
    """What the target has for the intrinsic, whose result goes to a slot."""
    (result,) = group.results
    if result.aval.size == 0:
        return []
    static, routine = group.equation.static, frame.target.routines[low.name]
    avals = [r.aval for r in group.operands]
    faults = routine.faults(avals, static, result.aval)

    def made(slots: Sequence[int], scratch: Callable[[int], int]) -> Sequence[Node]:
        *places, out, code = slots
        given = list(zip(places, avals, strict=True))
        return routine.stages(given, static, (out, result.aval), scratch, code)

    slots = [*[_slot(frame, r) for r in group.operands], slot, _first_code(frame, faults)]
    if not is_plain(static.values()):
        return made(slots, frame.scratch)
    key = low.name, repr(static), *avals, result.aval
    return frame.table.templates.stages(key, slots, frame.scratch, made)


_BUILDERS: dict[type, Callable[[Context, CallGroup], list[Stage]]] = {
    GatherRows: _gather,
    ScatterRows: _scatter,
}
