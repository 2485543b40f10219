"""Convolutions and pooling: sums and extrema under a window, in the orders of the CPU.

    NAME_forward (y, x, w, Window)
    NAME_weight  (partials, x, y, Window, Chunks)
    NAME_join    (w, partials, chunks, size)
    NAME_largest (y, x, Window), NAME_where (the same)

A thread makes one element: `forward` one of the output, `weight` one of a chunk's sums. What a
window reads beside the array is 0, and takes part in sums; for an extremum it is the lowest.
"""

from __future__ import annotations

import struct
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
from pullback.runtime.cuda.gemm.convolutions import forward_steps, is_gemm, sums_steps
from pullback.runtime.cuda.gemm.sources import text_of
from pullback.runtime.cuda.kernels import NEST
from pullback.runtime.cuda.launch import THREADS, grid_of
from pullback.runtime.cuda.loops import zero_steps
from pullback.runtime.cuda.printer import Source, storage
from pullback.runtime.cuda.products import Products
from pullback.runtime.cuda.stages import At, Either, Step, stage

__all__ = ["convolution_stages", "extremum_stages"]

_HEAD = """
typedef {value} Value;
typedef {number} Number;
// Which output an element is: batch, group, channel, and a place on each axis.
PB_DEVICE void pb_output(const Window& w, long long i, long long (&at)[6]) {{
  const long long pixels = w.axes[0].places * w.axes[1].places * w.axes[2].places;
  long long pixel;
  if (w.last) {{
    at[2] = i % w.outs;
    i /= w.outs;
    at[1] = i % w.groups;
    i /= w.groups;
    pixel = i % pixels;
    at[0] = i / pixels;
  }} else {{
    pixel = i % pixels;
    i /= pixels;
    at[2] = i % w.outs;
    i /= w.outs;
    at[1] = i % w.groups;
    at[0] = i / w.groups;
  }}
  at[5] = pixel % w.axes[2].places;
  pixel /= w.axes[2].places;
  at[4] = pixel % w.axes[1].places;
  at[3] = pixel / w.axes[1].places;
}}
PB_DEVICE long long pb_outputs(const Window& w) {{
  return w.batch * w.groups * w.outs * w.axes[0].places * w.axes[1].places * w.axes[2].places;
}}
// Adds what position t of the kernel reads along an axis to an offset; whether that is inside.
PB_DEVICE bool pb_reads(const Axis& a, long long place, long long t, long long& offset) {{
  const long long i = place * a.step + a.offset + t * a.offset_step;
  offset += i * a.x;
  return i >= 0 && i < a.size;
}}"""

_FORWARD = """
extern "C" __global__ void {name}_forward(Value* __restrict__ y, const Value* __restrict__ x,
    const Value* __restrict__ w, const Window p) {{
  const Axis &one = p.axes[0], &two = p.axes[1], &three = p.axes[2];
  for (long long i = pb_first(); i < pb_outputs(p); i += pb_step()) {{
    long long at[6];
    pb_output(p, i, at);
    const long long from = at[0] * p.x_batch + at[1] * p.x_group + at[2] * p.x_out;
    const long long own = at[1] * p.w_group + at[2] * p.w_out;
    Value total = 0, sum = 0;
    for (long long first = 0; first < p.ins; first += p.block) {{
      if (p.apart && first) {{
        total = first == p.block ? sum : total + sum;
        sum = 0;
      }}
      const long long end = p.ins - first < p.block ? p.ins : first + p.block;
      for (long long a = 0; a < one.taps; ++a)
        for (long long b = 0; b < two.taps; ++b)
          for (long long c = 0; c < three.taps; ++c) {{
            long long read = from;
            bool inside = pb_reads(one, at[3], a, read);
            inside &= pb_reads(two, at[4], b, read);
            inside &= pb_reads(three, at[5], c, read);
            const long long weight = own + one.place + a * one.place_step + two.place
                + b * two.place_step + three.place + c * three.place_step;
            for (long long k = first; k < end; ++k)
              sum = {fma}(inside ? x[read + k * p.x_channel] : Value(0),
                          w[weight + k * p.w_in], sum);
          }}
    }}
    y[at[0] * p.y_batch + at[1] * p.y_group + at[2] * p.y_channel + at[3] * one.y
      + at[4] * two.y + at[5] * three.y] = p.apart && p.ins > p.block ? total + sum : sum;
  }}
}}"""

