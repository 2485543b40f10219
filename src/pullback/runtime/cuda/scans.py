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
#pragma unroll
    for (int e = 0; e < EACH; ++e) {{
      const int i = e * {waiting} + t, l = TURNED ? i / steps : i % lines;
      const long long n = next + (TURNED ? i % steps : i / lines);
      if (l < used && n < line.length) {{
{fetched}
      }}
    }}
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
#pragma unroll
    for (int e = 0; e < EACH; ++e) {{
      const int i = e * {waiting} + t, l = TURNED ? i / steps : i % lines;
      const int step = TURNED ? i % steps : i / lines;
      const int at = TURNED ? l * pitch + step : step * pitch + l;
      if (done >= 0 && l < used && done + step < line.length)
        out[start[l][0] + (done + step) * line.stride[0]] = made[at];
{laid}
    }}
    __syncthreads();
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
    declared = [f"  __shared__ {storage(kernel.output)} made[STAGE + {LINES}];"]
    fetched, laid = [], []
    for k, d in enumerate(kernel.inputs):
        declared.append(f"  __shared__ {storage(d)} staged{k}[STAGE + {LINES}];")
        declared.append(f"  {storage(d)} p{k}[EACH];")
        place = f"in{k}[start[l][{k + 1}] + n * line.stride[{k + 1}]]"
        fetched.append(f"        p{k}[e] = {place};")
        laid.append(f"      staged{k}[at] = p{k}[e];")
    return _LINES.format(
        **words, waiting=WAITING, stage=stage_of(kernel), most=LINES, unroll=8,
        turned="true" if walk == "lines_turned" else "false", declared="\n".join(declared),
        fetched="\n".join(fetched), laid="\n".join(laid),
        staged=", ".join(f"staged{k}[at]" for k in range(count)),
    )  # fmt: skip
