"""Map kernels as WGSL: one thread for each element, whose arrays are the outputs, then the inputs.

The words are the number of elements, and where arrays are not dense the words of their nest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

from pullback.compile.kernel.forms import Map, MultiMap
from pullback.compile.kernel.lower import zero_kernel
from pullback.compile.program.nest import Nest, coalesce
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Shape, Strides
from pullback.core.avals import dense_strides
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr, cast
from pullback.runtime.webgpu.nests import MAIN, THREADS, locate, nest_words
from pullback.runtime.webgpu.printer import Source, emit, item, loaded, stored
from pullback.runtime.webgpu.stages import At, Binding, Dispatch, linear_groups, stage

__all__ = ["box_stage", "leaf_of", "map_stages", "map_steps", "put", "zero_steps"]


def outputs_of(kernel: Map | MultiMap) -> list[tuple[DType, tuple[Expr, ...]]]:
    """The dtype and the expressions of each output."""
    if isinstance(kernel, Map):
        return [(kernel.output, kernel.body)]
    return list(zip(kernel.outputs, kernel.bodies, strict=True))


def leaf_of(inputs: Sequence[DType], index: str) -> Callable[[Expr], str]:
    """Reads operand k from the variable `a{k}`, an item; `index` is a u32."""

    def leaf(e: Expr) -> str:
        if e.op == "index":
            return f"vec2<u32>({index}, 0u)"
        position, part = e.value  # type: ignore[misc]
        dtype = inputs[position]
        text = f"a{position}.{'xy'[part]}" if dtype.is_complex else f"a{position}"
        return loaded(text, dtype.real)

    return leaf


def put(k: int, at: str, dtype: DType, names: Sequence[str]) -> str:
    """The statement that stores the parts of an element in array k."""
    parts = [stored(name, dtype.real) for name in names]
    return (
        f"store{k}({at}, {f'vec2<u32>({parts[0]}, {parts[1]})' if dtype.is_complex else parts[0]});"
    )


@lru_cache(4096)
def _source(kernel: Map | MultiMap, rank: int | None) -> str:
    """The source for dense arrays, or for strided ones of a rank."""
    source, outs = Source(), outputs_of(kernel)
    count = len(outs) + len(kernel.inputs)
    ats = ["i"] * count if rank is None else [f"o{k}" for k in range(count)]
    roots = [cast(e, dtype.real) for dtype, body in outs for e in body]
    lines, names = emit(source, roots, leaf_of(kernel.inputs, "i"))
    rest = iter(names)
    body = [
        "" if rank is None else locate(rank, ats, 1, "i"),
        *(f"  let a{k} = load{len(outs) + k}({ats[len(outs) + k]});"
          for k in range(len(kernel.inputs))),
        *lines,
        *("  " + put(k, ats[k], dtype, [next(rest) for _ in own])
          for k, (dtype, own) in enumerate(outs)),
        "}",
    ]  # fmt: skip
    return "\n".join([source.text(), MAIN, *body])


def map_steps(
    kernel: Map | MultiMap,
    shape: Shape,
    outs: Sequence[At],
    out_strides: Sequence[Strides],
    ins: Sequence[At],
    in_strides: Sequence[Strides],
) -> list[Dispatch]:
    """The dispatch of a map."""
    size, dense = math.prod(shape), dense_strides(shape)
    if size == 0:
        return []
    # the index counts row-major, so it moves along with dense arrays
    nest = coalesce(shape, [*out_strides, *in_strides, dense])
    own = Nest(nest.shape, nest.strides[:-1])
    flat = all(s in ((), (1,)) for s in own.strides)
    arrays = [
        *(
            Binding(at, item(d), "write")
            for at, (d, _) in zip(outs, outputs_of(kernel), strict=True)
        ),
        *(Binding(at, item(d)) for at, d in zip(ins, kernel.inputs, strict=True)),
    ]
    source = _source(kernel, None if flat else len(own.shape))
    words = (size,) if flat else (size, *nest_words(own))
    return [Dispatch(source, tuple(arrays), words, linear_groups(size, THREADS))]


def map_stages(
    kernel: Map | MultiMap,
    shape: Shape,
    out_slots: Sequence[int],
    out_strides: Sequence[Strides],
    in_slots: Sequence[int],
    in_strides: Sequence[Strides],
    /,
    by_rows: bool = False,
    shared: bool = False,
) -> list[Stage]:
    """See `Target.map`."""
    outs, ins = ([At(s) for s in slots] for slots in (out_slots, in_slots))
    return stage(*map_steps(kernel, shape, outs, out_strides, ins, in_strides))


def zero_steps(dtype: DType, size: int, slot: int) -> list[Dispatch]:
    """The dispatch that writes so many zeros."""
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
    steps = map_steps(kernel, shape, [out], [out_strides], [At(s) for s in in_slots], in_strides)
    (found,) = stage(*steps)
    return found
