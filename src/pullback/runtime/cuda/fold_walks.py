"""The walks of reductions over arrays, as CUDA C: see `folds` for what they are given and do."""

from __future__ import annotations

from pullback.compile.kernel.forms import Reduce
from pullback.compile.kernel.order import BLOCK, LANES
from pullback.runtime.cuda.printer import storage

__all__ = [
    "FOLD",
    "JOINED",
    "MERGE",
    "MERGE_THREADS",
    "THREADS",
    "column_threads",
    "teams",
    "walk_code",
]

THREADS = 128  # of a thread block: few, so that the last ones of a launch end together
MERGE_THREADS = 256
MERGE = 8 * MERGE_THREADS  # accumulators of a thread block that joins, eight for each thread
JOINED = 16  # accumulators that one thread joins
FLIGHT = 8  # loads of an input that a thread waits for at a time

FOLD = """
template <int K> struct Line {
  long long length, first, step, offset[K], stride[K];
};
template <int K> struct Steps { long long step[K]; };
template <typename T, int V> PB_DEVICE Pack<T, V> pb_pack(const T* at) {
  return *reinterpret_cast<const Pack<T, V>*>(at);
}
template <typename T, int V> PB_DEVICE Pack<T, V> pb_singles(const T* at) {
  Pack<T, V> p;
#pragma unroll
  for (int v = 0; v < V; ++v) p.v[v] = at[v];
  return p;
}
// The places of element j of the reduced axes, and of those that are LANES further. Without
// divisions if there is one axis, or if the inner one of two has at least LANES elements.
template <int K> struct Cursor {
  long long at[K], left, inner[K], wrap[K];
  bool simple;
};
template <int K> PB_DEVICE Cursor<K> pb_cursor(const Nest<K>& nest, const long long j,
    const long long (&start)[K], const int lanes) {
  Cursor<K> c;
  const int last = nest.rank > 0 ? (int)nest.rank - 1 : 0;
  const long long n = nest.rank > 1 ? nest.shape[last] : 0x7fffffffffffffffLL;
  c.simple = nest.rank < 2 || (nest.rank == 2 && n >= lanes);
  c.left = n - (nest.rank > 1 ? j % n : 0);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    c.at[k] = start[k];
    c.inner[k] = nest.rank > 0 ? lanes * nest.strides[k][last] : 0;
    c.wrap[k] = nest.rank == 2 ? nest.strides[k][0] - n * nest.strides[k][1] : 0;
  }
  pb_locate(nest, j, c.at);
  return c;
}
template <int K> PB_DEVICE void pb_advance(Cursor<K>& c, const Nest<K>& nest, const int lanes) {
  c.left -= lanes;
  const bool over = c.left <= 0;
  c.left += over ? nest.shape[1] : 0;
#pragma unroll
  for (int k = 0; k < K; ++k) c.at[k] += c.inner[k] + (over ? c.wrap[k] : 0);
}
"""

_SEQUENCE = """
extern "C" __global__ void {name}_sequence({out}* __restrict__ out, {ins},
    const Nest<{k}> kept, const Nest<{k}> reduced) {{
  for (long long i = pb_first(); i < kept.size; i += pb_step()) {{
    long long start[{k}] = {{}};
    pb_locate(kept, i, start);
    {name}_acc a = {name}_init();
    Cursor<{k}> c = pb_cursor(reduced, 0, start, 1);
#pragma unroll {unroll}
    for (int j = 0; j < (int)reduced.size; ++j) {{
      if (!c.simple) {{
#pragma unroll
        for (int k = 0; k < {k}; ++k) c.at[k] = start[k];
        pb_locate(reduced, j, c.at);
      }}
      a = {name}_combine(a, {name}_element({at}, j));
      pb_advance(c, reduced, 1);
    }}
    {name}_finish(a, out[i]);
  }}
}}"""

# The unit of a thread, its block of the tree and its part of that.
_UNIT = """
extern "C" __global__ void __launch_bounds__({threads}) {name}_{walk}({out}* __restrict__ out,
    {name}_acc* __restrict__ partials, {ins}, const Nest<{k}> kept, {along},
    const long long groups, const long long per_group) {{
  constexpr int V = {v}, TEAM = {lanes} / V, TEAMS = {threads} / TEAM;
  __shared__ {name}_acc slots[{threads} / 32];
  const int t = (int)threadIdx.x, part = t % TEAM, p = (int)per_group;
  const long long unit = blockIdx.x * (long long)(TEAMS / p) + t / TEAM / p;
  const bool valid = unit < kept.size * groups;
  const long long group = unit % groups * p, block = group + t / TEAM % p;
  const long long left = valid ? length - block * {block} : 0;
  const int n = left < 0 ? 0 : left < {block} ? (int)left : {block};
  long long start[{k}] = {{}};
  if (valid) pb_locate(kept, unit / groups, start);
  const long long j = block * {block} + part * V;
  {name}_acc a[V];
#pragma unroll
  for (int v = 0; v < V; ++v) a[v] = {name}_init();"""

