"""Reading at indices, and looking whether they are good.

    NAME_check (record, in_0 .., Nest<1 + K> nest, Axes<K> axes, first_code)
    NAME_read  (out, x, in_0 .., Nest<1 + K> nest, Axes<K> axes)
    NAME_rows  (out, in_0 .., Nest<1 + K> nest, Axes<K> axes)

K is the number of index arrays; the first stream of the nest of `check` is the row-major position,
of `read` the place in x, of `rows` that in the array that is written to. `read` and `rows` take
some valid place for a bad index, so that nothing is touched that is not there.

`check` notes the first bad index in the record of the program, unless there is one already: each
thread block raises the complement of position and array, the last one reads the value.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from functools import cache

from pullback.compile.kernel.forms import Gather
from pullback.compile.program.nest import Nest, coalesce
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import IndexArrays, Shape, Strides
from pullback.core.avals import dense_strides
from pullback.core.dtypes import DType
from pullback.runtime.cuda.kernels import NEST
from pullback.runtime.cuda.launch import THREADS, grid_of, packed
from pullback.runtime.cuda.printer import Source, storage
from pullback.runtime.cuda.stages import RECORD, At, Either, Step, stage

__all__ = ["INDICES", "axes_of", "check_steps", "gather_stages", "head", "row_step"]

READS = 4  # elements, or packs of them, that a thread waits for at a time
VECTOR_BYTES = 16  # of the widest load that a thread has
Indexed = Sequence[tuple[int, int]]  # size and stride of each indexed axis

INDICES = """
struct Record {
  unsigned long long first;  // the complement of position * K + array, of the first bad index
  long long code, position, value;
  unsigned int blocks, unused;
  volatile long long* told;  // a word of the host's, which may look at it when the device has ended
};
template <int K> struct Axes { long long size[K], least[K], stride[K]; };
template <typename I> PB_DEVICE bool pb_is_bad(I i, long long least, long long size) {
  if (I(-1) > I(0)) return (unsigned long long)i >= (unsigned long long)size;
  return (long long)i < least || (long long)i >= size;
}
// The number of an element; 0 for a bad index.
template <typename I> PB_DEVICE long long pb_wrapped(I i, long long size) {
  if (pb_is_bad(i, -size, size)) return 0;
  const long long k = (long long)i;
  return k < 0 ? k + size : k;
}
"""

_CHECK = """
extern "C" __global__ void {name}_check(Record* record, {ins}, const Nest<1 + {k}> nest,
    const Axes<{k}> axes, const long long first_code) {{
  for (long long i = pb_first(); i < nest.size; i += pb_step()) {{
    long long at[1 + {k}] = {{}};
    pb_locate(nest, i, at);
    const bool bad[] = {{{bads}}};
    for (int k = 0; k < {k}; ++k) {{
      if (!bad[k]) continue;
      atomicMax(&record->first, ~(unsigned long long)(at[0] * {k} + k));
      break;
    }}
  }}
  __syncthreads();
  if (threadIdx.x) return;
  __threadfence();
  if (atomicAdd(&record->blocks, 1u) != gridDim.x - 1) return;
  const unsigned long long first = atomicMax(&record->first, 0ULL);
  if (first && !record->code) {{
    const long long key = (long long)~first, position = key / {k};
    long long at[1 + {k}] = {{}}, rest = position;
    for (int d = 0; d < (int)nest.rank; ++d) {{
      const long long q = rest / nest.strides[0][d];
      rest -= q * nest.strides[0][d];
#pragma unroll
      for (int k = 0; k <= {k}; ++k) at[k] += q * nest.strides[k][d];
    }}
    const long long values[] = {{{values}}};
    record->code = first_code + key % {k};
    record->position = position;
    record->value = values[key % {k}];
    *record->told = 1;
  }}
  record->first = 0;
  record->blocks = 0;
}}"""

_READ = """
struct alignas({bytes}) Item {{ {item} }};
extern "C" __global__ void {name}_read(Item* __restrict__ out, const Item* __restrict__ x, {ins},
    const Nest<1 + {k}> nest, const Axes<{k}> axes) {{
  bool empty = false;
#pragma unroll
  for (int k = 0; k < {k}; ++k) empty = empty || axes.size[k] == 0;
  if (empty) return;
  const long long first = blockIdx.x * (long long)({threads} * {reads}) + threadIdx.x;
  Item items[{reads}];
#pragma unroll
  for (int u = 0; u < {reads}; ++u) {{
    const long long i = first + u * {threads};
    if (i >= nest.size) break;
    long long at[1 + {k}] = {{}};
    pb_locate(nest, i, at);
    items[u] = x[at[0]{terms}];
  }}
#pragma unroll
  for (int u = 0; u < {reads}; ++u) {{
    const long long i = first + u * {threads};
    if (i < nest.size) out[i] = items[u];
  }}
}}"""

_ROWS = """
extern "C" __global__ void {name}_rows(unsigned long long* __restrict__ out, {ins},
    const Nest<1 + {k}> nest, const Axes<{k}> axes) {{
  for (long long i = pb_first(); i < nest.size; i += pb_step()) {{
    long long at[1 + {k}] = {{}};
    pb_locate(nest, i, at);
    out[i] = (unsigned long long)(at[0]{terms});
  }}
}}"""

_ITEMS = {
    1: "unsigned char x;",
    2: "unsigned short x;",
    4: "unsigned int x;",
    8: "unsigned long long x;",
    16: "unsigned long long x, y;",
}


def head(source: Source) -> None:
    """Add what the kernels here are made of."""
    source.add("pb_nest", NEST)
    source.add("pb_indices", INDICES)


@cache
def _source(body: str, indices: tuple[DType, ...], nbytes: int = 0) -> tuple[str, str]:
    """The name of a kernel, without its end, and its source."""
    names = [d.name for d in indices]
    digest = hashlib.sha256("\n".join([body, *names, str(nbytes)]).encode()).hexdigest()[:12]
    name, count = f"index_{digest}", len(indices)
    every = range(count)
    text = body.format(
        name=name,
        k=count,
        bytes=nbytes,
        threads=THREADS,
        reads=READS,
        item=_ITEMS.get(nbytes, ""),
        ins=", ".join(f"const {storage(d)}* __restrict__ in{k}" for k, d in enumerate(indices)),
        bads=", ".join(
            f"pb_is_bad(in{k}[at[{k + 1}]], axes.least[{k}], axes.size[{k}])" for k in every
        ),
        values=", ".join(f"(long long)in{k}[at[{k + 1}]]" for k in every),
        terms="".join(
            f" + pb_wrapped(in{k}[at[{k + 1}]], axes.size[{k}]) * axes.stride[{k}]" for k in every
        ),
    )
    source = Source()
    head(source)
    source.add(name, text)
    return name, source.text()


def axes_of(indexed: Indexed, wraps: bool = True) -> bytes:
    """The struct Axes; `wraps`: negative indices count from the end."""
    sizes, strides = zip(*indexed, strict=True)
    least = [-n if wraps else 0 for n in sizes]
    return struct.pack(f"<{3 * len(sizes)}q", *sizes, *least, *strides)


def check_steps(
    dtypes: tuple[DType, ...], shape: Shape, indices: IndexArrays, wraps: bool = True
) -> list[Step]:
    """The launch that looks at indices; positions are those in `shape`."""
    # Along an axis on which no index depends, the first position has the number 0.
    taken = [d for d, n in enumerate(shape) if n > 1 and any(own[d] for own in indices.strides)]
    dense = dense_strides(shape)
    streams = [[own[d] for d in taken] for own in (dense, *indices.strides)]
    nest = coalesce([shape[d] for d in taken], streams)
    name, source = _source(_CHECK, dtypes)
    words = packed(nest), axes_of(indices.axes, wraps), indices.first_code
    arguments = (At(RECORD), *map(At, indices.slots), *words)
    grid = grid_of(nest.size), 1
    return [Step(source, f"{name}_check", grid, THREADS, arguments, checked=True)]


def row_step(
    dtypes: tuple[DType, ...], shape: Shape, places: Strides, indices: IndexArrays, out: At
) -> Step:
    """The launch that writes what indices stand for, as uint64."""
    nest = coalesce(shape, [places, *indices.strides, dense_strides(shape)])
    name, source = _source(_ROWS, dtypes)
    words = packed(nest, 1 + len(dtypes)), axes_of(indices.axes)
    arguments = (out, *map(At, indices.slots), *words)
    return Step(source, f"{name}_rows", (grid_of(nest.size), 1), THREADS, arguments)


def gather_stages(
    kernel: Gather,
    shape: Shape,
    x_slot: int,
    x_strides: Strides,
    indices: IndexArrays,
    out_slot: int,
    plan: Sequence[int] | None,
    /,
) -> list[Stage]:
    """See `Target.gather`."""
    if math.prod(shape) == 0:
        return []
    check = check_steps(kernel.indices, shape, indices)
    nest = coalesce(shape, [x_strides, *indices.strides, dense_strides(shape)])
    given = (At(out_slot), At(x_slot), *map(At, indices.slots))
    reads = []
    for most in (VECTOR_BYTES // kernel.dtype.itemsize, 1):
        together = _together(nest, indices.axes, most)
        name, source = _source(_READ, kernel.indices, kernel.dtype.itemsize * together)
        items = _items(nest, together)
        axes = axes_of([(n, step // together) for n, step in indices.axes])
        arguments = (*given, packed(items, 1 + len(indices.slots)), axes)
        grid = math.ceil(items.size / (THREADS * READS)), 1
        reads.append(Step(source, f"{name}_read", grid, THREADS, arguments))
    read = reads[0] if reads[0] == reads[1] else Either(*reads)
    return stage(*check, read)


def _items(nest: Nest, together: int) -> Nest:
    """A nest of elements, whose first stream has neighbours, as one of items of so many."""
    if together == 1:
        return nest
    first, *others = nest.strides
    steps = (*(step // together for step in first[:-1]), 1)
    return Nest((*nest.shape[:-1], nest.shape[-1] // together), (steps, *others))


def _together(nest: Nest, indexed: Indexed, most: int) -> int:
    """The elements, at most so many, that lie together wherever they are read."""
    if not nest.shape or nest.strides[0][-1] != 1 or any(own[-1] for own in nest.strides[1:-1]):
        return 1
    steps = [nest.shape[-1], *nest.strides[0][:-1], *(step for _, step in indexed)]
    return math.gcd(most, *steps)
