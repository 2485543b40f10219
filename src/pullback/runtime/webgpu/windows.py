"""Convolutions and pooling: sums and extrema under a window, in the orders of the CPU.

    forward  one element of the output
    weight   one element of a chunk's sums of weights
    join     adds up the sums of chunks
    largest  the largest element under a window, or where it is

A thread makes one element; where there are enough output channels for tiles, `window_products` has
the sums. What a window reads beside the array is 0, and takes part in sums; for
an extremum it is the lowest. The words are those of `program.windows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pullback.compile.program.convolution import Convolution, Weight
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Place
from pullback.compile.program.windows import (
    ExtremumKernels,
    WeightSums,
    WindowKernels,
    convolution_steps,
    extremum_steps,
    outputs_of,
    window_words,
)
from pullback.core.dtypes import DType
from pullback.runtime.webgpu.maps import zero_steps
from pullback.runtime.webgpu.nests import MAIN, THREADS
from pullback.runtime.webgpu.printer import item
from pullback.runtime.webgpu.products import join_step, product_steps
from pullback.runtime.webgpu.stages import At, Binding, Dispatch, linear_groups, stage
from pullback.runtime.webgpu.tiles import element_code
from pullback.runtime.webgpu.window_products import is_wide_enough, output_step, weight_step
from pullback.runtime.webgpu.window_words import OWN, split_index, sum_of, word

__all__ = ["convolution_stages", "extremum_stages"]

LOWEST = "pb_c(0xff800000u)"


def own_word(k: int) -> str:
    """A word after those of the window: the first is the number of elements."""
    return f"arg({OWN + k}u)"


def reads(places: Sequence[str], taps: Sequence[str], offset: str) -> list[str]:
    """Statements that add what a position of the kernel reads to the variable `offset`, and tell by
    `inside` whether it is there.
    """
    lines = ["var inside = true;"]
    for d, (place, tap) in enumerate(zip(places, taps, strict=True)):
        at = f"{place} * {word('step', d)} + {word('offset', d)} + {tap} * {word('offset_step', d)}"
        lines += [
            f"let r{d} = {at};",
            f"inside = inside && r{d} < {word('size', d)};",
            f"{offset} += r{d} * {word('x', d)};",
        ]
    return lines


_MAIN = MAIN.replace("arg(0u)", own_word(0))
PLACES = ("p0", "p1", "p2")  # of an output on the axes
_SIZES = [word("places", d) for d in range(3)]

# Which output an element is: batch, group, channel, and a place on each axis.
_OUTPUT = "\n".join([
    "var pixel = 0u; var channel = 0u; var group = 0u; var batch = 0u;",
    f"let pixels = {' * '.join(_SIZES)};",
    f"if ({word('last')} != 0u) {{",
    f"  channel = i % {word('outs')};",
    f"  group = i / {word('outs')} % {word('groups')};",
    f"  let row = i / ({word('outs')} * {word('groups')});",
    "  pixel = row % pixels;",
    "  batch = row / pixels;",
    "} else {",
    "  pixel = i % pixels;",
    f"  channel = i / pixels % {word('outs')};",
    f"  let row = i / (pixels * {word('outs')});",
    f"  group = row % {word('groups')};",
    f"  batch = row / {word('groups')};",
    "}",
    *split_index("pixel", _SIZES, PLACES),
    f"let start = batch * {word('x_batch')} + group * {word('x_group')}"
    f" + channel * {word('x_out')};",
    f"let to = batch * {word('y_batch')} + group * {word('y_group')}"
    f" + channel * {word('y_channel')} + {sum_of('y', PLACES)};",
])  # fmt: skip


def _taps(*body: str) -> list[str]:
    """A loop over all positions of the kernel, a, b and c on the axes."""
    heads = [f"for (var {v} = 0u; {v} < {word('taps', d)}; {v}++) {{" for d, v in enumerate("abc")]
    return [*heads, *body, "}}}"]


@cache
def _forward_source(dtype: DType) -> str:
    weight = f"own + {sum_of('place_step', 'abc')} + k * {word('w_in')}"
    places = " + ".join(word("place", d) for d in range(3))
    return "\n".join([
        element_code(dtype),
        _MAIN,
        _OUTPUT,
        f"let own = group * {word('w_group')} + channel * {word('w_out')} + {places};",
        "var total = pb_none();",
        "var sum = pb_none();",
        f"for (var first = 0u; first < {word('ins')}; first += {word('block')}) {{",
        f"  if ({word('apart')} != 0u && first != 0u) {{",
        f"    if (first == {word('block')}) {{ total = sum; }}",
        "    else { total = pb_sum(total, sum); }",
        "    sum = pb_none();",
        "  }",
        f"  let end = min({word('ins')}, first + {word('block')});",
        *_taps(
            "var from_ = start;",
            *reads(PLACES, "abc", "from_"),
            "for (var k = first; k < end; k++) {",
            "  var x = Wide();",
            f"  if (inside) {{ x = pb_wide(load1(from_ + k * {word('x_channel')})); }}",
            f"  sum = pb_fused(x, pb_wide(load2({weight})), sum);",
            "}",
        ),
        "}",
        f"if ({word('apart')} != 0u && {word('ins')} > {word('block')}) {{",
        "  sum = pb_sum(total, sum);",
        "}",
        "store0(to, pb_narrow(sum));",
        "}",
    ])  # fmt: skip


def tile_loop(*body: str) -> list[str]:
    """A loop over the pixels q0, q1 and q2 of tile `tile`, of the example `batch`."""
    across = [f"(({_SIZES[d]} + {word('tile', d)} - 1u) / {word('tile', d)})" for d in range(3)]
    lines = split_index("tile", ["", *across], ["batch", "t0", "t1", "t2"])
    for d in range(3):
        size, tile = _SIZES[d], word("tile", d)
        lines += [
            f"let first{d} = t{d} * {tile};",
            f"let last{d} = min(first{d} + {tile}, {size});",
        ]
    loops = [f"for (var q{d} = first{d}; q{d} < last{d}; q{d}++) {{" for d in range(3)]
    return [*lines, *loops, *body, "}}}"]


# Which weight an element is: its chunk, group, channels out and in, and a position of the kernel.
_WEIGHT = "\n".join([
    *split_index(
        f"i % {own_word(4)}",
        ["", word("outs"), word("ins"), *(word("taps", d) for d in range(3))],
        ["group", "channel", "into", "a", "b", "c"],
    ),
    f"let chunk = i / {own_word(4)};",
    f"let place = chunk * {own_word(4)} + group * {word('w_group')} + channel * {word('w_out')}"
    f" + into * {word('w_in')} + {sum_of('place_step', 'abc')}"
    f" + {' + '.join(word('place', d) for d in range(3))};",
])  # fmt: skip


@cache
def _weight_source(dtype: DType) -> str:
    """Words after those of the window: elements, chunks, tiles of each, tiles, weights."""
    return "\n".join([
        element_code(dtype),
        _MAIN,
        _WEIGHT,
        f"let start = group * {word('x_group')} + into * {word('x_channel')}"
        f" + channel * {word('x_out')};",
        f"let own = group * {word('y_group')} + channel * {word('y_channel')};",
        "var sum = pb_none();",
        f"let end = min({own_word(3)}, (chunk + 1u) * {own_word(2)});",
        f"for (var tile = chunk * {own_word(2)}; tile < end; tile++) {{",
        *tile_loop(
            f"var from_ = start + batch * {word('x_batch')};",
            *reads(("q0", "q1", "q2"), "abc", "from_"),
            "var x = Wide();",
            "if (inside) { x = pb_wide(load1(from_)); }",
            f"let y = pb_wide(load2(own + batch * {word('y_batch')}"
            f" + {sum_of('y', ('q0', 'q1', 'q2'))}));",
            "sum = pb_fused(x, y, sum);",
        ),
        "}",
        "store0(place, pb_narrow(sum));",
        "}",
    ])  # fmt: skip


# NaN is the largest of all, the last one if there are several; else it is the first largest. An
# index counts through the spatial axes; the first is that of the first element inside.
@cache
def _largest_source(dtype: DType, where: bool) -> str:
    begin: list[str] = []
    for d in range(3):
        dilation = f"bitcast<i32>({word('dilation', d)})"
        begin += [
            f"var b{d} = bitcast<i32>({PLACES[d]} * {word('step', d)} + {word('offset', d)});",
            f"if (b{d} < 0) {{ b{d} += (-b{d} + {dilation} - 1) / {dilation} * {dilation}; }}",
            f"found = found * {word('size', d)} + bitcast<u32>(b{d});",
        ]
    chosen = "found" if where else "pb_narrow(best)"
    return "\n".join([
        element_code(dtype),
        _MAIN,
        _OUTPUT,
        "var found = 0u;",
        *begin,
        f"var best = {LOWEST};",
        *_taps(
            "var from_ = start;",
            *reads(PLACES, "abc", "from_"),
            f"var value = {LOWEST};",
            "if (inside) { value = pb_wide(load1(from_)); }",
            "if (value > best || !f32_is_number(value)) {",
            "  best = value;",
            f"  found = (r0 * {word('size', 1)} + r1) * {word('size', 2)} + r2;",
            "}",
        ),
        f"store0(to, {chosen});",
        "}",
    ])  # fmt: skip


class _Extrema:
    """The kernels of extrema."""

    def zeros(self, dtype: DType, size: int, slot: int) -> list[Dispatch]:
        return zero_steps(dtype, size, slot)

    def largest(
        self, end: str, x: Place, result: Place, outputs: int, words: Sequence[int]
    ) -> Dispatch:
        (slot, av), (out_slot, out) = x, result
        source = _largest_source(av.dtype, end == "where")
        arrays = (
            Binding(At(out_slot), item(out.dtype), "write"),
            Binding(At(slot), item(av.dtype)),
        )
        return Dispatch(source, arrays, (*words, outputs), linear_groups(outputs, THREADS))


class _WindowKernels(_Extrema):
    """The kernels of convolutions, and those of products."""

    product = staticmethod(product_steps)

    def forward(self, c: Convolution, weight: Weight, start: int) -> list[Dispatch]:
        if is_wide_enough(c):
            return [output_step(c, weight, start)]
        out, kind, count = At(c.y.slot, start * c.dtype.itemsize), item(c.dtype), outputs_of(c)
        x, w = Binding(At(c.x.slot), kind), Binding(At(weight.slot), kind)
        words, groups = (*window_words(c, weight), count), linear_groups(count, THREADS)
        return [
            Dispatch(_forward_source(c.dtype), (Binding(out, kind, "write"), x, w), words, groups)
        ]

    def sums(self, c: Convolution, weight: Weight, sums: WeightSums, slot: int) -> list[Dispatch]:
        if is_wide_enough(c):
            return [weight_step(c, weight, sums, slot)]
        size, kind = c.x.groups * c.y.channels * c.ins * c.positions, item(c.dtype)
        count = sums.chunks * size
        own = (count, sums.chunks, sums.chunk, sums.tiles, size)
        words = (*window_words(c, weight, sums.tile), *own)
        out, x, y = Binding(At(slot), kind, "write"), At(c.x.slot), At(c.y.slot)
        arrays = (out, Binding(x, kind), Binding(y, kind))
        return [Dispatch(_weight_source(c.dtype), arrays, words, linear_groups(count, THREADS))]

    def join(
        self, dtype: DType, slot: int, partials: int, chunks: int, size: int
    ) -> list[Dispatch]:
        return [join_step(dtype, At(slot), At(partials), chunks, size)]


def convolution_stages(
    name: str,
    operands: Sequence[Place],
    static: Mapping[str, Any],
    result: Place,
    area: Area,
    _: int,
) -> list[Stage]:
    """The stages of a primitive; the result is dense."""
    kernels: WindowKernels[Dispatch] = _WindowKernels()
    return stage(*convolution_steps(kernels, name, operands, static, result, area))


def extremum_stages(
    name: str,
    operands: Sequence[Place],
    static: Mapping[str, Any],
    result: Place,
    area: Area,
    _: int,
) -> list[Stage]:
    """The stages of the largest element under each window, or of its index."""
    kernels: ExtremumKernels[Dispatch] = _Extrema()
    return stage(*extremum_steps(kernels, name, operands, static, result))
