"""Matrix products in the order of `order.product`, as on the CPU.

    NAME_tiles  (out, a, b, Nest<2> batch, Sides sides)
    NAME_chunks (partials, a, b, k, n, a step, b step, b column)
    NAME_join   (out, partials, chunks, n)

A thread block of `tiles` makes TILE x TILE elements of one product; a thread has SIDE x SIDE of
them in registers. Products are added up in chunks of k that are joined in sequence; k is never
padded. `chunks` is for one row times a large matrix: a thread for each column and chunk of k.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pullback.compile.kernel import order
from pullback.compile.kernel.lower import broadcast_strides
from pullback.compile.program.nest import coalesce
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Place, Strides
from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.core.errors import DTypeError
from pullback.runtime.cuda.kernels import NEST
from pullback.runtime.cuda.launch import THREADS, grid_of, packed
from pullback.runtime.cuda.printer import Source, convert, storage
from pullback.runtime.cuda.stages import At, Step, stage

__all__ = ["product_row_stages", "product_stages", "product_steps"]

STEP = 16  # products between two barriers
ACROSS = 16  # threads of a block in each direction
TURN = 8  # products of a chunk between two barriers: its operands fit into shared memory
ROW_BYTES = 1 << 17  # of a matrix: times a larger one, a row is shared by threads along k

_REAL = """
typedef {value} Value;
typedef {wide} Wide;
typedef {wide} Sum;
PB_DEVICE Wide pb_wide(Value x) {{ return {read}; }}
PB_DEVICE Value pb_narrow(Sum x) {{ return {write}; }}
PB_DEVICE Sum pb_zero() {{ return Sum(0); }}
PB_DEVICE Sum pb_sum(Sum a, Sum b) {{ return a + b; }}
PB_DEVICE Sum pb_fused(Wide a, Wide b, Sum c) {{ return {fma}(a, b, c); }}"""

_COMPLEX = """
typedef {value} Value;
typedef {value} Wide;
struct Sum {{ {part} rr, ri, ir, ii; }};  // the products of the parts
PB_DEVICE Wide pb_wide(Value x) {{ return x; }}
PB_DEVICE Value pb_narrow(Sum x) {{ return Value{{x.rr - x.ii, x.ri + x.ir}}; }}
PB_DEVICE Sum pb_zero() {{ return Sum{{0, 0, 0, 0}}; }}
PB_DEVICE Sum pb_sum(Sum a, Sum b) {{
  return Sum{{a.rr + b.rr, a.ri + b.ri, a.ir + b.ir, a.ii + b.ii}};
}}
PB_DEVICE Sum pb_fused(Wide a, Wide b, Sum c) {{
  return Sum{{{fma}(a.x, b.x, c.rr), {fma}(a.x, b.y, c.ri), {fma}(a.y, b.x, c.ir),
             {fma}(a.y, b.y, c.ii)}};
}}"""

_TILES = (
    f"""
#define TILE {{tile}}
#define SIDE {{side}}
#define STEP {STEP}
#define CHUNK {order.CHUNK}
struct Sides {{{{ long long m, n, k, a_row, a_column, b_row, b_column, across, down; }}}};
"""
    + """
