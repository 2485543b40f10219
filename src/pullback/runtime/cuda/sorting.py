"""Argsort by merging, and binary search. Both see the values through their keys.

A key is an unsigned integer that is ordered as the values are: -0 equals 0, NaN comes after all
others (hence first when descending). The sort is stable, so its result is unique.

    NAME_begin  (keys, places, x, Nest<1> rows, length, stride, flip)
    NAME_merge  (keys out, places out, keys, places, length, width, total)
    NAME_search (out, row, values, Nest<1> values, length, stride)

`begin` sorts runs of RUN elements, one for each thread; each `merge` makes one run of two, where a
thread finds the place of one element by a binary search in the other run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pullback.compile.program.nest import coalesce
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Place, Strides
from pullback.core.avals import dense_strides
from pullback.core.dtypes import DType
from pullback.runtime.cuda.kernels import NEST
from pullback.runtime.cuda.launch import THREADS, grid_of, packed
from pullback.runtime.cuda.printer import Source, storage
from pullback.runtime.cuda.stages import At, Step, stage

__all__ = ["argsort_stages", "search_stages", "sort_steps"]

RUN = 8  # elements that one thread sorts in its registers

_KEYS = """
#define RUN {run}
typedef {key} Key;
typedef {value} Value;
PB_DEVICE Key pb_key(Value x) {{
  {body}
}}"""

_FLOAT = """const Key bits = (Key){bits}, sign = (Key)1 << {last};
  if ((Key)(bits << 1) > (Key)({infinity}ULL << 1)) return ~(Key)0;
  if (bits == sign) return sign;
  return bits & sign ? (Key)~bits : (Key)(bits | sign);"""

_SORT = """
extern "C" __global__ void {name}_begin(Key* __restrict__ keys, long long* __restrict__ places,
    const Value* __restrict__ x, const Nest<1> rows, const long long length,
    const long long stride, const long long flip) {{
  const long long runs = (length + RUN - 1) / RUN;
  for (long long i = pb_first(); i < rows.size * runs; i += pb_step()) {{
    const long long row = i / runs, first = i % runs * RUN;
    const int n = length - first < RUN ? (int)(length - first) : RUN;
    long long at[1] = {{}};
    pb_locate(rows, row, at);
    Key own[RUN];
    int order[RUN];
    for (int k = 0; k < n; ++k) {{
      const Key key = pb_key(x[at[0] + (first + k) * stride]) ^ (Key)flip;
      int to = k;
      for (; to > 0 && own[to - 1] > key; --to) {{
        own[to] = own[to - 1];
        order[to] = order[to - 1];
      }}
      own[to] = key;
      order[to] = k;
    }}
    for (int k = 0; k < n; ++k) {{
      keys[row * length + first + k] = own[k];
      places[row * length + first + k] = first + order[k];
    }}
  }}
}}
extern "C" __global__ void {name}_merge(Key* __restrict__ keys_out, long long* __restrict__ out,
    const Key* __restrict__ keys, const long long* __restrict__ places, const long long length,
    const long long width, const long long total) {{
  for (long long i = pb_first(); i < total; i += pb_step()) {{
    const long long place = i % length, run = place / width, row = i - place;
    const long long first = run / 2 * 2 * width;
    const long long middle = first + width < length ? first + width : length;
    const long long end = middle + width < length ? middle + width : length;
    const Key key = keys[i];
    const bool later = run % 2;
    // Of equal keys, those of the first run come first.
    long long low = later ? first : middle, high = later ? middle : end;
    const long long begin = low;
    while (low < high) {{
      const long long half = low + (high - low) / 2;
      const Key other = keys[row + half];
      if (later ? other <= key : other < key) low = half + 1;
      else high = half;
    }}
    const long long to = row + first + (place - (later ? middle : first)) + (low - begin);
    keys_out[to] = key;
    out[to] = places[i];
  }}
}}"""

_SEARCH = """
extern "C" __global__ void {name}_search(long long* __restrict__ out,
    const Value* __restrict__ row, const Value* __restrict__ values, const Nest<1> nest,
    const long long length, const long long stride) {{
  for (long long i = pb_first(); i < nest.size; i += pb_step()) {{
    long long at[1] = {{}};
    pb_locate(nest, i, at);
    const Key key = pb_key(values[at[0]]);
    long long base = 0, rest = length;
    while (rest > 1) {{
      const long long half = rest / 2;
      const Key there = pb_key(row[(base + half - 1) * stride]);
      if (there {before} key) base += half;
      rest -= half;
    }}
    if (rest == 1 && pb_key(row[base * stride]) {before} key) ++base;
    out[i] = base;
  }}
}}"""


def _key_code(dtype: DType) -> str:
    wide = dtype.itemsize == 8
    key = "unsigned long long" if wide else "unsigned int"
    if not dtype.is_float:
        sign = "" if dtype.kind != "i" else f" ^ ((Key)1 << {63 if wide else 31})"
        body = f"return (Key)({'long long' if wide else 'int'})x{sign};"
        if dtype.kind != "i":
            body = "return (Key)x;"
    elif dtype.itemsize == 2:
        # A wider key of the same order: the bits of a half at the top.
        infinity = {"float16": "0x7c000000", "bfloat16": "0x7f800000"}[dtype.name]
        body = _FLOAT.format(bits="((unsigned)x << 16)", last=31, infinity=infinity)
    else:
        bits = "__double_as_longlong(x)" if wide else "__float_as_int(x)"
        infinity = "0x7ff0000000000000" if wide else "0x7f800000"
        body = _FLOAT.format(bits=bits, last=63 if wide else 31, infinity=infinity)
    return _KEYS.format(run=RUN, key=key, value=storage(dtype), body=body)


@cache
def _source(dtype: DType, body: str, name: str, before: str = "") -> str:
    source = Source()
    source.add("pb_nest", NEST)
    source.add("pb_key", _key_code(dtype))
    source.add(name, body.format(name=name, before=before))
    return source.text()


def key_bytes(dtype: DType) -> int:
    """Of a key."""
    return 8 if dtype.itemsize == 8 else 4


def sort_steps(
    dtype: DType,
    outer: Sequence[int],
    strides: Strides,
    length: int,
    x: At,
    out: At,
    area: Area,
    descending: bool = False,
) -> tuple[list[Step], At]:
    """Launches that write the places of a stable sort along the last axis, and where its keys are.

    `strides` are those of x, over `outer` and then over the `length` elements that are sorted.
    """
    *steps, stride = strides
    rows = math.prod(outer)
    total = rows * length
    name = f"sort_{dtype.name}"
    source = _source(dtype, _SORT, name)
    widths = []
    while (RUN << len(widths)) < length:
        widths.append(RUN << len(widths))
    keys = [At(area(total * key_bytes(dtype))) for _ in range(2)]
    places = [out, At(area(8 * total)) if widths else out]
    turn = len(widths) % 2  # such that the last merge writes to `out`
    nest = packed(coalesce(outer, [steps]))
    runs = rows * math.ceil(length / RUN)
    first = (keys[turn], places[turn], x, nest, length, stride, -1 if descending else 0)
    found = [Step(source, f"{name}_begin", (grid_of(runs), 1), THREADS, first)]
    for width in widths:
        given = (keys[1 - turn], places[1 - turn], keys[turn], places[turn], length, width, total)
        found.append(Step(source, f"{name}_merge", (grid_of(total), 1), THREADS, given))
        turn = 1 - turn
    return found, keys[turn]


def argsort_stages(
    operands: Sequence[Place], static: Mapping[str, Any], result: Place, area: Area, _: int
) -> list[Stage]:
    """The stages of an argsort along the last axis."""
    ((slot, x),) = operands
    if x.size == 0:
        return []
    assert x.strides is not None
    *outer, length = x.shape
    given = (outer, x.strides, length, At(slot), At(result[0]), area, static["descending"])
    steps, _keys = sort_steps(x.dtype, *given)
    return stage(*steps)


def search_stages(
    operands: Sequence[Place], static: Mapping[str, Any], result: Place, area: Area, _: int
) -> list[Stage]:
    """The stages of a binary search for values in a sorted row."""
    (row_slot, row), (slot, x) = operands
    if x.size == 0:
        return []
    assert row.strides is not None and x.strides is not None
    side = static["side"]
    name = f"search_{side}_{x.dtype.name}"
    source = _source(x.dtype, _SEARCH, name, "<" if side == "left" else "<=")
    # the result is dense: axes merge only where it allows that
    nest = packed(coalesce(x.shape, [x.strides, dense_strides(x.shape)]), 1)
    given = (At(result[0]), At(row_slot), At(slot), nest, row.shape[0], row.strides[0])
    return stage(Step(source, f"{name}_search", (grid_of(x.size), 1), THREADS, given))
