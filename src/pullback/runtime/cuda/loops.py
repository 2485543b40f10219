"""Maps, reductions and running folds as stages: the plans of `launch` with slots for names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from pullback.compile.kernel.forms import Accumulate, Map, MultiMap, Reduce
from pullback.compile.kernel.lower import zero_kernel
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Shape, Strides
from pullback.core.dtypes import DType
from pullback.runtime.cuda.fold_kernels import Fold, Folds
from pullback.runtime.cuda.folds import fold_code
from pullback.runtime.cuda.kernels import name_of
from pullback.runtime.cuda.launch import Launch, Launches, lanes_plan, map_plan, reduce_plan
from pullback.runtime.cuda.map_walks import map_walk
from pullback.runtime.cuda.printer import Source
from pullback.runtime.cuda.scan_plans import scan_plan
from pullback.runtime.cuda.stages import At, Either, Step, stage

__all__ = [
    "accumulate_stages",
    "box_stage",
    "fold_steps",
    "lanes_steps",
    "map_stages",
    "map_steps",
    "reduce_stages",
    "source_of",
    "zero_steps",
]


@lru_cache(4096)
def source_of(kernel: Map | MultiMap | Fold, functions: tuple[str, ...]) -> str:
    """The source of some functions of a kernel."""
    source = Source()
    walks = [f.removeprefix(name_of(kernel))[1:] for f in functions]
    if isinstance(kernel, Reduce | Folds):
        fold_code(source, kernel, walks)
    else:
        for walk in walks:
            map_walk(source, kernel, walk)
    return source.text()


def _steps(
    kernel: Map | MultiMap | Fold,
    plans: Sequence[Launches],
    outs: Sequence[At],
    ins: Sequence[At],
    scratch: Sequence[int] = (),
    stores: Sequence[At] = (),
    chains: At | None = None,
) -> list[Step | Either]:
    """The launches of a plan, or of one for aligned and one for other arrays, of these slots."""
    places = {f"out{k}": at for k, at in enumerate(outs)}
    places |= {f"in{k}": at for k, at in enumerate(ins)}
    places |= {f"store{k}": at for k, at in enumerate(stores)}
    places |= {f"scratch{k}": At(slot) for k, slot in enumerate(scratch)}
    if chains is not None:
        places["chains"] = chains
    functions = dict.fromkeys(one.function for plan in plans for one in plan.launches)
    source = source_of(kernel, tuple(functions))

    def step(one: Launch) -> Step:
        arguments = tuple(places[a] if isinstance(a, str) else a for a in one.arguments)
        return Step(source, one.function, (one.grid, 1), one.block, arguments)

    aligned, other = (map(step, plan.launches) for plan in (plans[0], plans[-1]))
    return [a if a == b else Either(a, b) for a, b in zip(aligned, other, strict=True)]


def _ats(slots: Sequence[int]) -> list[At]:
    return [At(slot) for slot in slots]


def map_steps(
    kernel: Map | MultiMap,
    shape: Shape,
    outs: Sequence[At],
    out_strides: Sequence[Strides],
    ins: Sequence[At],
    in_strides: Sequence[Strides],
) -> list[Step | Either]:
    """The launch of a map; which one depends on where its arrays start."""
    plans = [map_plan(kernel, shape, in_strides, out_strides, aligned) for aligned in (True, False)]
    return _steps(kernel, plans, outs, ins)


def map_stages(
    kernel: Map | MultiMap,
    shape: Shape,
    out_slots: Sequence[int],
    out_strides: Sequence[Strides],
    in_slots: Sequence[int],
    in_strides: Sequence[Strides],
    /,
    rows: int = 0,
    shared: bool = False,
) -> list[Stage]:
    """See `Target.map`."""
    outs, ins = _ats(out_slots), _ats(in_slots)
    return stage(*map_steps(kernel, shape, outs, out_strides, ins, in_strides))


def zero_steps(dtype: DType, size: int, slot: int) -> list[Step | Either]:
    """The launch that writes so many zeros."""
    return map_steps(zero_kernel(dtype), (size,), [At(slot)], [(1,)], [], [])


def box_stage(
    kernel: Map,
    shape: Shape,
    out_slot: int,
    out_offset: int,
    out_strides: Strides,
    in_slots: Sequence[int],
    in_strides: Sequence[Strides],
    /,
) -> Stage:
    """See `Target.box`."""
    out = At(out_slot, out_offset * kernel.output.itemsize)
    steps = map_steps(kernel, shape, [out], [out_strides], _ats(in_slots), in_strides)
    (found,) = stage(*steps)
    return found


def fold_steps(
    kernel: Fold,
    kept: Shape,
    reduced: Shape,
    ins: Sequence[At],
    in_strides: Sequence[Strides],
    outs: Sequence[At],
    area: Area,
    stores: Sequence[At] = (),
) -> list[Step | Either]:
    """The launches of a reduction, or of several at once; see `reduce_plan`."""
    plans = [reduce_plan(kernel, kept, reduced, in_strides, aligned) for aligned in (True, False)]
    scratch = [area(nbytes) for nbytes in plans[0].scratch]
    return _steps(kernel, plans, outs, ins, scratch, stores)


def lanes_steps(
    kernel: Folds, outputs: int, blocks: int, chains: At, outs: Sequence[At], area: Area
) -> list[Step | Either]:
    """The launches that join lanes to blocks and these to outputs; see `lanes_plan`."""
    plan = lanes_plan(kernel, outputs, blocks)
    scratch = [area(nbytes) for nbytes in plan.scratch]
    return _steps(kernel, [plan], outs, [], scratch, chains=chains)


def reduce_stages(
    kernel: Reduce,
    kept: Shape,
    reduced: Shape,
    in_slots: Sequence[int],
    in_strides: Sequence[Strides],
    out_slot: int,
    area: Area,
    /,
    by_rows: bool = False,
    piece: int = 0,
    shared: bool = False,
) -> list[Stage]:
    """See `Target.reduce`; a reduction is not cut into pieces for others."""
    ins, out = _ats(in_slots), [At(out_slot)]
    return stage(*fold_steps(kernel, kept, reduced, ins, in_strides, out, area))


def accumulate_stages(
    kernel: Accumulate,
    kept: Shape,
    length: int,
    in_slots: Sequence[int],
    in_strides: Sequence[Strides],
    out_slot: int,
    out_strides: Strides,
    reverse: bool,
    /,
) -> list[Stage]:
    """See `Target.accumulate`."""
    plan = scan_plan(kernel, kept, length, in_strides, out_strides, reverse)
    return stage(*_steps(kernel, [plan], [At(out_slot)], _ats(in_slots)))
