"""Control flow as stages: the graphs inside become lists of stages of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pullback.compile.graph.passes.control import is_slight
from pullback.compile.kernel.scalar_loops import scalar_loop
from pullback.compile.program.slots import Context, LoopSlots
from pullback.compile.program.stages import Branch, Loop, Node, While
from pullback.compile.program.waits import round_waits
from pullback.compile.schedule.groups import CallGroup, Region
from pullback.core.avals import Aval, aval
from pullback.ir.graph import Equation, Graph, Var
from pullback.ops.products import matmul

__all__ = ["BUILDERS"]


def _slot(frame: Context, r: Region) -> int:
    return frame.slot(r.stored, r.offset)


def _dense(av: Aval) -> Aval:
    return aval(av.shape, av.dtype, av.device)


class _Fixed:
    """What every round of a loop reads; small arrays are copied once if they lie across of how the
    `bodies` read them: row by row, but matrices that are multiplied by vectors column by column.
    """

    def __init__(self, frame: Context, regions: Sequence[Region], *bodies: Graph):
        self.before: list[Node] = []
        self.slots: list[int] = []
        self.layouts: list[Aval] = []
        for k, region in enumerate(regions):
            slot, layout = _slot(frame, region), region.aval
            turned = _meets_vectors(bodies, k)
            source = region._replace(aval=_turned(layout)) if turned else region
            if _is_across(source.aval) and layout.nbytes <= frame.target.tuning.copied_bytes:
                slot, layout = frame.scratch(layout.nbytes), _dense(source.aval)
                layout = _turned(layout) if turned else layout
                self.before += frame.copy(source, slot)
            self.slots.append(slot)
            self.layouts.append(layout)


def _is_across(av: Aval) -> bool:
    """Whether the elements of a row are apart, though there is an axis along which they are not."""
    assert av.strides is not None
    steps = [s for n, s in zip(av.shape, av.strides, strict=True) if n > 1]
    return len(steps) > 1 and steps[-1] != 1 and 1 in steps


def _meets_vectors(bodies: Sequence[Graph], position: int) -> bool:
    """Whether an input is a matrix, and products with single columns are all that it is for."""
    found = False
    for body in bodies:
        v = body.inputs[position]
        if v.aval.ndim != 2 or v in body.outputs:
            return False
        for eq in body.equations:
            if v in eq.inputs:
                found = eq.op is matmul.op and eq.inputs[1].aval.shape[-1] == 1
                if not found or eq.inputs[0] is not v:
                    return False
    return found


def _turned(av: Aval) -> Aval:
    """The transposed matrix."""
    assert av.strides is not None
    return aval(av.shape[::-1], av.dtype, av.device, av.strides[::-1])


class _Carried:
    """The carries of a loop: where results are wanted, and every other round in spare memory."""

    def __init__(self, frame: Context, loop: LoopSlots, group: CallGroup, first: Sequence[Region]):
        self.before: list[Node] = []
        self.slots: list[int] = []
        self.spares: list[int] = []
        self.layouts = [_dense(r.aval) for r in first]
        for region, result in zip(first, group.results, strict=False):
            # Slots of their own: nobody else's pointer may follow the exchange.
            slot = frame.table.fresh(frame.slot(result), 0)
            spare = frame.table.fresh(frame.scratch(result.nbytes), 0)
            self.before += frame.copy(region, slot)
            self.slots.append(slot)
            self.spares.append(spare)
            loop.carries[slot] = (spare, result.nbytes)


def _in_registers(frame: Context, group: CallGroup) -> Sequence[Node] | None:
    """A loop over scalars as one kernel, where the target has such."""
    kernel = scalar_loop(group.equation)
    if kernel is None:
        return None
    n, m = len(kernel.inputs), len(kernel.outputs)
    slots = [_slot(frame, r) for r in group.operands]
    steps = [r.aval.strides[0] for r in group.operands[n:] if r.aval.strides]
    results = [frame.slot(s) for s in group.results]
    written = [s.aval.size // max(1, kernel.loop.rounds) for s in group.results[m:]]
    return frame.target.scalar_loop(
        kernel,
        slots[:n],
        list(zip(slots[n:], steps, strict=True)),
        results[:m],
        list(zip(results[m:], written, strict=True)),
    )


def _scan(frame: Context, group: CallGroup) -> Sequence[Node]:
    made = _in_registers(frame, group)
    if made is not None:
        return made
    static, table = group.equation.static, frame.table
    fixed, carries, length = static["constants"], static["carries"], static["length"]
    loop = LoopSlots()
    table.loops.append(loop)
    constants = _Fixed(frame, group.operands[:fixed], static["body"])
    carried = _Carried(frame, loop, group, group.operands[fixed : fixed + carries])
    slices, places = [], []
    for x in group.operands[fixed + carries :]:
        av = x.aval
        assert av.strides is not None
        slices.append(aval(av.shape[1:], av.dtype, av.device, av.strides[1:]))
        step = av.strides[0] * av.dtype.itemsize
        places.append(_moving(frame, loop, _slot(frame, x), step, length, static["reverse"]))
    targets = []
    for y in group.results[carries:]:
        step = y.nbytes // max(1, length)
        targets.append(_moving(frame, loop, frame.slot(y), step, length, static["reverse"]))
    layouts = [*constants.layouts, *carried.layouts, *slices]
    inputs = [*constants.slots, *carried.slots, *places]
    body = frame.inner(static["body"], layouts, inputs, [*carried.spares, *targets])
    table.loops.pop()
    waits = round_waits(body, loop) if frame.target.tuning.side_by_side else ()
    moves = list(loop.moves.items())
    looped = Loop(body.stages, length, moves, loop.carry_entries(), waits)
    return [*constants.before, *carried.before, looped]


def _moving(
    frame: Context, loop: LoopSlots, slot: int, step: int, length: int, reverse: bool
) -> int:
    """A slot that starts at the first slice (`reverse`: the last) and moves on every round."""
    own = frame.table.fresh(slot, (length - 1) * step if reverse and length else 0)
    loop.moves[own] = -step if reverse else step
    return own


def _while(frame: Context, group: CallGroup) -> Sequence[Node]:
    made = _in_registers(frame, group)
    if made is not None:
        return made
    static, table = group.equation.static, frame.table
    fixed = static["constants"]
    loop = LoopSlots()
    table.loops.append(loop)
    constants = _Fixed(frame, group.operands[:fixed], static["test"], static["body"])
    carried = _Carried(frame, loop, group, group.operands[fixed:])
    flag = frame.scratch(1)
    layouts = [*constants.layouts, *carried.layouts]
    inputs = [*constants.slots, *carried.slots]
    test = frame.inner(static["test"], layouts, inputs, [flag]).stages
    before: Sequence[Node] = ()
    if is_slight(static["test"]):  # a step then tells whether there is another one
        step = _with_test(static["test"], static["body"], fixed)
        body = frame.inner(step, layouts, inputs, [*carried.spares, flag]).stages
        before, test = test, ()
    else:
        body = frame.inner(static["body"], layouts, inputs, carried.spares).stages
    table.loops.pop()
    looped = While(test, flag, body, loop.carry_entries())
    return [*constants.before, *carried.before, *before, looped]


def _with_test(test: Graph, body: Graph, constants: int) -> Graph:
    """A step of a loop, and the test of the carries that it gives."""
    step = Graph(body.name)
    new = {v: step.add_input(v.aval)._buf for v in body.inputs}
    _append(step, body, new)
    results = [new[v] for v in body.outputs]
    fixed = [new[v] for v in body.inputs[:constants]]
    tested = dict(zip(test.inputs, [*fixed, *results], strict=True))
    _append(step, test, tested)
    step.outputs = [*results, tested[test.outputs[0]]]
    return step


def _append(graph: Graph, other: Graph, new: dict[Var, Var]) -> None:
    """Add the equations of another graph, whose inputs are `new`; so are its variables then."""
    for eq in other.equations:
        inputs = tuple([new[v] for v in eq.inputs])
        new |= {v: graph.new_var(v.aval) for v in eq.outs}
        outs = tuple([new[v] for v in eq.outs])
        graph.equations.append(Equation(eq.op, inputs, eq.static, outs))


def _cond(frame: Context, group: CallGroup) -> Sequence[Node]:
    static = group.equation.static
    predicate, *operands = group.operands
    layouts = [r.aval for r in operands]
    inputs = [_slot(frame, r) for r in operands]
    results = [frame.slot(s) for s in group.results]
    then, otherwise = (
        frame.inner(static[name], layouts, inputs, results).stages for name in ("then", "otherwise")
    )
    return [Branch(_slot(frame, predicate), then, otherwise)]


BUILDERS: dict[str, Callable[[Context, CallGroup], Sequence[Node]]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
