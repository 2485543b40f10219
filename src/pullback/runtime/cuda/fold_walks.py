"""The walks of reductions over arrays, as CUDA C: see `folds` for what they are given and do."""

from __future__ import annotations

from pullback.compile.kernel.order import BLOCK, LANES
from pullback.runtime.cuda.fold_kernels import Fold, results_of, stores_of
from pullback.runtime.cuda.fold_reads import (
    column_bounds,
    column_most,
    column_reads,
    small_reads,
    wide_reads,
)
from pullback.runtime.cuda.printer import storage

__all__ = [
    "FOLD",
    "JOINED",
    "LANES_SIDE",
    "MERGE",
    "MERGE_THREADS",
    "SMALL_BLOCKS",
    "SMALL_THREADS",
    "THREADS",
    "column_threads",
    "small_blocks",
    "teams",
    "walk_code",
]

THREADS = 128  # of a thread block: few, so that the last ones of a launch end together
MERGE_THREADS = 256  # of a thread block that joins what others have folded
MERGE = 8 * MERGE_THREADS  # accumulators of a thread block that joins, eight for each thread
SMALL_THREADS = 256  # of a thread block that makes all elements first: no more than loops have
SMALL_FLIGHT = 48  # loads that one of its threads waits for at a time, of all inputs
SMALL_BLOCKS = SMALL_THREADS // LANES  # of the tree, that such a thread block folds
SMALL_BYTES = 40 << 10  # of shared memory for elements, of the 48 KB that a kernel may have anyway
LANES_SIDE = 32  # outputs side by side of a thread block that joins lanes: a warp reads them
JOINED = 16  # accumulators of an output that one thread joins in sequence
# Loads of an input that a thread waits for at a time, by the instructions of an element.
FLIGHTS = ((24, 8), (100, 4))

FOLD = """
template <int K> struct Steps { long long step[K]; };
// Begins to read 128 bytes into the L2 cache.
PB_DEVICE void pb_prefetch(const void* at) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#endif
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
extern "C" __global__ void {name}_sequence({outs}, {ins},
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
    {name}_finish(a, {to_i});
  }}
}}"""

