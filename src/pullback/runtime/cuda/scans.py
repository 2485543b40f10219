"""Running folds as CUDA C: lines that are folded in sequence, each by one thread.

    NAME_scan           (out, in_0 .., Nest<1 + K> kept, Line<1 + K> line)
    NAME_lines_turned   (out, in_0 .., Nest<1 + K> kept, Line<1 + K> line, lines)
    NAME_lines_straight (the same)

`kept` are the axes of the lines, the output first. A Line holds length, first index, step of the
index, then for each array an offset and a stride along the axis. `scan` takes any arrays and any
grid. The others have thread blocks of WAITING for `lines` of them, a power of two up to LINES: all
fetch a stage of elements for the next steps while one thread of each line folds what came before.
In `turned` elements of a line lie together in memory, in `straight` those of neighbouring lines.
"""

from __future__ import annotations

from pullback.compile.kernel.forms import Accumulate
from pullback.runtime.cuda.printer import storage

__all__ = ["LINE", "LINES", "WAITING", "fits", "scan_code", "stage_of"]

WAITING = 128  # threads that fetch the next lines while a warp folds those that are there
LINES = 32  # of a thread block: a warp folds them
STAGE_BYTES = 16 << 10  # of one array: two thread blocks have enough under way for a processor
MOST_SHARED = 48 << 10  # bytes of shared memory, which every GPU gives a thread block

LINE = """
template <int K> struct Line {
  long long length, first, step, offset[K], stride[K];
};"""

_SCAN = """
extern "C" __global__ void {name}_scan({out}* __restrict__ out, {ins},
    const Nest<{k} + 1> kept, const Line<{k} + 1> line) {{
  for (long long i = pb_first(); i < kept.size; i += pb_step()) {{
    long long at[{k} + 1] = {{}};
    pb_locate(kept, i, at);
    for (int s = 0; s <= {k}; ++s) at[s] += line.offset[s];
    {name}_acc a = {name}_init();
    for (long long n = 0; n < line.length; ++n) {{
      a = {name}_combine(a, {name}_element({elements}, line.first + n * line.step));
      {name}_finish(a, out[at[0]]);
#pragma unroll
      for (int s = 0; s <= {k}; ++s) at[s] += line.stride[s];
    }}
  }}
}}"""

_LINES = """
extern "C" __global__ void __launch_bounds__({waiting}) {name}_{walk}(
    {out}* __restrict__ out, {ins}, const Nest<{k} + 1> kept, const Line<{k} + 1> line,
    const long long many) {{
  constexpr int STAGE = {stage}, EACH = STAGE / {waiting};
  constexpr bool TURNED = {turned};
  __shared__ long long start[{most}][{k} + 1];
{declared}
  const int t = (int)threadIdx.x, lines = (int)many, steps = STAGE / lines;
  const int pitch = TURNED ? steps + 1 : lines;
  // element i of a stage is step i & mask of line i >> bits if turned, else the other way round
  const int bits = 31 - __clz(TURNED ? steps : lines), mask = (1 << bits) - 1;
  const long long first = blockIdx.x * many;
  const int used = kept.size - first < many ? (int)(kept.size - first) : lines;
  if (t < used) {{
    long long at[{k} + 1] = {{}};
    pb_locate(kept, first + t, at);
#pragma unroll
    for (int s = 0; s <= {k}; ++s) start[t][s] = at[s] + line.offset[s];
  }}
  __syncthreads();
  {name}_acc a = {name}_init();
  for (long long done = -steps; done < line.length; done += steps) {{
    const long long next = done + steps;
    const bool whole = used == lines && next + steps <= line.length;
{fetched}
    if (done >= 0 && t < used) {{
      const int end = line.length - done < steps ? (int)(line.length - done) : steps;
#pragma unroll {unroll}
      for (int n = 0; n < end; ++n) {{
        const int at = TURNED ? t * pitch + n : n * pitch + t;
        a = {name}_combine(a, {name}_element({staged}, line.first + (done + n) * line.step));
        {name}_finish(a, made[at]);
      }}
    }}
    __syncthreads();
    if (done >= 0) {{
      const bool whole = used == lines && done + steps <= line.length;
{kept}
    }}
#pragma unroll
    for (int e = 0; e < EACH; ++e) {{
      const int i = e * {waiting} + t, at = TURNED ? i + (i >> bits) : i;
{laid}
    }}
    __syncthreads();
  }}
}}"""

