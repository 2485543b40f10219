"""Argsort by merging, and binary search. Both see the values through their keys.

A key is an unsigned integer, or two words of one, that is ordered as the values are: -0 equals 0,
NaN comes after all others (hence first when descending). The sort is stable, so its result is
unique.

    begin   sorts runs of RUN elements, one for each thread
    merge   makes one run of two: a thread finds the place of one element by a binary search in the
            other run
    search  a thread finds the place of one value in a sorted row
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
from pullback.core.dtypes import DType, int64
from pullback.runtime.webgpu.nests import MAIN, THREADS, locate, nest_words
from pullback.runtime.webgpu.printer import item, loaded
from pullback.runtime.webgpu.stages import At, Binding, Dispatch, linear_groups, stage

__all__ = ["argsort_stages", "search_stages", "sort_steps"]

RUN = 8  # elements that one thread sorts by itself
_INFINITIES = {"float16": "0x7c000000u", "bfloat16": "0x7f800000u", "float32": "0x7f800000u"}


def _key_item(dtype: DType) -> str:
    return "u64" if dtype.itemsize == 8 else "u32"


@cache
def _key_code(dtype: DType) -> str:
    """`pb_key` of an item, and what compares keys."""
    if dtype.itemsize == 8:
        flip = "0x80000000u" if dtype.kind == "i" else "0u"
        return f"""alias Key = vec2<u32>;
fn pb_key(x: vec2<u32>) -> Key {{ return vec2<u32>(x.x, x.y ^ {flip}); }}
fn pb_lt(a: Key, b: Key) -> bool {{ return u64_lt(a, b); }}"""
    if not dtype.is_float:
        signed = dtype.kind == "i"
        key = f"bitcast<u32>({loaded('x', dtype)}) ^ 0x80000000u" if signed else "x"
        body = f"return {key};"
    else:
        # The bits of a half are at the top.
        bits = "x << 16u" if dtype.itemsize == 2 else "x"
        body = f"""let bits = {bits};
  if ((bits & 0x7fffffffu) > {_INFINITIES[dtype.name]}) {{ return 0xffffffffu; }}
  if (bits == 0x80000000u) {{ return bits; }}
  return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);"""
    return f"""alias Key = u32;
