"""A program of one operation: what eager mode runs, prepared once for each kind of operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import Any

from pullback.compile.kernel.lower import (
    broadcast_strides,
    copy_kernel,
    fold_kernel,
    gather_kernel,
    map_kernel,
    scatter_kernel,
)
from pullback.compile.program.indexing import indexed_axes
from pullback.compile.program.stages import Program, Scratch, Stage
from pullback.compile.program.target import (
    Fault,
    FlatProgram,
    IndexArrays,
    Target,
    WantedPlan,
)
from pullback.core.avals import Aval, aval, dense_strides
from pullback.core.dtypes import DType, bool_
from pullback.ir.lowering import Boxes, Elementwise, Fold, GatherRows, Intrinsic, ScatterRows, View
from pullback.ir.op import Op
from pullback.ir.plans import Plan, same_memory
from pullback.ops.families import broadcast_shapes

__all__ = ["plan_copy", "plan_single", "plan_write"]

Static = dict[str, Any]
Avals = tuple[Aval, ...]
Run = Callable[..., Any]


def plan_single(target: Target, op: Op, avals: Avals, static: Static, out: Aval) -> Plan:
    """Prepare `op` for operands with these avals; `out` is the inferred result, dense."""
    return _PLANNERS[type(op.lowering)](target, op, avals, static, out)


def _program(
    target: Target,
    inputs: int,
    out: Aval,
    stages: Sequence[Stage],
    heavy: bool,
    scratch: Sequence[int] = (),
    faults: Sequence[tuple[str, Fault]] = (),
) -> Run:
    """The function of buffers that runs stages; what they find becomes an exception."""
    run = target.encode(Program(inputs, out.nbytes, scratch, (), stages, heavy), faults)
    return _checked(run, faults) if faults else run


def _elementwise(target: Target, op: Any, avals: Avals, static: Static, out: Aval) -> Plan:
    repeated = _repeated(avals, out)
    if repeated is not None:
        dtypes = tuple([a.dtype for a in avals])
        make = _flat(target, op.lowering, dtypes, tuple(static.items()), out.dtype, repeated)
        if make is not None:
            return Plan(make(out.size), out, make)
    kernel = map_kernel(op.lowering, [a.dtype for a in avals], static, out.dtype)
    strides = [broadcast_strides(a, out.shape) for a in avals]
    return Plan(_mapped(target, kernel, out, strides), out)


def _repeated(avals: Avals, out: Aval) -> tuple[bool, ...] | None:
    """Of operands that are all dense, or one element repeated, which are the latter."""
    if out.size < 2:
        return None
    found = []
    for a in avals:
        if a.dense and a.shape == out.shape:
            found.append(False)
        elif a.repeats:
            found.append(True)
        else:
            return None
    return tuple(found)


# Programs know no shape but the number of elements: those of ever new shapes are made from here.
@lru_cache(64)  # of which each may keep a kernel
def _flat(
    target: Target,
    low: Elementwise,
    inputs: tuple[DType, ...],
    static: tuple[tuple[str, Any], ...],
    out: DType,
    repeated: tuple[bool, ...],
) -> FlatProgram | None:
    return target.flat(map_kernel(low, inputs, dict(static), out), repeated)


def _mapped(target: Target, kernel: Any, out: Aval, strides: Sequence[tuple[int, ...]]) -> Run:
    slots, own = range(1, 1 + len(strides)), dense_strides(out.shape)
    stages = target.map(kernel, out.shape, [0], [own], slots, strides, shared=True)
    heavy = out.size > target.tuning.light_elements
    return _program(target, len(strides), out, stages, heavy)


def _view(target: Target, op: Any, avals: Avals, static: Static, out: Aval) -> Plan:
    (av,) = avals
    placed = op.lowering.place(av, **static)
    if placed is None:
        dense = plan_copy(target, av)
        run, placed = dense.run, op.lowering.place(dense.aval, **static)
        offset, shape, strides = placed
        assert offset == 0
        return Plan(run, aval(shape, av.dtype, av.device, strides))
    offset, shape, strides = placed
    new = aval(shape, av.dtype, av.device, strides)
    if offset == 0 or new.size == 0:
        return Plan(same_memory, new)
    nbytes, view = offset * av.dtype.itemsize, target.view
    return Plan(lambda buf: view(buf, nbytes), new)


def plan_copy(target: Target, av: Aval) -> Plan:
    """Prepare a row-major copy."""
    assert av.strides is not None
    out = aval(av.shape, av.dtype, av.device)
    return Plan(_mapped(target, copy_kernel(av.dtype), out, [av.strides]), out)


def plan_write(target: Target, to: Aval, value: Aval) -> Run:
    """A function of two buffers that writes an array to a view, to whose shape it broadcasts."""
    assert to.strides is not None
    strides = [broadcast_strides(value, to.shape)]
    kernel = copy_kernel(to.dtype)
    stages = target.map(kernel, to.shape, [1], [to.strides], [2], strides, shared=True)
    heavy = to.size > target.tuning.light_elements
    return target.encode(Program(2, 0, (), (), stages, heavy))


def _fold(target: Target, op: Any, avals: Avals, static: Static, out: Aval) -> Plan:
    (av,) = avals
    assert av.strides is not None
    kernel = fold_kernel(op.lowering, av, static, out.dtype)
    axes = (static["axis"],) if op.lowering.keep else static["axes"]
    order = [d for d in range(av.ndim) if d not in axes] + list(axes)
    kept = [av.shape[d] for d in order[: av.ndim - len(axes)]]
    strides = [tuple(av.strides[d] for d in order)]
    area = Scratch(2)
    if op.lowering.keep:
        dense, length = dense_strides(out.shape), av.shape[static["axis"]]
        own = tuple(dense[d] for d in order)
        stages = target.accumulate(kernel, kept, length, [1], strides, 0, own, static["reverse"])
    else:
        folded = [av.shape[d] for d in axes]
        stages = target.reduce(kernel, kept, folded, [1], strides, 0, area, shared=True)
    heavy = av.size > target.tuning.light_elements
    return Plan(_program(target, 1, out, stages, heavy, area.sizes), out)


def _boxes(target: Target, op: Any, avals: Avals, static: Static, out: Aval) -> Plan:
    dense = dense_strides(out.shape)
    kernel = copy_kernel(out.dtype)
    stages = []
    for p in op.lowering.place(*avals, **static):
        offset = sum(b * s for b, s in zip(p.start, dense, strict=True))
        steps = tuple(t * s for t, s in zip(p.step, dense, strict=True))
        source = broadcast_strides(avals[p.operand], p.shape)
        if 0 not in p.shape:
            stages.append(target.box(kernel, p.shape, 0, offset, steps, [p.operand + 1], [source]))
    heavy = out.nbytes > target.tuning.light_bytes
    return Plan(_program(target, len(avals), out, stages, heavy), out)


def _gather(target: Target, op: Any, avals: Avals, static: Static, out: Aval) -> Plan:
    x, *indices = avals
    assert x.strides is not None
    n = len(indices)
    lead = out.ndim - (x.ndim - n)
    sizes = x.shape[:n]
    if out.size == 0:
        return _inspection(target, op, sizes, indices, out)
    kernel = gather_kernel(avals)
    x_strides = (0,) * lead + x.strides[n:]
    index_strides = [broadcast_strides(i, out.shape) for i in indices]
    slots = range(2, 2 + n)
    arrays = IndexArrays(slots, index_strides, list(zip(sizes, x.strides[:n], strict=True)))
    heavy = out.size > target.tuning.light_elements
    faults = _axes(op.name, sizes, indices, out, lead)

    def program(plan: Sequence[int] | None) -> Run:
        stages = target.gather(kernel, out.shape, 1, x_strides, arrays, 0, plan)
        return _program(target, 1 + n, out, stages, heavy, (), faults)

    run = program(None)
    wanted = target.gather_plan(kernel, out.shape, x_strides, index_strides, sizes[0])
    if wanted is not None:
        run = _by_plan(target, run, cache(lambda: program(slots)), indices[0].dtype, wanted)
    return Plan(run, out)


def _scatter(target: Target, op: Any, avals: Avals, static: Static, out: Aval) -> Plan:
    x, updates, *indices = avals
    assert x.strides is not None and updates.strides is not None
    n = len(indices)
    lead = updates.ndim - (x.ndim - n)
    dense = dense_strides(x.shape)
    sizes = x.shape[:n]
    if out.size == 0 and updates.size == 0:
        return _inspection(target, op, sizes, indices, out)
    kernel = scatter_kernel(op.lowering, avals)
    index_strides = [broadcast_strides(i, updates.shape) for i in indices]
    heavy = x.size + updates.size > target.tuning.light_elements
    faults = _axes(op.name, sizes, indices, updates, lead)

    def program(arrays: int) -> Run:
        """The function of x, indices (or the arrays of their plan) and updates."""
        inputs = 2 + (arrays or n)
        area = Scratch(1 + inputs)
        stages = target.scatter(
            kernel,
            (x.shape, 1, x.strides or ()),
            (updates.shape, inputs, updates.strides or ()),
            (0, (0,) * lead + dense[n:]),
            IndexArrays(range(2, 2 + n), index_strides, list(zip(sizes, dense[:n], strict=True))),
            area,
            range(2, inputs) if arrays else None,
        )
        return _program(target, inputs, out, stages, heavy, area.sizes, faults)

    made = program(0)
    wanted = target.scatter_plan(kernel, x.shape, updates.shape, index_strides)
    if wanted is not None:
        planned = cache(lambda: program(len(wanted.sizes())))
        made = _by_plan(target, made, planned, indices[0].dtype, wanted)

    def run(x: Any, updates: Any, *indices: Any) -> Any:
        return made(x, *indices, updates)

    return Plan(run, out)


def _inspection(
    target: Target, op: Any, sizes: Sequence[int], indices: Sequence[Aval], out: Aval
) -> Plan:
    """The plan of an empty result: all that is done is to look at the indices."""
    shape = broadcast_shapes(op.name, *[i.shape for i in indices])
    if 0 in shape:
        return Plan(lambda *bufs: target.empty(0), out)
    table = aval(tuple(sizes), bool_, out.device, (0,) * len(sizes))
    look = _gather(target, op, (table, *indices), {}, aval(shape, bool_, out.device)).run
    byte = target.empty(1)  # it is read, and never looked at

    def run(*bufs: Any) -> Any:
        look(byte, *bufs[-len(indices) :])
        return target.empty(0)

    return Plan(run, out)


def _by_plan(
    target: Target, program: Run, planned: Callable[[], Run], index: DType, wanted: WantedPlan
) -> Run:
    """A program of x and indices, or if there is a plan of these, of x and its arrays."""
    find = target.plan_arrays

    def run(x: Any, indices: Any, *rest: Any) -> Any:
        arrays = find(indices, index, wanted)
        if arrays is None:
            return program(x, indices, *rest)
        return planned()(x, *arrays, *rest)

    return run


def _checked(program: Run, faults: Sequence[tuple[str, Fault]]) -> Run:
    """The program with its error word turned into an exception."""

    def run(*bufs: Any) -> Any:
        result = program(*bufs)
        if type(result) is tuple:
            code, position, value = result
            name, fault = faults[code - 1]
            raise fault.error(name, position, value)
        return result

    return run


def _axes(
    name: str, sizes: Sequence[int], indices: Sequence[Aval], places: Aval, lead: int
) -> list[tuple[str, Fault]]:
    """The error codes of the axes that indices go into."""
    return [(name, axis) for axis in indexed_axes(sizes, indices, places.shape, lead)]


def _intrinsic(target: Target, op: Any, avals: Avals, static: Static, out: Aval) -> Plan:
    routine = target.routines[op.lowering.name]
    if routine.direct is not None:
        return Plan(routine.direct(avals, static, out), out)
    key = (target, op.lowering.name, avals, tuple(static.items()), out)
    if routine.large(avals, static, out):
        return Plan(lambda *bufs: _kept_program(*key)(*bufs), out)
    return Plan(_routine_program(*key), out)


def _routine_program(
    target: Target, name: str, avals: Avals, static: Iterable[tuple[str, Any]], out: Aval
) -> Run:
    """The program of an intrinsic, whose kernels are compiled side by side."""
    routine, area, words = target.routines[name], Scratch(1 + len(avals)), dict(static)
    places = list(enumerate(avals, 1))
    stages = target.together(routine.stages, places, words, (0, out), area, 1)
    faults = routine.faults(avals, words, out)
    heavy = routine.heavy(avals, out)
    return _program(target, len(avals), out, stages, heavy, area.sizes, faults)


_kept_program = lru_cache(16)(_routine_program)


_PLANNERS = {
    Elementwise: _elementwise,
    View: _view,
    Fold: _fold,
    Boxes: _boxes,
    GatherRows: _gather,
    ScatterRows: _scatter,
    Intrinsic: _intrinsic,
}
