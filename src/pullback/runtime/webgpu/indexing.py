"""Reading at indices, and looking whether they are good.

    check   lets the words of an error hold the first bad position
    note    lets them hold the index that was found there
    read    reads, and notes

The first stream of the nest of `check` and `note` is the row-major position, of `read` the place in
x and then the position. A bad index reads element 0, so that nothing is touched that is not there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from pullback.compile.kernel.forms import Gather
from pullback.compile.program.nest import coalesce
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import IndexArrays, Shape, Strides
from pullback.core.avals import dense_strides
from pullback.core.dtypes import DType, int64, uint64
from pullback.runtime.webgpu.nests import (
    EACH,
    LEAST_MANY,
    MAIN,
    THREADS,
    locate,
    main_of,
    nest_words,
)
from pullback.runtime.webgpu.printer import convert, item, loaded
from pullback.runtime.webgpu.stages import (
    At,
    Binding,
    Dispatch,
    fault_words,
    linear_groups,
    stage,
)

__all__ = ["axes_words", "check_steps", "gather_stages", "index_functions", "wrapped"]

_WIDE = {"i": int64, "u": uint64, "b": uint64}
Indexed = Sequence[tuple[int, int]]  # size and stride of each indexed axis
AXIS_WORDS = 3  # of an axis: its size, the least index, its stride


def axes_words(indexed: Indexed, wraps: bool = True) -> tuple[int, ...]:
    """The words of indexed axes; `wraps`: negative indices count from the end."""
    return tuple([w for size, step in indexed for w in (size, -size if wraps else 0, step)])


def index_functions(indices: Sequence[DType], array: int, axes: int) -> str:
    """Functions of index arrays from number `array` on, whose axes have their words from `axes` on.

    For each: `pb_index{k}(at)`, an int64, `pb_bad{k}(v)`, and `pb_place{k}(v)`, a number of words.
    """
    lines = []
    for k, dtype in enumerate(indices):
        first = axes + AXIS_WORDS * k
        value = convert(loaded(f"load{array + k}(at)", dtype), dtype, _WIDE[dtype.kind])
        size, least = f"arg({first}u)", f"arg({first + 1}u)"
        lines.append(f"fn pb_index{k}(at: u32) -> vec2<u32> {{ return {value}; }}")
        if dtype.kind == "u":
            bad = f"v.y != 0u || v.x >= {size}"
        else:
            # The low word decides where the high one only repeats its sign.
            low = "bitcast<i32>(v.x)"
            bad = (
                f"v.y != bitcast<u32>({low} >> 31u) || {low} < bitcast<i32>({least})"
                f" || {low} >= bitcast<i32>({size})"
            )
        lines += [
            f"fn pb_bad{k}(v: vec2<u32>) -> bool {{ return {bad}; }}",
            f"fn pb_place{k}(v: vec2<u32>) -> u32 {{",
            f"  if (pb_bad{k}(v)) {{ return 0u; }}",
            f"  return (v.x + select(0u, {size}, v.y >= 0x80000000u)) * arg({first + 2}u);",
            "}",
        ]
    return "\n".join(lines)


def wrapped(count: int, end: str = "") -> str:
    """The sum of the places of all indices, which are at v0, v1 and so on."""
    return "".join(f" + pb_place{k}(v{k}{end})" for k in range(count))


def _is_open(count: int) -> str:
    """Whether no round of a loop before has noted a bad index."""
    return "(" + " | ".join(f"load{k}(3u)" for k in range(count)) + ") == 0u"


def _note(count: int, position: str, end: str = "") -> list[str]:
    """Statements that note the first bad index, whose position is known."""
    lines: list[str] = []
    for k in range(count):
        v = f"v{k}{end}"
        lines += [
            f"  if (pb_bad{k}({v}) && load{k}(0u) == ~{position} && {_is_open(count)}) {{",
            f"    store{k}(1u, {v}.x);",
            f"    store{k}(2u, {v}.y);",
            f"    store{k}(3u, 1u);",
            "  }",
        ]
    return lines


@cache
def _check_source(indices: tuple[DType, ...], rank: int, notes: bool) -> str:
    """Arrays: the words of errors, indices. Words: positions, the nest, the axes."""
    count = len(indices)
    names = ["at", *(f"o{k}" for k in range(count))]
    functions = index_functions(indices, count, 1 + rank * (2 + count))
    values = [f"  let v{k} = pb_index{k}(o{k});" for k in range(count)]
    finds = "\n  else ".join(
        f"if (pb_bad{k}(v{k})) {{ _ = max{k}(0u, ~at); }}" for k in range(count)
    )
    body = _note(count, "at") if notes else [f"  if ({_is_open(count)}) {{", "  " + finds, "  }"]
    return "\n".join([functions, MAIN, locate(rank, names, 1, "i"), *values, *body, "}"])


def check_steps(
    dtypes: tuple[DType, ...],
    shape: Shape,
    indices: IndexArrays,
    wraps: bool = True,
    notes: bool = True,
) -> list[Dispatch]:
    """The dispatches that look at indices; positions are those in `shape`."""
    # Along an axis on which no index depends, the first position has the number 0.
    taken = [d for d, n in enumerate(shape) if n > 1 and any(own[d] for own in indices.strides)]
    dense = dense_strides(shape)
    streams = [[own[d] for d in taken] for own in (dense, *indices.strides)]
    nest = coalesce([shape[d] for d in taken], streams)
    words = (nest.size, *nest_words(nest), *axes_words(indices.axes, wraps))
    groups, rank = linear_groups(nest.size, THREADS), len(nest.shape)
    arrays = (*_errors(indices), *_arrays(indices.slots, dtypes))
    steps = [Dispatch(_check_source(dtypes, rank, False), arrays, words, groups, checked=True)]
    if notes:
        steps.append(Dispatch(_check_source(dtypes, rank, True), arrays, words, groups))
    return steps


def _errors(indices: IndexArrays) -> list[Binding]:
    codes = range(indices.first_code, indices.first_code + len(indices.slots))
    return [Binding(fault_words(code), "u32", "atomic") for code in codes]


def _arrays(slots: Sequence[int], dtypes: Sequence[DType]) -> list[Binding]:
    return [Binding(At(s), item(d)) for s, d in zip(slots, dtypes, strict=True)]


@cache
def _read_source(indices: tuple[DType, ...], rank: int, each: int) -> str:
    """Arrays: the words of errors, indices, output, x. Words: elements, the nest, the axes.

    A thread has `each` elements, whose indices and then whose values are read together.
    """
    count = len(indices)
    functions = index_functions(indices, count, 1 + rank * (3 + count))
    places, notes, reads, stores = [], [], [], []
    for e in range(each):
        end, i = f"_{e}", f"i{e}"
        names = [f"{name}{end}" for name in ("from", "at", *(f"o{k}" for k in range(count)))]
        places += [
            f"  let {i} = min(i + {e * THREADS}u, arg(0u) - 1u);",
            locate(rank, names, 1, i),
            *(f"  let v{k}{end} = pb_index{k}(o{k}{end});" for k in range(count)),
        ]
        notes += _note(count, f"at{end}", end)
        reads.append(f"  let x{end} = load{2 * count + 1}(from{end}{wrapped(count, end)});")
        inside = f"if (i + {e * THREADS}u < arg(0u)) {{ " if e else "{ "
        stores.append(f"  {inside}store{2 * count}({i}, x{end}); }}")
    return "\n".join([functions, main_of(each), *places, *notes, *reads, *stores, "}"])


def gather_stages(
    kernel: Gather,
    shape: Shape,
    x_slot: int,
    x_strides: Strides,
    indices: IndexArrays,
    out_slot: int,
    plan: Sequence[int] | None,
    /,
) -> list[Stage]:
    """See `Target.gather`."""
    size, dtypes = math.prod(shape), kernel.indices
    if size == 0:
        return []
    check = check_steps(dtypes, shape, indices, notes=False)
    dense = dense_strides(shape)
    taken = [any(own[d] for own in indices.strides) for d in range(len(shape))]
    position = [s if t else 0 for s, t in zip(dense, taken, strict=True)]
    nest = coalesce(shape, [x_strides, position, *indices.strides, dense])
    words = (size, *nest_words(nest, 2 + len(dtypes)), *axes_words(indices.axes))
    own = item(kernel.dtype)
    arrays = (
        *_errors(indices),
        *_arrays(indices.slots, dtypes),
        Binding(At(out_slot), own, "write"),
        Binding(At(x_slot), own),
    )
    each = EACH if size >= LEAST_MANY else 1
    source = _read_source(dtypes, len(nest.shape), each)
    read = Dispatch(source, arrays, words, linear_groups(size, THREADS * each))
    return stage(*check, read)