fn pb_key(x: u32) -> Key {{
  {body}
}}
fn pb_lt(a: Key, b: Key) -> bool {{ return a < b; }}"""


def _place(text: str, kind: str) -> str:
    """A place as an item."""
    return f"vec2<u32>({text}, 0u)" if kind == "u64" else text


@cache
def _begin_source(dtype: DType, rank: int, kind: str) -> str:
    """Words: runs, runs of a row, its length, the step along it, what keys are turned by, and the
    nest of rows. Arrays: keys, places, values.
    """
    return "\n".join([
        _key_code(dtype),
        MAIN,
        "  let row = i / arg(1u);",
        f"  let first = i % arg(1u) * {RUN}u;",
        locate(rank, ["at"], 5, "row"),
        f"  let count = min(arg(2u) - first, {RUN}u);",
        f"  var own: array<Key, {RUN}>;",
        f"  var places: array<u32, {RUN}>;",
        "  for (var k = 0u; k < count; k++) {",
        "    let key = pb_key(load2(at + (first + k) * arg(3u))) ^ Key(arg(4u));",
        "    var to = k;",
        "    while (to > 0u) {",
        "      if (!pb_lt(key, own[to - 1u])) { break; }",
        "      own[to] = own[to - 1u];",
        "      places[to] = places[to - 1u];",
        "      to -= 1u;",
        "    }",
        "    own[to] = key;",
        "    places[to] = k;",
        "  }",
        "  for (var k = 0u; k < count; k++) {",
        "    let to = row * arg(2u) + first + k;",
        "    store0(to, own[k]);",
        f"    store1(to, {_place('first + places[k]', kind)});",
        "  }",
        "}",
    ])  # fmt: skip


@cache
def _merge_source(dtype: DType, kind: str) -> str:
    """Words: elements, length of a row, of a run. Arrays: keys and places of the longer runs, and
    of the shorter ones.
    """
    return "\n".join([
        _key_code(dtype),
        MAIN,
        """  let length = arg(1u);
  let width = arg(2u);
  let place = i % length;
  let run = place / width;
  let row = i - place;
  let first = run / 2u * 2u * width;
  let middle = min(first + width, length);
  let end = min(middle + width, length);
  let key = load2(i);
  let later = run % 2u == 1u;
  // Of equal keys, those of the first run come first.
  let begin = select(middle, first, later);
  var low = begin;
  var high = select(end, middle, later);
  while (low < high) {
    let half = low + (high - low) / 2u;
    let other = load2(row + half);
    if ((later && !pb_lt(key, other)) || (!later && pb_lt(other, key))) { low = half + 1u; }
    else { high = half; }
  }
  let to = row + first + (place - select(first, middle, later)) + (low - begin);
  store0(to, key);""",
        f"  store1(to, {_place('load3(i)', kind)});",
        "}",
    ])  # fmt: skip


@cache
def _search_source(dtype: DType, rank: int, side: str) -> str:
    """Words: values, length of the row, its step, the nest of values. Arrays: places, the row,
    values.
    """
    before = "pb_lt(there, key)" if side == "left" else "!pb_lt(key, there)"
    return "\n".join([
        _key_code(dtype),
        MAIN,
        locate(rank, ["at"], 3, "i"),
        f"""  let key = pb_key(load2(at));
  var base = 0u;
  var rest = arg(1u);
  while (rest > 1u) {{
    let half = rest / 2u;
    let there = pb_key(load1((base + half - 1u) * arg(2u)));
    if ({before}) {{ base += half; }}
    rest -= half;
  }}
  if (rest == 1u) {{
    let there = pb_key(load1(base * arg(2u)));
    if ({before}) {{ base += 1u; }}
  }}
  store0(i, vec2<u32>(base, 0u));
}}""",
    ])  # fmt: skip


def sort_steps(
    dtype: DType,
    outer: Sequence[int],
    strides: Strides,
    length: int,
    x: At,
    out: tuple[At, str],
    area: Area,
    descending: bool = False,
) -> tuple[list[Dispatch], At]:
    """Dispatches that write the places of a stable sort along the last axis as items of a kind, and
    where its keys are.

    `strides` are those of x, over `outer` and then over the `length` elements that are sorted.
    """
    *steps, stride = strides
    rows = math.prod(outer)
    total, own = rows * length, _key_item(dtype)
    widths = []
    while (RUN << len(widths)) < length:
        widths.append(RUN << len(widths))
    keys = [At(area(total * (8 if own == "u64" else 4))) for _ in range(2 if widths else 1)]
    places = [At(area(4 * total)) for _ in range(min(2, len(widths)))]

    def target(turn: int) -> tuple[Binding, Binding]:
        """Keys and places after so many merges."""
        last = turn == len(widths)
        at, kind = out if last else (places[turn % 2], "u32")
        return Binding(keys[turn % 2], own, "write"), Binding(at, kind, "write")

    nest = coalesce(outer, [steps])
    runs = -(-length // RUN)
    words = (rows * runs, runs, length, stride, -1 if descending else 0, *nest_words(nest))
    first = target(0)
    source = _begin_source(dtype, len(nest.shape), first[1].item)
    groups = linear_groups(rows * runs, THREADS)
    found = [Dispatch(source, (*first, Binding(x, item(dtype))), words, groups)]
    for turn, width in enumerate(widths, 1):
        new, old = target(turn), [a._replace(mode="read") for a in target(turn - 1)]
        source, groups = _merge_source(dtype, new[1].item), linear_groups(total, THREADS)
        found.append(Dispatch(source, (*new, *old), (total, length, width), groups))
    return found, keys[len(widths) % 2]


def argsort_stages(
    operands: Sequence[Place], static: Mapping[str, Any], result: Place, area: Area, _: int
) -> list[Stage]:
    """The stages of an argsort along the last axis."""
    ((slot, x),) = operands
    if x.size == 0:
        return []
    assert x.strides is not None
    *outer, length = x.shape
    out = At(result[0]), item(int64)
    given = (outer, x.strides, length, At(slot), out, area, static["descending"])
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
    # the result is dense: axes merge only where it allows that
    nest = coalesce(x.shape, [x.strides, dense_strides(x.shape)])
    source = _search_source(x.dtype, len(nest.shape), static["side"])
    words = (x.size, row.shape[0], row.strides[0], *nest_words(nest, 1))
    kind = item(x.dtype)
    arrays = (
        Binding(At(result[0]), item(int64), "write"),
        Binding(At(row_slot), kind),
        Binding(At(slot), kind),
    )
    return stage(Dispatch(source, arrays, words, linear_groups(x.size, THREADS)))
