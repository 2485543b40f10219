"""Reduce and Accumulate kernels as CUDA C, with the tree of the CPU: the same bits on both.

The tree is that of `order.tree`. Blocks are joined level by level: block b takes in block
b + 2**level where 2**(level + 1) divides b.

    NAME_sequence (out, in_0 .., Nest<K> kept, Nest<K> reduced)
    NAME_rows     (out, partials, in_0 .., Nest<K> kept, Nest<K> reduced, groups, per_group)
    NAME_columns  (the same)
    NAME_merge    (out, next, partials, long long count)
    NAME_scan     (out, in_0 .., Nest<1 + K> kept, Line<1 + K> line)

K is the number of inputs, `kept` and `reduced` their axes; the output is dense.
`sequence` takes any grid. `rows` has thread blocks of THREADS; a unit is one output and a group of
`per_group` blocks of the tree, a power of two up to MAX_GROUP, and a thread block does
max(1, THREADS / LANES / per_group) units. `columns` is for outputs that lie side by side: a thread
keeps all lanes of an output, and a thread block does one group, of up to MAX_TALL blocks, for WIDTH
outputs; only kernels with few instructions have it. With one group these write outputs, else
accumulators.
These `merge` joins: a thread block of THREADS takes up to MERGE of the `count` accumulators of an
output, and writes the output if that is all of them. `scan` is a running fold, one thread for each
kept position; its Line holds length, first index, step of the index, then for each array (the
output first) an offset and a stride along the axis.
"""

from __future__ import annotations

from collections.abc import Sequence

from pullback.compile.kernel.forms import Accumulate, Reduce
from pullback.compile.kernel.order import BLOCK, LANES
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr
from pullback.runtime.cuda.kernels import NEST, arguments, leaf_of, name_of, parts, stored, weight
from pullback.runtime.cuda.printer import Source, emit, register, storage

__all__ = [
    "MAX_GROUP",
    "MERGE",
    "THREADS",
    "accumulator_bytes",
    "fold_code",
]

THREADS = 256  # of a thread block: eight of these fill a processor's 2048
MAX_GROUP = 64  # blocks of the tree that a unit folds without a partial result
MERGE = 512  # accumulators of a thread block that joins, two for each thread
WIDTH = 32  # outputs side by side: a warp's, which are read in whole lines
MAX_TALL = 16
UNROLL = 8
LIGHT = 24  # instructions of an element up to which code is unrolled

FOLD = """
template <int K> struct Line {
  long long length, first, step, offset[K], stride[K];
};
// Adds the offsets of element j of the reduced axes, mostly a single one.
template <int K> PB_DEVICE void pb_along(const Nest<K>& nest, long long j, long long (&at)[K]) {
  if (nest.rank != 1) return pb_locate(nest, j, at);
#pragma unroll
  for (int k = 0; k < K; ++k) at[k] += j * nest.strides[k][0];
}
"""

_SEQUENCE = """
extern "C" __global__ void {name}_sequence({out}* __restrict__ out, {ins},
    const Nest<{k}> kept, const Nest<{k}> reduced) {{
  for (long long i = pb_first(); i < kept.size; i += pb_step()) {{
    long long start[{k}] = {{}};
    pb_locate(kept, i, start);
    {name}_acc a = {name}_init();
    for (long long j = 0; j < reduced.size; ++j) {name}_fold(a, {names}, start, reduced, j);
    {name}_finish(a, out[i]);
  }}
}}"""

_ROWS = """
extern "C" __global__ void __launch_bounds__({threads}) {name}_rows({out}* __restrict__ out,
    {name}_acc* __restrict__ partials, {ins},
    const Nest<{k}> kept, const Nest<{k}> reduced, const long long groups,
    const long long per_group) {{
  __shared__ {name}_acc slots[{slots}];
  const int p = (int)per_group, t = (int)threadIdx.x, lane = t % {lanes};
  const int used = p < {halves} ? {halves} : p;
  const long long units = kept.size * groups, first = blockIdx.x * (long long)(used / p);
  for (int slot = t / {lanes}; slot < used; slot += {halves}) {{
    const long long unit = first + slot / p, block = unit % groups * p + slot % p;
    const long long begin = block * {block}, limit = begin + {block};
    const long long end = unit >= units ? 0 : limit < reduced.size ? limit : reduced.size;
    long long start[{k}] = {{}};
    if (unit < units) pb_locate(kept, unit / groups, start);
    {name}_acc a = {name}_init();
#pragma unroll {unroll}
    for (long long j = begin + lane; j < end; j += {lanes})
      {name}_fold(a, {names}, start, reduced, j);
    for (int half = {lanes} / 2; half; half /= 2) a = {name}_combine(a, {name}_down(a, half));
    if (lane == 0) slots[slot] = a;
  }}
  __syncthreads();
  const long long unit = first + t / p, group = unit % groups;
  const long long blocks = (reduced.size + {block} - 1) / {block} - group * p;
  const bool valid = t < used && unit < units;
  for (int s = 1; s < p; s *= 2) {{
    if (valid && t % p % (2 * s) == 0 && t % p + s < p && t % p + s < blocks)
      slots[t] = {name}_combine(slots[t], slots[t + s]);
    __syncthreads();
  }}
  if (!valid || t % p) return;
  if (groups == 1) {name}_finish(slots[t], out[unit]);
  else partials[unit] = slots[t];
}}"""