# The unit of a thread, its block of the tree and its part of that.
_UNIT = """
extern "C" __global__ void __launch_bounds__({threads}) {name}_{walk}({outs},
    {name}_acc* __restrict__ partials, {ins}, const Nest<{streams}> kept, {along},
    const long long groups, const long long per_group) {{
  constexpr int V = {v}, TEAM = {lanes} / V, TEAMS = {threads} / TEAM;
  __shared__ {name}_acc slots[{threads} / 32];
  const int t = (int)threadIdx.x, part = t % TEAM, p = (int)per_group;
  const long long unit = blockIdx.x * (long long)(TEAMS / p) + t / TEAM / p;
  const bool valid = unit < kept.size * groups;
  const long long group = unit % groups * p, block = group + t / TEAM % p;
  const long long left = valid ? length - block * {block} : 0;
  const int n = left < 0 ? 0 : left < {block} ? (int)left : {block};
  long long start[{streams}] = {{}};
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
{prefetched}
  int i = 0;
  for (; i + {lanes} * {flight} <= n; i += {lanes} * {flight}) {{
{loads_in_flight}
#pragma unroll
    for (int u = 0; u < {flight}; ++u) {{
{made}
#pragma unroll
      for (int v = 0; v < V; ++v)
        a[v] = {name}_combine(a[v], {name}_element({packed}, j + i + {lanes} * u + v{results}));
{kept}
    }}
  }}
  for (; i + {lanes} <= n; i += {lanes}) {{
    constexpr int u = 0;
{loads_of_one}
{made}
#pragma unroll
    for (int v = 0; v < V; ++v)
      a[v] = {name}_combine(a[v], {name}_element({packed}, j + i + v{results}));
{kept}
  }}
#pragma unroll
  for (int v = 0; v < V; ++v)
    if (i + part * V + v < n)
      a[v] = {name}_combine(a[v], {name}_element({single}, j + i + v{targets}));"""

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
  if (groups == 1) {name}_finish(a[0], {to_unit});
  else partials[unit] = a[0];
}}"""

# All threads make elements, then those of teams fold what they have left in shared memory.
_SMALL = """
extern "C" __global__ void __launch_bounds__({small_threads}) {name}_{walk}({outs},
    {name}_acc* __restrict__ partials, {ins}, const Nest<{streams}> kept,
    const long long length, const long long groups, const long long per_group) {{
  constexpr int V = 1, TEAM = {lanes}, ROOM = {at_once} * {block};
  __shared__ {name}_acc slots[{small_threads} / 32];
  __shared__ {name}_acc made_here[{at_once} * ({block} + TEAM)];  // blocks in banks of their own
  const int t = (int)threadIdx.x, part = t % TEAM, p = (int)per_group, step = {small_threads};
  const long long unit = blockIdx.x, group = unit % groups * p;
  const bool valid = t / TEAM < p;
  long long start[{streams}] = {{}};
  pb_locate(kept, unit / groups, start);
  {name}_acc a[V];
  a[0] = {name}_init();
  for (int first = 0; first < p; first += {at_once}) {{
    const long long j = (group + first) * {block}, left = length - j;
    const int n = left < 0 ? 0 : left < ROOM ? (int)left : ROOM;
{pointers}
    for (int i = t; i < n; i += step * {flight}) {{
{loads_in_flight}
#pragma unroll
      for (int u = 0; u < {flight}; ++u) {{
        const int at = i + step * u;
        if (at < n) made_here[at + at / {block} * TEAM] = {name}_element({packed}, j + at);
      }}
    }}
    __syncthreads();
    const int own = t / TEAM - first;
    const int end = n - own * {block} < {block} ? n - own * {block} : {block};
    if (valid && own >= 0 && own < {at_once})
#pragma unroll 8
      for (int i = part; i < end; i += TEAM)
        a[0] = {name}_combine(a[0], made_here[own * ({block} + TEAM) + i]);
    __syncthreads();
  }}"""

_COLUMNS = """
extern "C" __global__ void __launch_bounds__({bounds}) {name}_{walk}({outs},
    {name}_acc* __restrict__ partials, {ins}, const Nest<{streams}> kept,
    const Steps<{streams}> steps, const long long length, const long long across,
    const long long by_output, const long long by_block) {{
  constexpr int V = {v};
  __shared__ {name}_acc slots[{most}][V];
  const int t = (int)threadIdx.x, wide = (int)blockDim.x / {lanes}, x = t % wide, lane = t / wide;
  const long long output = (blockIdx.x % across * wide + x) * V, block = blockIdx.x / across;
  const bool valid = output < kept.size;
  const long long left = length - block * {block}, j = block * {block} + lane;
  const int n = !valid ? 0 : left < {block} ? (int)left : {block};
  long long start[{streams}] = {{}};
  if (valid) pb_locate(kept, output, start);
{pointers}
  {name}_acc a[V];
#pragma unroll
  for (int v = 0; v < V; ++v) a[v] = {name}_init();
  int i = lane;
  for (; i + {lanes} * ({flight} - 1) < n; i += {lanes} * {flight}) {{
{loads_in_flight}
#pragma unroll
    for (int u = 0; u < {flight}; ++u) {{
{made}
#pragma unroll
      for (int v = 0; v < V; ++v)
        a[v] = {name}_combine(a[v], {name}_element({packed}, j + i - lane + {lanes} * u{results}));
{kept}
    }}
{advance_in_flight}
  }}
  for (; i < n; i += {lanes}) {{
    constexpr int u = 0;
{loads_of_one}
{made}
#pragma unroll
    for (int v = 0; v < V; ++v)
      a[v] = {name}_combine(a[v], {name}_element({packed}, j + i - lane{results}));
{kept}
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
    if (length <= {block}) {name}_finish(a[v], {to_column});
    else partials[(output + v) * by_output + block * by_block] = a[v];
  }}
}}"""

_JOIN = """
extern "C" __global__ void {name}_join({outs},
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
    {name}_finish(a[0], {to_i});
  }}
}}"""

_LANES = """
extern "C" __global__ void __launch_bounds__({side} * {joined}) {name}_lanes({outs},
    {name}_acc* __restrict__ partials, const {name}_acc* __restrict__ chains,
    const long long outputs, const long long blocks, const long long by_output,
    const long long by_group) {{
  __shared__ {name}_acc slots[{joined}][{side}];
  const long long across = (outputs + {side} - 1) / {side}, group = blockIdx.x / across;
  const int x = (int)threadIdx.x % {side}, y = (int)threadIdx.x / {side};
  const long long output = blockIdx.x % across * {side} + x, block = group * {joined} + y;
  const bool valid = output < outputs && block < blocks;
  {name}_acc a[{lanes}];
#pragma unroll
  for (int k = 0; k < {lanes}; ++k)
    a[k] = chains[valid ? (block * {lanes} + k) * outputs + output : 0];
#pragma unroll
  for (int s = 2; s <= {lanes}; s *= 2)
#pragma unroll
    for (int k = 0; k < {lanes} / 2; ++k)
      if (k < {lanes} / s) a[k] = {name}_combine(a[k], a[k + {lanes} / s]);
  slots[y][x] = a[0];
#pragma unroll
  for (int s = 1; s < {joined}; s *= 2) {{
    __syncthreads();
    if (valid && y % (2 * s) == 0 && y + s < {joined} && block + s < blocks)
      slots[y][x] = a[0] = {name}_combine(a[0], slots[y + s][x]);
  }}
  if (!valid || y) return;
  if (blocks <= {joined}) {name}_finish(a[0], {to_output});
  else partials[output * by_output + group * by_group] = a[0];
}}"""

_MERGE = """
extern "C" __global__ void __launch_bounds__({merge_threads}) {name}_merge(
    {outs}, {name}_acc* __restrict__ next,
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
  if (groups == 1) {name}_finish(a[0], {to_unit});
  else next[unit] = a[0];
}}"""

_WALKS = {
    "sequence": _SEQUENCE,
    "rows": _UNIT + _ROWS + _BLOCKS,
    "wide": _UNIT + _WIDE + _BLOCKS,
    "small": _SMALL + _BLOCKS,
    "columns": _COLUMNS,
    "join": _JOIN,
    "lanes": _LANES,
    "merge": _MERGE,
}


# Where the results of an output go.
_PLACES = {"to_i": "i", "to_unit": "unit", "to_column": "output + v", "to_output": "output"}


def teams(lanes: int) -> int:
    """The teams of a thread block of `rows` or `wide` whose threads have so many lanes."""
    return THREADS // (LANES // lanes)


def column_threads(lanes: int, outputs: int) -> int:
    """The outputs, or packs of outputs, that a thread block of `columns` has side by side."""
    wide = 2
    while wide < (16 if lanes == 1 else 8) and wide * lanes < outputs:
        wide *= 2
    return wide


def small_blocks(kernel: Fold) -> int:
    """The blocks of the tree whose elements `small` has in shared memory at a time; 0 is none."""
    each = (BLOCK + LANES) * len(kernel.init) * max(e.dtype.itemsize for e in kernel.init)
    most = min(SMALL_BLOCKS, SMALL_BYTES // each)
    return 1 << (most.bit_length() - 1) if most else 0


def walk_code(kernel: Fold, name: str, walk: str, cost: int) -> str:
    """A walk of a kernel, whose functions have this name; an element has `cost` instructions."""
    form, _, inputs = walk.partition("_")
    kinds, width = inputs.rstrip("0123456789"), inputs.lstrip("uzsUZS") or "1"
    count, outputs = len(kernel.inputs), [d for d, _ in results_of(kernel)]
    stores = [f"{storage(d)}* __restrict__ store{k}" for k, (d, _) in enumerate(stores_of(kernel))]
    flight = next((n for most, n in FLIGHTS if cost < most), 2)
    words = {
        "name": name, "walk": walk, "k": count, "v": width,
        "outs": ", ".join(f"{storage(d)}* __restrict__ out{k}" for k, d in enumerate(outputs)),
        "streams": count + len(stores),
        "ins": ", ".join([
            *(f"const {storage(d)}* __restrict__ in{k}" for k, d in enumerate(kernel.inputs)),
            *stores,
        ]),
        "at": ", ".join(f"in{k}[c.at[{k}]]" for k in range(count)),
        "along": "const long long length" if form == "wide" else f"const Nest<{count}> reduced",
        "threads": THREADS, "lanes": LANES, "block": BLOCK, "flight": flight,
        "most": column_most(width), "joined": JOINED, "unroll": flight,
        "merge": MERGE, "merge_threads": MERGE_THREADS, "side": LANES_SIDE,
        "small_threads": SMALL_THREADS, "at_once": small_blocks(kernel),
    }  # fmt: skip
    for place, at in _PLACES.items():
        words[place] = ", ".join(f"out{k}[{at}]" for k in range(len(outputs)))
    text = _WALKS[form]
    if form == "rows":
        text = text.replace("length", "reduced.size")
    elif form == "wide":
        words |= wide_reads(kernel, kinds, flight)
        if cost >= FLIGHTS[-1][0]:
            words["prefetched"] = ""
    elif form == "small":
        more = min(2 * flight, max(1, SMALL_FLIGHT // max(1, count)))
        words |= {"flight": more, **small_reads(kernel, kinds, more)}
    elif form == "columns":
        words |= column_reads(kernel, kinds, flight)
        words["bounds"] = column_bounds(kernel, kinds, int(width), flight)
    return text.format(**words)