_ROWS = """
  Cursor<{k}> c = pb_cursor(reduced, n ? j : 0, start, {lanes});
  if (c.simple) {{
#pragma unroll {unroll}
    for (int i = part; i < n; i += {lanes}) {{
      a[0] = {name}_combine(a[0], {name}_element({at}, j + i - part));
      pb_advance(c, reduced, {lanes});
    }}
  }} else {{
    for (int i = part; i < n; i += {lanes}) {{
#pragma unroll
      for (int k = 0; k < {k}; ++k) c.at[k] = start[k];
      pb_locate(reduced, j + i - part, c.at);
      a[0] = {name}_combine(a[0], {name}_element({at}, j + i - part));
    }}
  }}"""

_WIDE = """
{pointers}
  int i = 0;
  for (; i + {lanes} * {flight} <= n; i += {lanes} * {flight}) {{
{loads_in_flight}
#pragma unroll
    for (int u = 0; u < {flight}; ++u)
#pragma unroll
      for (int v = 0; v < V; ++v)
        a[v] = {name}_combine(a[v], {name}_element({packed}, j + i + {lanes} * u + v));
  }}
  for (; i + {lanes} <= n; i += {lanes}) {{
    constexpr int u = 0;
{loads_of_one}
#pragma unroll
    for (int v = 0; v < V; ++v)
      a[v] = {name}_combine(a[v], {name}_element({packed}, j + i + v));
  }}
#pragma unroll
  for (int v = 0; v < V; ++v)
    if (i + part * V + v < n)
      a[v] = {name}_combine(a[v], {name}_element({single}, j + i + v));"""

# Lanes by halves; then blocks, of teams that are neighbours in a warp, then of other warps.
_BLOCKS = """
#pragma unroll
  for (int by = TEAM / 2; by; by /= 2)
#pragma unroll
    for (int v = 0; v < V; ++v) a[v] = {name}_combine(a[v], {name}_down(a[v], by, TEAM));
#pragma unroll
  for (int half = V / 2; half; half /= 2)
#pragma unroll
    for (int v = 0; v < half; ++v) a[v] = {name}_combine(a[v], a[v + half]);
  const int own = t / TEAM % p;
  const long long blocks = (length + {block} - 1) / {block} - group;
#pragma unroll
  for (int s = 1; s * TEAM < 32; s *= 2) {{
    const {name}_acc other = {name}_down(a[0], s * TEAM, 32);
    if (s < p && own % (2 * s) == 0 && own + s < blocks) a[0] = {name}_combine(a[0], other);
  }}
  if (p * TEAM > 32) {{
    if (t % 32 == 0) slots[t / 32] = a[0];
    for (int s = 32 / TEAM; s < p; s *= 2) {{
      __syncthreads();
      if (t % 32 == 0 && own % (2 * s) == 0 && own + s < blocks)
        slots[t / 32] = a[0] = {name}_combine(a[0], slots[t / 32 + s * TEAM / 32]);
    }}
  }}
  if (!valid || part || own) return;
  if (groups == 1) {name}_finish(a[0], out[unit]);
  else partials[unit] = a[0];
}}"""