_COLUMNS = """
extern "C" __global__ void __launch_bounds__({threads}) {name}_columns({out}* __restrict__ out,
    {name}_acc* __restrict__ partials, {ins},
    const Nest<{k}> kept, const Nest<{k}> reduced, const long long groups,
    const long long per_group) {{
  __shared__ {name}_acc slots[{tall}][{width}];
  const int p = (int)per_group, x = (int)threadIdx.x % {width}, y = (int)threadIdx.x / {width};
  const long long output = blockIdx.x / groups * {width} + x, group = blockIdx.x % groups;
  const bool valid = output < kept.size;
  long long start[{k}] = {{}};
  if (valid) pb_locate(kept, output, start);
  for (int slot = y; slot < p; slot += {rows}) {{
    long long j = (group * p + slot) * {block};
    const long long limit = j + {block};
    const long long end = !valid ? j : limit < reduced.size ? limit : reduced.size;
    {name}_acc a[{lanes}];
#pragma unroll
    for (int l = 0; l < {lanes}; ++l) a[l] = {name}_init();
    for (; j + {lanes} <= end; j += {lanes}) {{
#pragma unroll
      for (int l = 0; l < {lanes}; ++l) {name}_fold(a[l], {names}, start, reduced, j + l);
    }}
#pragma unroll
    for (int l = 0; l < {lanes}; ++l)
      if (j + l < end) {name}_fold(a[l], {names}, start, reduced, j + l);
#pragma unroll
    for (int half = {lanes} / 2; half; half /= 2) {{
#pragma unroll
      for (int l = 0; l < half; ++l) a[l] = {name}_combine(a[l], a[l + half]);
    }}
    slots[slot][x] = a[0];
  }}
  __syncthreads();
  const long long blocks = (reduced.size + {block} - 1) / {block} - group * p;
  const int n = blocks < p ? (int)blocks : p;
  for (int s = 1; s < n; s *= 2) {{
    for (int t = y * 2 * s; t + s < n; t += {rows} * 2 * s)
      slots[t][x] = {name}_combine(slots[t][x], slots[t + s][x]);
    __syncthreads();
  }}
  if (!valid || y) return;
  if (groups == 1) {name}_finish(slots[0][x], out[output]);
  else partials[output * groups + group] = slots[0][x];
}}"""