_WEIGHT = """
extern "C" __global__ void {name}_weight(Value* __restrict__ partials,
    const Value* __restrict__ x, const Value* __restrict__ y, const Window p, const Chunks c) {{
  const Axis &one = p.axes[0], &two = p.axes[1], &three = p.axes[2];
  const long long across[3] = {{(one.places + one.tile - 1) / one.tile,
      (two.places + two.tile - 1) / two.tile, (three.places + three.tile - 1) / three.tile}};
  for (long long i = pb_first(); i < c.chunks * c.size; i += pb_step()) {{
    const long long chunk = i / c.size;
    long long rest = i % c.size, t[3];
    for (int d = 2; d >= 0; --d) {{
      t[d] = rest % p.axes[d].taps;
      rest /= p.axes[d].taps;
    }}
    const long long in = rest % p.ins, out = rest / p.ins % p.outs, group = rest / p.ins / p.outs;
    const long long from = group * p.x_group + in * p.x_channel + out * p.x_out;
    const long long to = group * p.y_group + out * p.y_channel;
    Value sum = 0;
    const long long end = c.tiles - chunk * c.chunk < c.chunk ? c.tiles : (chunk + 1) * c.chunk;
    for (long long tile = chunk * c.chunk; tile < end; ++tile) {{
      long long left = tile, first[3], last[3];
      for (int d = 2; d >= 0; --d) {{
        const Axis& a = p.axes[d];
        first[d] = left % across[d] * a.tile;
        last[d] = a.places - first[d] < a.tile ? a.places : first[d] + a.tile;
        left /= across[d];
      }}
      for (long long u = first[0]; u < last[0]; ++u)
        for (long long v = first[1]; v < last[1]; ++v)
          for (long long q = first[2]; q < last[2]; ++q) {{
            long long read = from + left * p.x_batch;
            bool inside = pb_reads(one, u, t[0], read);
            inside &= pb_reads(two, v, t[1], read);
            inside &= pb_reads(three, q, t[2], read);
            sum = {fma}(inside ? x[read] : Value(0),
                        y[to + left * p.y_batch + u * one.y + v * two.y + q * three.y], sum);
          }}
    }}
    partials[chunk * c.size + group * p.w_group + out * p.w_out + in * p.w_in
      + one.place + t[0] * one.place_step + two.place + t[1] * two.place_step
      + three.place + t[2] * three.place_step] = sum;
  }}
}}
extern "C" __global__ void {name}_join(Value* __restrict__ w,
    const Value* __restrict__ partials, const long long chunks, const long long size) {{
  for (long long i = pb_first(); i < size; i += pb_step()) {{
    Value sum = partials[i];
    for (long long c = 1; c < chunks; ++c) sum = sum + partials[c * size + i];
    w[i] = sum;
  }}
}}"""

# NaN is the largest of all, the last one if there are several; else it is the first largest. An
# index counts through the spatial axes; the first is that of the first element inside.
_LARGEST = """
extern "C" __global__ void {name}_{end}({result}* __restrict__ y, const Value* __restrict__ x,
    const Window p) {{
  const Axis &one = p.axes[0], &two = p.axes[1], &three = p.axes[2];
  for (long long i = pb_first(); i < pb_outputs(p); i += pb_step()) {{
    long long at[6];
    pb_output(p, i, at);
    const long long from = at[0] * p.x_batch + at[1] * p.x_group + at[2] * p.x_out;
    long long found = 0;
    for (int d = 0; d < 3; ++d) {{
      const Axis& a = p.axes[d];
      long long begin = at[3 + d] * a.step + a.offset;
      if (begin < 0) begin += (-begin + a.dilation - 1) / a.dilation * a.dilation;
      found = found * a.size + begin;
    }}
    Value best = {lowest};
    for (long long a = 0; a < one.taps; ++a)
      for (long long b = 0; b < two.taps; ++b)
        for (long long c = 0; c < three.taps; ++c) {{
          long long read = from;
          bool inside = pb_reads(one, at[3], a, read);
          inside &= pb_reads(two, at[4], b, read);
          inside &= pb_reads(three, at[5], c, read);
          const Value value = inside ? x[read] : {lowest};
          if (!(value > best || value != value)) continue;
          best = value;
          found = ((at[3] * one.step + one.offset + a * one.offset_step) * two.size
              + at[4] * two.step + two.offset + b * two.offset_step) * three.size
              + at[5] * three.step + three.offset + c * three.offset_step;
        }}
    y[at[0] * p.y_batch + at[1] * p.y_group + at[2] * p.y_channel + at[3] * one.y
      + at[4] * two.y + at[5] * three.y] = {chosen};
  }}
}}"""