_COLUMNS = """
extern "C" __global__ void __launch_bounds__({most}) {name}_{walk}({out}* __restrict__ out,
    {name}_acc* __restrict__ partials, {ins}, const Nest<{k}> kept, const Steps<{k}> steps,
    const long long length, const long long across, const long long by_output,
    const long long by_block) {{
  constexpr int V = {v};
  __shared__ {name}_acc slots[{most}][V];
  const int t = (int)threadIdx.x, wide = (int)blockDim.x / {lanes}, x = t % wide, lane = t / wide;
  const long long output = (blockIdx.x % across * wide + x) * V, block = blockIdx.x / across;
  const bool valid = output < kept.size;
  const long long left = length - block * {block}, j = block * {block} + lane;
  const int n = !valid ? 0 : left < {block} ? (int)left : {block};
  long long start[{k}] = {{}};
  if (valid) pb_locate(kept, output, start);
{pointers}
  {name}_acc a[V];
#pragma unroll
  for (int v = 0; v < V; ++v) a[v] = {name}_init();
  int i = lane;
  for (; i + {lanes} * ({flight} - 1) < n; i += {lanes} * {flight}) {{
{loads_in_flight}
#pragma unroll
    for (int u = 0; u < {flight}; ++u)
#pragma unroll
      for (int v = 0; v < V; ++v)
        a[v] = {name}_combine(a[v], {name}_element({packed}, j + i - lane + {lanes} * u));
{advance_in_flight}
  }}
  for (; i < n; i += {lanes}) {{
    constexpr int u = 0;
{loads_of_one}
#pragma unroll
    for (int v = 0; v < V; ++v)
      a[v] = {name}_combine(a[v], {name}_element({packed}, j + i - lane));
{advance_by_one}
  }}
#pragma unroll
  for (int v = 0; v < V; ++v) slots[t][v] = a[v];
#pragma unroll
  for (int half = {lanes} / 2; half; half /= 2) {{
    __syncthreads();
    if (lane < half)
#pragma unroll
      for (int v = 0; v < V; ++v)
        slots[t][v] = a[v] = {name}_combine(a[v], slots[t + half * wide][v]);
  }}
  if (!valid || lane) return;
#pragma unroll
  for (int v = 0; v < V; ++v) {{
    if (length <= {block}) {name}_finish(a[v], out[output + v]);
    else partials[(output + v) * by_output + block * by_block] = a[v];
  }}
}}"""

_JOIN = """
extern "C" __global__ void {name}_join({out}* __restrict__ out,
    const {name}_acc* __restrict__ partials, const long long outputs, const long long count) {{
  const int n = (int)count;
  for (long long i = pb_first(); i < outputs; i += pb_step()) {{
    {name}_acc a[{joined}];
#pragma unroll
    for (int k = 0; k < {joined}; ++k)
      if (k < n) a[k] = partials[i + k * outputs];
#pragma unroll
    for (int s = 1; s < {joined}; s *= 2)
#pragma unroll
      for (int k = 0; k + s < {joined}; k += 2 * s)
        if (k + s < n) a[k] = {name}_combine(a[k], a[k + s]);
    {name}_finish(a[0], out[i]);
  }}
}}"""

_MERGE = """
extern "C" __global__ void __launch_bounds__({merge_threads}) {name}_merge(
    {out}* __restrict__ out, {name}_acc* __restrict__ next,
    const {name}_acc* __restrict__ partials, const long long count) {{
  constexpr int EACH = {merge} / {merge_threads};
  __shared__ {name}_acc slots[{merge_threads} / 32];
  const long long groups = (count + {merge} - 1) / {merge}, unit = blockIdx.x;
  const long long begin = unit % groups * {merge}, left = count - begin;
  const int n = left < {merge} ? (int)left : {merge}, t = (int)threadIdx.x, first = t * EACH;
  const {name}_acc* const own = partials + unit / groups * count + begin;
  {name}_acc a[EACH];
#pragma unroll
  for (int k = 0; k < EACH; ++k) a[k] = own[first + k < n ? first + k : 0];
#pragma unroll
  for (int s = 1; s < EACH; s *= 2)
#pragma unroll
    for (int k = 0; k + s < EACH; k += 2 * s)
      if (first + k + s < n) a[k] = {name}_combine(a[k], a[k + s]);
#pragma unroll
  for (int s = 1; s < 32; s *= 2) {{
    const {name}_acc other = {name}_down(a[0], s, 32);
    if (t % (2 * s) == 0 && first + s * EACH < n) a[0] = {name}_combine(a[0], other);
  }}
  if (t % 32 == 0) slots[t / 32] = a[0];
  for (int s = 32; s < {merge_threads}; s *= 2) {{
    __syncthreads();
    if (t % (2 * s) == 0 && first + s * EACH < n)
      slots[t / 32] = a[0] = {name}_combine(a[0], slots[(t + s) / 32]);
  }}
  if (t) return;
  if (groups == 1) {name}_finish(a[0], out[unit]);
  else next[unit] = a[0];
}}"""

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

_WALKS = {
    "sequence": _SEQUENCE,
    "rows": _UNIT + _ROWS + _BLOCKS,
    "wide": _UNIT + _WIDE + _BLOCKS,
    "columns": _COLUMNS,
    "join": _JOIN,
    "merge": _MERGE,
    "scan": _SCAN,
}


def teams(lanes: int) -> int:
    """The teams of a thread block of `rows` or `wide` whose threads have so many lanes."""
    return THREADS // (LANES // lanes)


def column_threads(lanes: int, outputs: int) -> int:
    """The outputs, or packs of outputs, that a thread block of `columns` has side by side."""
    wide = 2
    while wide < (16 if lanes == 1 else 8) and wide * lanes < outputs:
        wide *= 2
    return wide