_MERGE = """
extern "C" __global__ void __launch_bounds__({threads}) {name}_merge({out}* __restrict__ out,
    {name}_acc* __restrict__ next, const {name}_acc* __restrict__ partials,
    const long long count) {{
  __shared__ {name}_acc slots[{merge}];
  const long long groups = (count + {merge} - 1) / {merge}, unit = blockIdx.x;
  const long long begin = unit % groups * {merge}, left = count - begin;
  const int n = left < {merge} ? (int)left : {merge};
  for (int t = threadIdx.x; t < n; t += {threads})
    slots[t] = partials[unit / groups * count + begin + t];
  __syncthreads();
  for (int s = 1; s < n; s *= 2) {{
    for (int t = threadIdx.x * 2 * s; t + s < n; t += {threads} * 2 * s)
      slots[t] = {name}_combine(slots[t], slots[t + s]);
    __syncthreads();
  }}
  if (threadIdx.x) return;
  if (groups == 1) {name}_finish(slots[0], out[unit]);
  else next[unit] = slots[0];
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


def accumulator_bytes(kernel: Reduce) -> int:
    """Room for the accumulators of one output: at least the size of the struct."""
    return 8 * len(kernel.init)


def has_columns(kernel: Reduce) -> bool:
    """Whether a kernel is printed as `columns`, where every lane has its own instructions."""
    return weight((*kernel.element, *kernel.combine)) < LIGHT


def fold_code(source: Source, kernel: Reduce) -> str:
    """Add a Reduce or Accumulate kernel to `source` and return its name."""
    name = name_of(kernel)
    if name in source:
        return name
    source.add("pb_nest", NEST)
    source.add("pb_fold", FOLD)
    ins = ", ".join(f"const {storage(d)}* __restrict__ in{k}" for k, d in enumerate(kernel.inputs))
    count = len(kernel.inputs)
    words = {
        "name": name, "out": storage(kernel.output), "ins": ins, "k": count,
        "names": ", ".join(f"in{k}" for k in range(count)),
        "elements": ", ".join(f"in{k}[at[{k + 1}]]" for k in range(count)),
        "threads": THREADS, "lanes": LANES, "halves": THREADS // LANES, "block": BLOCK,
        "slots": max(MAX_GROUP, THREADS // LANES), "merge": MERGE,
        "width": WIDTH, "rows": THREADS // WIDTH, "tall": MAX_TALL,
        "unroll": UNROLL if has_columns(kernel) else 1,
    }  # fmt: skip
    walks = [_SEQUENCE, _ROWS, _MERGE, *([_COLUMNS] if has_columns(kernel) else [])]
    walks = [_SCAN] if isinstance(kernel, Accumulate) else walks
    functions = _functions(source, kernel, name)
    if not isinstance(kernel, Accumulate):
        functions += [_fold(kernel, name, ins), _down(kernel, name)]
    source.add(name, "\n".join([*functions, *(w.format(**words) for w in walks)]))
    return name


def _functions(source: Source, kernel: Reduce, name: str) -> list[str]:
    """The accumulators as a struct, and the kernel's four expressions as functions."""
    dtypes = [e.dtype for e in kernel.init]
    members = " ".join(f"{register(d)} x{k};" for k, d in enumerate(dtypes))
    acc = f"{name}_acc"
    return [
        f"struct {acc} {{ {members} }};",
        _function(source, f"{acc} {name}_init()", kernel.init, acc),
        _function(
            source,
            f"{acc} {name}_element({arguments(kernel.inputs)}const long long j)",
            kernel.element, acc, kernel.inputs,
        ),
        _function(
            source, f"{acc} {name}_combine(const {acc} a, const {acc} b)", kernel.combine, acc
        ),
        _finish(source, kernel, name),
    ]  # fmt: skip


def _function(
    source: Source, head: str, roots: Sequence[Expr], acc: str, inputs: Sequence[DType] = ()
) -> str:
    """A function that returns accumulators."""
    read = leaf_of(inputs, "j")

    def leaf(e: Expr) -> str:
        return _member(e) if e.op == "acc" else read(e)

    lines, names = emit(source, roots, leaf)
    return "\n".join(
        [f"PB_DEVICE {head} {{", *lines, f"  return {acc}{{{', '.join(names)}}};", "}"]
    )


def _member(e: Expr) -> str:
    side, position = e.value  # type: ignore[misc]
    return f"{side}.x{position}"


def _finish(source: Source, kernel: Reduce, name: str) -> str:
    lines, names = emit(source, parts(kernel.finish, kernel.output), _member)
    head = f"PB_DEVICE void {name}_finish(const {name}_acc a, {storage(kernel.output)}& out) {{"
    return "\n".join([head, *lines, stored("out", kernel.output, names), "}"])


def _fold(kernel: Reduce, name: str, ins: str) -> str:
    """A function that combines element j into accumulators."""
    count = len(kernel.inputs)
    values = ", ".join(f"in{k}[at[{k}]]" for k in range(count))
    copies = ", ".join(f"start[{k}]" for k in range(count))
    return f"""PB_DEVICE void {name}_fold({name}_acc& a, {ins},
    const long long (&start)[{count}], const Nest<{count}>& reduced, const long long j) {{
  long long at[{count}] = {{{copies}}};
  pb_along(reduced, j, at);
  a = {name}_combine(a, {name}_element({values}, j));
}}"""


def _down(kernel: Reduce, name: str) -> str:
    """A function that reads the accumulators of the lane that is `by` further."""
    values = []
    for k, e in enumerate(kernel.init):
        wide = "int" if e.dtype.itemsize < 4 else register(e.dtype)
        moved = f"__shfl_down_sync(0xffffffffu, ({wide})a.x{k}, by, {LANES})"
        values.append(f"({register(e.dtype)}){moved}")
    head = f"PB_DEVICE {name}_acc {name}_down(const {name}_acc& a, const int by) {{"
    return f"{head} return {name}_acc{{{', '.join(values)}}}; }}"