@cache
def _source(dtype: DType, body: str, result: DType, end: str) -> tuple[str, str]:
    """The name of a kernel, without its end, and its source."""
    single = dtype.itemsize == 4
    bits = "0xff800000" if single else "0xfff0000000000000LL"
    words = {
        "value": storage(dtype),
        "number": "int" if single else "long long",
        "fma": "fmaf" if single else "fma",
        "lowest": f"{'__int_as_float(' if single else '__longlong_as_double('}{bits})",
        "result": storage(result),
        "chosen": f"({storage(result)})found" if end == "where" else "best",
        "name": f"window_{dtype.name}",
        "end": end,
    }
    source = Source()
    source.add("pb_nest", NEST)
    source.add("pb_structs", text_of("window"))
    source.add("pb_window", _HEAD.format(**words))
    source.add(end, body.format(**words))
    return words["name"], source.text()


class _Extrema:
    """The kernels of extrema."""

    def zeros(self, dtype: DType, size: int, slot: int) -> list[Step | Either]:
        return zero_steps(dtype, size, slot)

    def largest(
        self, end: str, x: Place, result: Place, outputs: int, words: Sequence[int]
    ) -> Step:
        name, text = _source(x[1].dtype, _LARGEST, result[1].dtype, end)
        arguments = (At(result[0]), At(x[0]), _packed(words))
        return Step(text, f"{name}_{end}", (grid_of(outputs), 1), THREADS, arguments)


class _WindowKernels(_Extrema):
    """The kernels of convolutions, and those of products."""

    def __init__(self, products: Products, area: Area):
        self.product, self._area = products.steps, area

    def forward(self, c: Convolution, weight: Weight, start: int) -> list[Step]:
        if is_gemm(c):
            return forward_steps(c, weight, start, self._area)
        name, source = _source(c.dtype, _FORWARD, c.dtype, "forward")
        out = At(c.y.slot, start * c.dtype.itemsize)
        arguments = (out, At(c.x.slot), At(weight.slot), _packed(window_words(c, weight)))
        return [Step(source, f"{name}_forward", (grid_of(outputs_of(c)), 1), THREADS, arguments)]

    def sums(self, c: Convolution, weight: Weight, sums: WeightSums, slot: int) -> list[Step]:
        if is_gemm(c):
            return sums_steps(c, weight, sums, slot, self._area)
        name, source = _source(c.dtype, _WEIGHT, c.dtype, "weight")
        size = c.x.groups * c.y.channels * c.ins * c.positions
        given = struct.pack("<4q", sums.chunks, sums.chunk, sums.tiles, size)
        words = _packed(window_words(c, weight, sums.tile))
        arguments = (At(slot), At(c.x.slot), At(c.y.slot), words, given)
        grid = grid_of(sums.chunks * size), 1
        return [Step(source, f"{name}_weight", grid, THREADS, arguments)]

    def join(self, dtype: DType, slot: int, partials: int, chunks: int, size: int) -> list[Step]:
        name, source = _source(dtype, _WEIGHT, dtype, "weight")
        arguments = (At(slot), At(partials), chunks, size)
        return [Step(source, f"{name}_join", (grid_of(size), 1), THREADS, arguments)]


def _packed(words: Sequence[int]) -> bytes:
    """The struct Window."""
    return struct.pack(f"<{len(words)}q", *words)


def convolution_stages(
    products: Products,
    name: str,
    operands: Sequence[Place],
    static: Mapping[str, Any],
    result: Place,
    area: Area,
    _: int,
) -> list[Stage]:
    """The stages of a primitive; the result is dense."""
    kernels: WindowKernels[Step | Either] = _WindowKernels(products, area)
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
    kernels: ExtremumKernels[Step | Either] = _Extrema()
    return stage(*extremum_steps(kernels, name, operands, static, result))
