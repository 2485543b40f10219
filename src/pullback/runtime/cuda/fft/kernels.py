"""Kernels of Fourier transforms: some passes of a transform in shared memory, and what comes before
and after them.

    fft_DTYPE_RADICES_FLAGS (out, in, Nest<2> batch, Group g, tables ..)
    fft_DTYPE_half, _whole, _times (out, in, table, Nest<2> batch, Step s)

After the passes of radices whose product is `before`, a transform of before R rest points is left
of each `before`-th point. A group does the next passes, of R points together: line (q, p) of
an item reads points `q + before (p + rest k)` and writes `q + before (k + R p)`. A thread block
has LINES lines, a thread one transform of a pass. The struct Group, in int64s:

    lines, before, rest, in step, in imaginary, out step, out imaginary, results that are stored,
    whether to exchange parts on the way in, on the way out, width, factor (float64)

Result k of item i is number `k width + i % width` of its row.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from pullback.compile.kernel.fft_order import FINE_ROWS
from pullback.core.dtypes import DType
from pullback.runtime.cuda.fft.codelets import codelet, source_of

__all__ = ["Group", "formula_source", "group_source", "lines_of", "most_points"]

_SHARED_BYTES = 1 << 15  # of a thread block's points: several blocks fit a multiprocessor
_MOST_THREADS = 512  # of a thread block, so that each can have 128 registers


def most_points(dtype: DType) -> int:
    """Points of a line that one thread block transforms."""
    return _SHARED_BYTES // (2 * dtype.itemsize)


class Group(NamedTuple):
    """A group of passes: the dtype of parts, the radices, whether passes follow, whether results
    are twisted, and whether lines lie side by side in input and output.
    """

    dtype: DType
    radices: tuple[int, ...]
    more: bool
    twisted: bool
    beside: tuple[bool, bool]

    @property
    def points(self) -> int:
        return math.prod(self.radices)

    @property
    def threads(self) -> int:
        return -(-self.points * lines_of(self) // min(self.radices) // 32) * 32

    @property
    def name(self) -> str:
        flags = "".join(str(int(f)) for f in (self.more, self.twisted, *self.beside))
        return f"fft_{self.dtype.name}_{'_'.join(map(str, self.radices))}_{flags}"

    def turned(self, k: int) -> bool:
        """Whether the results of pass k are turned by roots."""
        return self.more or k + 1 < len(self.radices)

    @property
    def tables(self) -> int:
        return sum(self.turned(k) for k in range(len(self.radices))) + 2 * self.twisted


@cache
def lines_of(group: Group) -> int:
    """Lines of a thread block."""
    by_memory = most_points(group.dtype) // group.points
    by_threads = _MOST_THREADS * min(group.radices) // group.points
    return max(1, min(by_memory, by_threads))


_GROUP = """
struct Group {
  long long lines, before, rest;
  Points in, out;
  long long stored, swap_in, swap_out, width;
  double factor;
};
struct Line { long long item, q, p, in, out; };
PB_DEVICE Line pb_line(const Group& g, const Nest<2>& batch, long long line) {
  const long long each = g.before * g.rest, item = line / each, own = line - item * each;
  long long at[2] = {0, 0};
  pb_locate(batch, item, at);
  return Line{item, own % g.before, own / g.before, at[0], at[1]};
}"""


_READ = """#pragma unroll
      for (int k = 0; k < {radix}; ++k) {{
        const long long at = line.q + g.before * (line.p + g.rest * (p + {groups} * k));
        const Pair read = pb_read(in, line.in + at * g.in.step, g.in);
        x[k] = pb_turned(pb_scaled(read, (Real)g.factor), g.swap_in);
      }}"""
_FETCH = """#pragma unroll
      for (int k = 0; k < {radix}; ++k)
        x[k] = memory[t * {points} + q + {span} * (p + {groups} * k)];"""
_TURN = """      const Pair* const roots = table{table} + ({row}) * {others};
#pragma unroll
      for (int j = 1; j < {radix}; ++j) x[j] = pb_times(x[j], roots[j - 1]);"""
_KEEP = """    }}
{wait}    if (here) {{
#pragma unroll
      for (int j = 0; j < {radix}; ++j)
        memory[t * {points} + q + {span} * ({radix} * p + j)] = x[j];
    }}
    __syncthreads();"""
_WRITE = """#pragma unroll
      for (int j = 0; j < {radix}; ++j) {{
        const long long at = line.q + g.before * (q + {span} * j + {points} * line.p);
        const long long column = line.item % g.width;
        if (at * g.width + column >= g.stored) continue;{twist}
        pb_write(out, line.out + at * g.out.step, g.out, pb_turned(x[j], g.swap_out));
      }}
    }}"""
_TWIST = """
        const Pair root = pb_times(table{table}[at / {fine} * g.width + column],
                                   table{next}[at % {fine} * g.width + column]);
        x[j] = pb_times(x[j], root);"""


def _pass(group: Group, k: int, table: int) -> str:
    """The statements of pass k, whose roots are those of a table; `here` says of a thread whether
    it has a transform, which is that of points p + groups k of line t, q of its spans further on.
    """
    radix, points, lines = group.radices[k], group.points, lines_of(group)
    across, span = points // radix, math.prod(group.radices[:k])
    first, last = k == 0, k + 1 == len(group.radices)
    words = {"radix": radix, "points": points, "span": span, "groups": across // span}
    beside = group.beside[0] if first else last and group.beside[1]
    split = f"i % {lines}, c = i / {lines}" if beside else f"i / {across}, c = i % {across}"
    parts = [
        f"    {{ Pair x[{radix}];",
        f"    const int i = threadIdx.x, t = {split}, q = c % {span}, p = c / {span};",
        f"    const bool here = i < {lines * across} && first + t < g.lines;",
        "    if (here) {",
    ]
    if first or last or group.more:
        parts.append("      const Line line = pb_line(g, batch, first + t);")
    parts += [(_READ if first else _FETCH).format(**words), f"      pb_transform_{radix}(x);"]
    if group.turned(k):
        row = "line.p + g.rest * p" if group.more else "p"
        parts.append(_TURN.format(table=table, row=row, others=radix - 1, **words))
        table += 1
    if last:
        twist = _TWIST.format(table=table, next=table + 1, fine=FINE_ROWS)
        parts.append(_WRITE.format(twist=twist if group.twisted else "", **words))
    else:
        parts.append(_KEEP.format(wait="" if first else "    __syncthreads();\n", **words))
    return "\n".join([*parts, "    }"])


@cache
def group_source(group: Group) -> str:
    """The source of the kernel of a group."""
    source = source_of(group.dtype)
    for radix in sorted(set(group.radices)):
        source.add(f"pb_transform_{radix}", codelet(group.dtype, radix))
    source.add("pb_group", _GROUP)
    lines, count = lines_of(group), len(group.radices)
    tables = "".join(f", const Pair* __restrict__ table{k}" for k in range(group.tables))
    shared = f"  __shared__ Pair memory[{lines * group.points}];\n" if count > 1 else ""
    before = [sum(group.turned(i) for i in range(k)) for k in range(count)]
    source.add(group.name, "\n".join([
        f'extern "C" __global__ void __launch_bounds__({group.threads})'
        f" {group.name}(Real* __restrict__ out,",
        f"    const Real* __restrict__ in, const Nest<2> batch, const Group g{tables}) {{",
        f"{shared}  for (long long first = blockIdx.x * {lines}LL; first < g.lines;",
        f"       first += gridDim.x * {lines}LL) {{",
        *(_pass(group, k, table) for k, table in enumerate(before)),
        *(["    __syncthreads();"] if count > 1 else []),
        "  }",
        "}",
    ]))  # fmt: skip
    return source.text()


# The formulas of `fft_order` for real numbers: see `docs/fft.md`.
_FORMULAS = """
struct Step {{
  long long items, n, count;
  Points in, out;
  long long swap_in, swap_out;
  double before, after;
}};
#define PB_EACH(count) \\
  for (long long i = pb_first(); i < s.items * (count); i += pb_step()) {{ \\
    const long long k = i % (count); \\
    long long at[2] = {{0, 0}}; \\
    pb_locate(batch, i / (count), at);

PB_DEVICE Pair pb_halved(Pair z, Pair mirrored, Pair root, bool back) {{
  Pair a = {{z.x + mirrored.x, z.y - mirrored.y}};
  const Pair b = {{z.x - mirrored.x, z.y + mirrored.y}};
  if (!back) a = pb_scaled(a, Real(0.5));
  const Pair turned = pb_times(b, root);
  return Pair{{a.x + turned.x, a.y + turned.y}};
}}
// n = h: results k = 0 .. h of a real transform, or backwards points k = 0 .. h - 1.
extern "C" __global__ void {name}_half(Real* __restrict__ out, const Real* __restrict__ in,
    const Pair* __restrict__ table, const Nest<2> batch, const Step s) {{
  const bool back = s.count == s.n;
  PB_EACH(s.count)
    const Real factor = (Real)s.before;
    const Pair z = pb_scaled(pb_read(in, at[0] + (k == s.n ? 0 : k) * s.in.step, s.in), factor);
    Pair made;
    if (k == 0 || k == s.n) {{
      const Real other = back ? in[at[0] + s.n * s.in.step] * factor : z.y;
      const Real total = z.x + other, difference = z.x - other;
      made = back ? Pair{{total, difference}} : Pair{{k ? difference : total, Real(0)}};
    }} else {{
      const Pair mirrored = pb_scaled(pb_read(in, at[0] + (s.n - k) * s.in.step, s.in), factor);
      made = pb_halved(z, mirrored, table[k], back);
    }}
    pb_write(out, at[1] + k * s.out.step, s.out, made);
  }}
}}
// All n results from the first half of them, for odd n: those of a real array's transform.
extern "C" __global__ void {name}_whole(Real* __restrict__ out, const Real* __restrict__ in,
    const Pair* __restrict__ table, const Nest<2> batch, const Step s) {{
  PB_EACH(s.count)
    const bool mirrored = k > s.n / 2;
    const long long from = at[0] + (mirrored ? s.n - k : k) * s.in.step;
    Pair made = pb_scaled(pb_read(in, from, s.in), (Real)s.before);
    made.y = k == 0 ? Real(0) : mirrored ? -made.y : made.y;
    pb_write(out, at[1] + k * s.out.step, s.out, made);
  }}
}}
// Products with a table, followed by zeros.
extern "C" __global__ void {name}_times(Real* __restrict__ out, const Real* __restrict__ in,
    const Pair* __restrict__ table, const Nest<2> batch, const Step s) {{
  PB_EACH(s.count)
    Pair made = {{0, 0}};
    if (k < s.n) {{
      const Pair z = pb_scaled(pb_read(in, at[0] + k * s.in.step, s.in), (Real)s.before);
      made = pb_times(pb_turned(z, s.swap_in), table[k]);
      made = pb_turned(pb_scaled(made, (Real)s.after), s.swap_out);
    }}
    pb_write(out, at[1] + k * s.out.step, s.out, made);
  }}
}}"""


@cache
def formula_source(dtype: DType) -> tuple[str, str]:
    """The start of the names of the kernels before and after the passes, and their source."""
    source, name = source_of(dtype), f"fft_{dtype.name}"
    source.add("pb_steps", _FORMULAS.format(name=name))
    return name, source.text()