extern "C" __global__ void __launch_bounds__({threads}) {name}_tiles(Value* __restrict__ out,
    const Value* __restrict__ a, const Value* __restrict__ b, const Nest<2> batch,
    const Sides s) {{
  __shared__ Wide left[STEP][TILE], right[STEP][TILE];
  const long long tiles = s.across * s.down, item = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  const long long row = tile / s.across * TILE, column = tile % s.across * TILE;
  long long at[2] = {{}};
  pb_locate(batch, item, at);
  a += at[0];
  b += at[1];
  out += item * s.m * s.n;
  const int t = (int)threadIdx.x, x = t % (TILE / SIDE), y = t / (TILE / SIDE);
  Sum total[SIDE][SIDE], chunk[SIDE][SIDE];
  for (int i = 0; i < SIDE; ++i)
    for (int j = 0; j < SIDE; ++j) total[i][j] = chunk[i][j] = pb_zero();
  for (long long first = 0; first < s.k; first += STEP) {{
    const int depth = s.k - first < STEP ? (int)(s.k - first) : STEP;
    for (int p = t; p < STEP * TILE; p += {threads}) {{
      // Neighbouring threads read along the axis whose elements lie side by side.
      const bool along = s.a_column == 1, beside = s.b_column == 1;
      const int i = along ? p / STEP : p % TILE, u = along ? p % STEP : p / TILE;
      if (u < depth && row + i < s.m)
        left[u][i] = pb_wide(a[(row + i) * s.a_row + (first + u) * s.a_column]);
      const int j = beside ? p % TILE : p / STEP, v = beside ? p / TILE : p % STEP;
      if (v < depth && column + j < s.n)
        right[v][j] = pb_wide(b[(first + v) * s.b_row + (column + j) * s.b_column]);
    }}
    __syncthreads();
    for (int u = 0; u < depth; ++u) {{
#pragma unroll
      for (int i = 0; i < SIDE; ++i)
#pragma unroll
        for (int j = 0; j < SIDE; ++j)
          chunk[i][j] = pb_fused(left[u][y * SIDE + i], right[u][x + j * (TILE / SIDE)],
                                 chunk[i][j]);
    }}
    __syncthreads();
    const long long done = first + depth;
    if (done % CHUNK && done < s.k) continue;
#pragma unroll
    for (int i = 0; i < SIDE; ++i)
#pragma unroll
      for (int j = 0; j < SIDE; ++j) {{
        total[i][j] = done <= CHUNK ? chunk[i][j] : pb_sum(total[i][j], chunk[i][j]);
        chunk[i][j] = pb_zero();
      }}
  }}
  for (int i = 0; i < SIDE; ++i)
    for (int j = 0; j < SIDE; ++j) {{
      const long long r = row + y * SIDE + i, c = column + x + j * (TILE / SIDE);
      if (r < s.m && c < s.n) out[r * s.n + c] = pb_narrow(total[i][j]);
    }}
}}"""
)

_CHUNKS = """
extern "C" __global__ void __launch_bounds__({threads}) {name}_chunks(Wide* __restrict__ partials,
    const Value* __restrict__ a, const Value* __restrict__ b, const long long k,
    const long long n, const long long a_step, const long long b_step, const long long b_column) {{
  __shared__ Wide left[{turn}][{threads} + 1], right[{turn}][{threads} + 1];
  const long long chunks = (k + {chunk} - 1) / {chunk}, count = chunks * n;
  const bool along = b_step == 1;  // neighbouring threads read elements that lie side by side
  const long long each = {threads};
  for (long long base = blockIdx.x * each; base < count; base += gridDim.x * each) {{
    const long long own = base + threadIdx.x, start = own / n * {chunk};
    const long long length = own < count ? (k - start < {chunk} ? k - start : {chunk}) : 0;
    Sum sum = pb_zero();
    for (int first = 0; first < {chunk} && first < k; first += {turn}) {{
      for (int p = (int)threadIdx.x; p < {turn} * {threads}; p += {threads}) {{
        const int t = along ? p / {turn} : p % {threads}, u = along ? p % {turn} : p / {threads};
        const long long i = base + t, at = i / n * {chunk} + first + u;
        if (i < count && at < k) {{
          left[u][t] = pb_wide(a[at * a_step]);
          right[u][t] = pb_wide(b[at * b_step + i % n * b_column]);
        }}
      }}
      __syncthreads();
      for (int u = 0; u < {turn}; ++u)
        if (first + u < length)
          sum = pb_fused(left[u][threadIdx.x], right[u][threadIdx.x], sum);
      __syncthreads();
    }}
    if (own < count) partials[own] = sum;
  }}
}}
extern "C" __global__ void {name}_join(Value* __restrict__ out,
    const Wide* __restrict__ partials, const long long chunks, const long long n) {{
  for (long long i = pb_first(); i < n; i += pb_step()) {{
    Sum sum = partials[i];
    for (long long c = 1; c < chunks; ++c) sum = pb_sum(sum, partials[c * n + i]);
    out[i] = pb_narrow(sum);
  }}
}}"""


def wide_of(dtype: DType) -> DType:
    """The dtype in which products are added up."""
    return dt.float32 if dtype in (dt.float16, dt.bfloat16) else dtype


def _side(dtype: DType) -> int:
    """The rows and columns of a thread, whose sums stay in registers: a complex one has four."""
    return 2 if dtype.is_complex else 4


@cache
def _source(dtype: DType, body: str) -> tuple[str, str]:
    """The name of a kernel, without its end, and its source."""
    wide, value = wide_of(dtype), storage(dtype)
    fma = "fmaf" if wide.real is dt.float32 else "fma"
    if dtype.is_complex:
        element = _COMPLEX.format(value=value, fma=fma, part=storage(dtype.real))
    else:
        element = _REAL.format(
            value=value, wide=storage(wide), fma=fma,
            read=convert("x", dtype, wide), write=convert("x", wide, dtype),
        )  # fmt: skip
    name = f"product_{dtype.name}"
    words = {"name": name, "threads": THREADS, "chunk": order.CHUNK, "turn": TURN}
    words |= {"side": _side(dtype), "tile": ACROSS * _side(dtype)}
    source = Source()
    source.add("pb_nest", NEST)
    source.add(name, element + body.format(**words))
    return name, source.text()


def _tiled_step(
    dtype: DType,
    batch: Sequence[int],
    sides: tuple[int, int, int],
    a: tuple[At, Strides],
    b: tuple[At, Strides],
    out: At,
) -> Step:
    """The launch of a batch of products (m, k) @ (k, n)."""
    m, n, k = sides
    tile = ACROSS * _side(dtype)
    across, down = math.ceil(n / tile), math.ceil(m / tile)
    (a_at, a_strides), (b_at, b_strides) = a, b
    dense = [math.prod(batch[d + 1 :]) for d in range(len(batch))]
    nest = packed(coalesce(batch, [a_strides[:-2], b_strides[:-2], dense]), 2)
    given = struct.pack("<9q", m, n, k, *a_strides[-2:], *b_strides[-2:], across, down)
    name, source = _source(dtype, _TILES)
    grid = math.prod(batch) * across * down, 1
    return Step(source, f"{name}_tiles", grid, THREADS, (out, a_at, b_at, nest, given))


def _row_steps(
    dtype: DType, n: int, k: int, a: tuple[At, int], b: tuple[At, int, int], out: At, area: Area
) -> list[Step]:
    """The launches of one row of k times a large matrix; steps along k, and of columns."""
    name, source = _source(dtype, _CHUNKS)
    wide = wide_of(dtype)
    chunks = math.ceil(k / order.CHUNK)
    partials = At(area(chunks * n * wide.itemsize))
    (a_at, a_step), (b_at, b_step, b_column) = a, b
    given = (partials, a_at, b_at, k, n, a_step, b_step, b_column)
    return [
        Step(source, f"{name}_chunks", (grid_of(chunks * n), 1), THREADS, given),
        Step(source, f"{name}_join", (grid_of(n), 1), THREADS, (out, partials, chunks, n)),
    ]


def product_stages(
    operands: Sequence[Place], static: Mapping[str, Any], result: Place, area: Area, _: int
) -> list[Stage]:
    """The stages of a batch of products of matrices."""
    (a_slot, a), (b_slot, b) = operands
    slot, out = result
    if not out.dtype.is_inexact:
        raise DTypeError(f"matmul: takes floats and complex numbers, got {out.dtype.name}.")
    if out.size == 0:
        return []
    *batch, m, n = out.shape
    k = a.shape[-1]
    a_strides, b_strides = (broadcast_strides(x, (*batch, *x.shape[-2:])) for x in (a, b))
    given = (At(a_slot), a_strides), (At(b_slot), b_strides), At(slot)
    return stage(*product_steps(out.dtype, batch, (m, n, k), *given, area))


def product_steps(
    dtype: DType,
    batch: Sequence[int],
    sides: tuple[int, int, int],
    a: tuple[At, Strides],
    b: tuple[At, Strides],
    out: At,
    area: Area,
) -> list[Step]:
    """The launches of products (m, k) @ (k, n); the output is dense."""
    (m, n, k), (left, a_strides), (right, b_strides) = sides, a, b
    if math.prod(batch) == 1 and not dtype.is_complex:
        large = max(m, n) * k * wide_of(dtype).itemsize > ROW_BYTES
        if m == 1 and large:
            given = (left, a_strides[-1]), (right, b_strides[-2], b_strides[-1])
            return _row_steps(dtype, n, k, *given, out, area)
        if n == 1 and m > 1 and large:
            given = (right, b_strides[-2]), (left, a_strides[-1], a_strides[-2])
            return _row_steps(dtype, m, k, *given, out, area)
    return [_tiled_step(dtype, batch, sides, a, b, out)]


def product_row_stages(
    dtype: DType,
    m: int,
    n: int,
    k: int,
    a_slot: int,
    a_strides: Strides,
    b_slot: int,
    b_strides: Strides,
    out_slot: int,
    area: Area,
    /,
) -> list[Stage] | None:
    """See `Target.product_rows`: the whole product, in the order of one of many rows."""
    given = (At(a_slot), a_strides), (At(b_slot), b_strides)
    return stage(_tiled_step(dtype, (), (m, n, k), *given, At(out_slot)))
