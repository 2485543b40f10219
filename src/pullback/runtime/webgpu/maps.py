"""Map kernels as WGSL: a thread for each element or for some; the arrays are the outputs, then the
inputs.

The words are the number of elements, and where arrays are not dense the words of their nest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from pullback.compile.kernel.forms import Map, MultiMap
from pullback.compile.kernel.lower import zero_kernel
from pullback.compile.program.nest import Nest, coalesce
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Shape, Strides
from pullback.core.avals import dense_strides
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr, cast
from pullback.runtime.webgpu.arithmetic import double_needs
from pullback.runtime.webgpu.nests import EACH, LEAST_MANY, THREADS, locate, main_of, nest_words
from pullback.runtime.webgpu.printer import Source, emit, item, loaded, stored
from pullback.runtime.webgpu.stages import At, Binding, Dispatch, linear_groups, stage

__all__ = ["box_stage", "leaf_of", "map_stages", "map_steps", "put", "zero_steps"]

MOST_STATEMENTS = 64  # of an element, above which arithmetic takes longer than memory


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


class _Text(NamedTuple):
    """The source of a kernel, and how long it takes a thread: statements, calls of functions that
    an adapter may lack, whether there are loops over chains of float64.
    """

    source: str
    statements: int
    calls: int
    chains: bool


@lru_cache(4096)
def _source(kernel: Map | MultiMap, rank: int | None, each: int, plain: bool) -> _Text:
    """The source for dense arrays, or for strided ones of a rank; a thread has `each` elements, and
    float64 is `plain` or not.

    What all of them need is read before the first is computed: so many reads are under way at once.
    """
    source, outs = Source(), outputs_of(kernel)
    own, count = range(len(kernel.inputs)), len(outs) + len(kernel.inputs)
    roots = [cast(e, dtype.real) for dtype, body in outs for e in body]
    lines, names = emit(source, roots, leaf_of(kernel.inputs, "i"), plain)
    rest = iter(names)
    ats = [f"o{k}" for k in range(len(outs))]
    stores = ["  " + put(k, ats[k], dtype, [next(rest) for _ in body])
              for k, (dtype, body) in enumerate(outs)]  # fmt: skip
    items = [f"a{k}: {'vec2<u32>' if d.itemsize == 8 else 'u32'}"
             for k, d in enumerate(kernel.inputs)]  # fmt: skip
    given = ", ".join(["i: u32", *(f"{at}: u32" for at in ats), *items])
    element = [f"fn pb_element({given}) {{", *lines, *stores, "}"]
    main: list[str] = []
    ends: list[str] = []
    for e in range(each):
        i = f"i{e}"
        main.append(f"  let {i} = min(i + {e * THREADS}u, arg(0u) - 1u);")
        places = [i] * count
        if rank is not None:
            places = [f"p{e}_{k}" for k in range(count)]
            main.append(locate(rank, places, 1, i))
        main += [f"  let a{e}_{k} = load{len(outs) + k}({places[len(outs) + k]});" for k in own]
        values = [i, *places[: len(outs)], *(f"a{e}_{k}" for k in own)]
        inside = f"if (i + {e * THREADS}u < arg(0u)) {{ " if e else "{ "
        ends.append(f"  {inside}pb_element({', '.join(values)}); }}")
    text = "\n".join([source.text(), *element, main_of(each), *main, *ends, "}"])
    calls = sum("_exact(" in line for line in lines)
    words = 1 if plain else 16  # instructions of float64, about, or many on words
    statements = sum(words if "f64_" in line else 1 for line in lines)
    return _Text(text, statements, calls, any("pb_code_" in line for line in lines))


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
    rank = None if flat else len(own.shape)
    words = (size,) if flat else (size, *nest_words(own))

    def step(each: int, other: Dispatch | None, *needs: str) -> Dispatch:
        text = _source(kernel, rank, each, "double" in needs)
        groups = linear_groups(size, THREADS * each)
        return Dispatch(text.source, tuple(arrays), words, groups, faster=other, needs=needs)

    def is_many(text: _Text) -> bool:
        return size >= LEAST_MANY and text.statements <= MOST_STATEMENTS

    text = _source(kernel, rank, 1, False)
    if text.chains:
        plain = _source(kernel, rank, 1, True)
        each = EACH if is_many(plain) and not plain.calls else 1
        return [step(1, step(each, None, *double_needs(plain.source)))]
    if not is_many(text):
        return [step(1, None)]
    return [step(1, step(EACH, None, "fma")) if text.calls else step(EACH, None)]


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