def walk_code(kernel: Reduce, name: str, walk: str, light: bool) -> str:
    """A walk of a kernel, whose functions have this name; `light`: elements are quickly done."""
    form, _, inputs = walk.partition("_")
    kinds, width = inputs.rstrip("0123456789"), inputs.lstrip("uzs") or "1"
    count = len(kernel.inputs)
    flight = FLIGHT if light else 2
    words = {
        "name": name, "walk": walk, "out": storage(kernel.output), "k": count, "v": width,
        "ins": ", ".join(
            f"const {storage(d)}* __restrict__ in{k}" for k, d in enumerate(kernel.inputs)
        ),
        "at": ", ".join(f"in{k}[c.at[{k}]]" for k in range(count)),
        "elements": ", ".join(f"in{k}[at[{k + 1}]]" for k in range(count)),
        "along": "const long long length" if form == "wide" else f"const Nest<{count}> reduced",
        "threads": THREADS, "lanes": LANES, "block": BLOCK, "flight": flight,
        "most": LANES * (16 if width == "1" else 8), "joined": JOINED, "unroll": flight,
        "merge": MERGE, "merge_threads": MERGE_THREADS,
    }  # fmt: skip
    text = _WALKS[form]
    if form == "rows":
        text = text.replace("length", "reduced.size")
    elif form == "wide":
        words |= _wide_reads(kernel, kinds, flight)
    elif form == "columns":
        words |= _column_reads(kernel, kinds, flight)
    return text.format(**words)


def _wide_reads(kernel: Reduce, kinds: str, flight: int) -> dict[str, str]:
    """How `wide` reads: its neighbours in memory, or one element for the whole row."""
    pointers, loads, packed, single = [], [], [], []
    for k, (d, kind) in enumerate(zip(kernel.inputs, kinds, strict=True)):
        c = storage(d)
        if kind == "z":
            pointers.append(f"  {c} x{k} = {{}};\n  if (valid) x{k} = in{k}[start[{k}]];")
            packed.append(f"x{k}")
            single.append(f"x{k}")
            continue
        pointers.append(f"  const {c}* const x{k} = in{k} + start[{k}] + j;")
        loads.append(_load(c, k, f"x{k} + i + {LANES} * u", kind))
        packed.append(f"p{k}[u].v[v]")
        single.append(f"x{k}[i + v]")
    return {"pointers": "\n".join(pointers), **_in_flight(loads, flight),
            "packed": ", ".join(packed), "single": ", ".join(single)}  # fmt: skip


def _column_reads(kernel: Reduce, kinds: str, flight: int) -> dict[str, str]:
    """How `columns` reads: outputs that are neighbours in memory, or that read the same."""
    pointers, loads, packed, advance = [], [], [], []
    for k, (d, kind) in enumerate(zip(kernel.inputs, kinds, strict=True)):
        c = storage(d)
        pointers.append(f"  const long long s{k} = steps.step[{k}] * {LANES};")
        pointers.append(f"  const {c}* x{k} = in{k} + start[{k}] + j * steps.step[{k}];")
        if kind == "z":
            loads.append((f"{c} p{k}", f"x{k}[s{k} * u]"))
            packed.append(f"p{k}[u]")
        else:
            loads.append(_load(c, k, f"x{k} + s{k} * u", kind))
            packed.append(f"p{k}[u].v[v]")
        advance.append(f"    x{k} += s{k}")
    return {
        "pointers": "\n".join(pointers), **_in_flight(loads, flight), "packed": ", ".join(packed),
        "advance_in_flight": "\n".join(f"{a} * {flight};" for a in advance),
        "advance_by_one": "\n".join(f"{a};" for a in advance),
    }  # fmt: skip


def _load(c: str, k: int, place: str, kind: str) -> tuple[str, str]:
    """The declaration and value of V neighbours of an input, of type `c`."""
    read = "pb_pack" if kind == "u" else "pb_singles"
    return f"Pack<{c}, V> p{k}", f"{read}<{c}, V>({place})"


def _in_flight(loads: list[tuple[str, str]], flight: int) -> dict[str, str]:
    """Loads that a thread waits for together, and the same for one round."""
    declared = [f"    {head}[{flight}];" for head, _ in loads]
    body = [f"      {head.split()[-1]}[u] = {value};" for head, value in loads]
    many = "\n".join([*declared, "#pragma unroll", f"    for (int u = 0; u < {flight}; ++u) {{",
                      *body, "    }"])  # fmt: skip
    one = "\n".join([*(f"    {head}[1];" for head, _ in loads), *(b[2:] for b in body)])
    return {"loads_in_flight": many, "loads_of_one": one}