# Every element of a stage that begins at a step: `move` is done to element e, at `place`. Where all
# are there, addresses follow each other or differ by less than a line.
_EACH = """
    if (whole && TURNED) {{
      const {c}* const base = {array} + {begin} * line.stride[{s}];
      const int stride = (int)line.stride[{s}];
#pragma unroll
      for (int e = 0; e < EACH; ++e) {{
        const int i = e * {waiting} + t, at = i + (i >> bits);
        {place} = ({c}*)base + (start[i >> bits][{s}] + (i & mask) * stride);
        {move}
      }}
    }} else if (whole) {{
      {place} = ({c}*){array} + start[t & mask][{s}] + ({begin} + (t >> bits)) * line.stride[{s}];
      const long long hop = ({waiting} >> bits) * line.stride[{s}];
#pragma unroll
      for (int e = 0; e < EACH; ++e) {{
        const int at = e * {waiting} + t;
        {move}
        q += hop;
      }}
    }} else {{
#pragma unroll
      for (int e = 0; e < EACH; ++e) {{
        const int i = e * {waiting} + t, at = TURNED ? i + (i >> bits) : i;
        const int l = TURNED ? i >> bits : i & mask, step = TURNED ? i & mask : i >> bits;
        if (l < used && {begin} + step < line.length) {{
          {place} = ({c}*){array} + start[l][{s}] + ({begin} + step) * line.stride[{s}];
          {move}
        }}
      }}
    }}"""


def stage_of(kernel: Accumulate) -> int:
    """Elements of a stage, a power of two."""
    widest = max(d.itemsize for d in (*kernel.inputs, kernel.output))
    return STAGE_BYTES // max(4, widest)


def fits(kernel: Accumulate) -> bool:
    """Whether a stage of every array fits into shared memory."""
    sizes = [d.itemsize for d in (*kernel.inputs, kernel.output)]
    rest = 8 * LINES * len(sizes)
    return bool(kernel.inputs) and sum(sizes) * (stage_of(kernel) + LINES) + rest <= MOST_SHARED


def scan_code(kernel: Accumulate, name: str, walk: str) -> str:
    """A walk of a running fold, whose functions have this name."""
    count = len(kernel.inputs)
    words = {
        "name": name, "walk": walk, "out": storage(kernel.output), "k": count,
        "ins": ", ".join(
            f"const {storage(d)}* __restrict__ in{k}" for k, d in enumerate(kernel.inputs)
        ),
    }  # fmt: skip
    if walk == "scan":
        elements = ", ".join(f"in{k}[at[{k + 1}]]" for k in range(count))
        return _SCAN.format(**words, elements=elements)
    out = storage(kernel.output)
    declared = [f"  __shared__ {out} made[STAGE + {LINES}];"]
    fetched, laid = [], []
    for k, c in enumerate(map(storage, kernel.inputs)):
        declared.append(f"  __shared__ {c} staged{k}[STAGE + {LINES}];\n  {c} p{k}[EACH];")
        fetched.append(_each(f"in{k}", c, k + 1, "next", f"p{k}[e] = *q;"))
        laid.append(f"      staged{k}[at] = p{k}[e];")
    return _LINES.format(
        **words, waiting=WAITING, stage=stage_of(kernel), most=LINES, unroll=16,
        turned="true" if walk == "lines_turned" else "false", declared="\n".join(declared),
        fetched="\n".join(fetched), kept=_each("out", out, 0, "done", "*q = made[at];"),
        laid="\n".join(laid), staged=", ".join(f"staged{k}[at]" for k in range(count)),
    )  # fmt: skip


def _each(array: str, c: str, stream: int, begin: str, move: str) -> str:
    """A move of every element of an array's stage."""
    return _EACH.format(
        array=array, c=c, s=stream, begin=begin, move=move, place=f"{c}* q", waiting=WAITING
    )
