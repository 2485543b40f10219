"""Map kernels as CUDA C: a body for one element, and ways to walk over elements.

    NAME_dense_W   (out_0 .., in_0 .., long long n)    element i of every array belongs together
    NAME_packs_W   (out_0 .., in_0 .., Nest<K> nest)   K = arrays; the nest is one of packs
    NAME_tiles_W   (out_0 .., in_0 .., Nest<1 + K> outer, Tile<1 + K> tile)
    NAME_strided   (out_0 .., in_0 .., Nest<K> nest)   any arrays, each with its strides

The walks are in `map_walks`; W says for each array how a thread finds neighbours, then how many of
them are a pack: they lie together and are read or written at once ("u") or one by one ("s"), or
are the same element ("z"); in `tiles` they lie together along the inner axis, or anyhow ("n"), or
along the other axis of a tile ("t"). The first stream of what `tiles` is given is the row-major
index of an element.

Outputs overlap nothing. What is read or written at once starts at multiples of 16 bytes. A Nest is
passed by value: the number of elements, the rank, 8 sizes, then 8 strides in elements for each
array, all int64. `launch` makes these arguments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from pullback.compile.kernel.forms import Map, MultiMap
from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr, cast
from pullback.ir.scalar_walks import inline_nodes
from pullback.runtime.cuda.fold_kernels import Fold
from pullback.runtime.cuda.printer import Source, emit, storage

__all__ = [
    "HEAVY",
    "MAX_RANK",
    "NEST",
    "arguments",
    "leaf_of",
    "map_code",
    "name_of",
    "outputs_of",
    "parts",
    "pointers",
    "stored",
    "vector_width",
    "weight",
]

MAX_RANK = 8  # axes of a struct Nest, which kernels get by value
VECTOR_BYTES = 16  # of the widest load that a thread has
HEAVY = 100  # instructions from which on a thread does one element at a time

NEST = f"""
#define PB_MAX_RANK {MAX_RANK}
template <int K> struct Nest {{
  long long size, rank, shape[PB_MAX_RANK], strides[K][PB_MAX_RANK];
}};
template <typename I, int K>
PB_DEVICE void pb_locate_as(const Nest<K>& nest, I i, long long (&at)[K]) {{
  for (int d = (int)nest.rank - 1; d > 0; --d) {{
    const I n = (I)nest.shape[d], q = i / n;
    const long long r = (long long)(i - q * n);
    i = q;
#pragma unroll
    for (int k = 0; k < K; ++k) at[k] += r * nest.strides[k][d];
  }}
  if (nest.rank > 0) {{
#pragma unroll
    for (int k = 0; k < K; ++k) at[k] += (long long)i * nest.strides[k][0];
  }}
}}
// Adds the offsets of element i of a nest to `at`; 32 bits divide several times faster.
template <int K> PB_DEVICE void pb_locate(const Nest<K>& nest, long long i, long long (&at)[K]) {{
  if (nest.size <= 0xffffffffLL) pb_locate_as<unsigned int, K>(nest, (unsigned int)i, at);
  else pb_locate_as<unsigned long long, K>(nest, (unsigned long long)i, at);
}}
template <typename T, int V> struct alignas(sizeof(T) * V) Pack {{ T v[V]; }};
template <typename T, int V> PB_DEVICE Pack<T, V> pb_pack(const T* at) {{
  return *reinterpret_cast<const Pack<T, V>*>(at);
}}
template <typename T, int V> PB_DEVICE Pack<T, V> pb_singles(const T* at) {{
  Pack<T, V> p;
#pragma unroll
  for (int v = 0; v < V; ++v) p.v[v] = at[v];
  return p;
}}
// macros: where a kernel has become a function, its thread blocks have numbers of their own
#define pb_first() (blockIdx.x * (long long)blockDim.x + threadIdx.x)
#define pb_step() (gridDim.x * (long long)blockDim.x)
"""


def name_of(kernel: Map | MultiMap | Fold) -> str:
    """The name of a kernel's functions, equal for equal kernels."""
    text = kernel.text
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{text.partition('(')[0]}_{digest}"


def outputs_of(kernel: Map | MultiMap) -> list[tuple[DType, tuple[Expr, ...]]]:
    """The dtype and the expressions of each output."""
    if isinstance(kernel, Map):
        return [(kernel.output, kernel.body)]
    return list(zip(kernel.outputs, kernel.bodies, strict=True))


def parts(exprs: Sequence[Expr], dtype: DType) -> list[Expr]:
    """The expressions in the dtype in which they are stored."""
    return [cast(e, dtype.real) for e in exprs]


def weight(roots: Iterable[Expr]) -> int:
    """The number of instructions under `roots` that are always run."""
    return sum(e.op not in ("const", "load", "index", "acc") for e in inline_nodes(roots))


def leaf_of(inputs: Sequence[DType], index: str) -> Callable[[Expr], str]:
    """Reads operand k from the variable `a{k}`, which has the type it is stored in."""

    def leaf(e: Expr) -> str:
        if e.op == "index":
            return index
        position, part = e.value  # type: ignore[misc]
        dtype = inputs[position]
        if dtype is dt.bool_:
            return f"(a{position} != 0)"
        return f"a{position}.{'xy'[part]}" if dtype.is_complex else f"a{position}"

    return leaf


def stored(target: str, dtype: DType, names: Sequence[str]) -> str:
    """The statement that sets `target`, of a stored type, to the parts of an element."""
    if dtype.is_complex:
        return f"  {target}.x = {names[0]}; {target}.y = {names[1]};"
    return f"  {target} = {names[0]};"


def arguments(inputs: Sequence[DType]) -> str:
    """The parameters of a function of one element of each input."""
    return "".join(f"const {storage(d)} a{k}, " for k, d in enumerate(inputs))


def pointers(kernel: Map | MultiMap) -> str:
    """The array parameters of a kernel."""
    outs = [f"{storage(d)}* __restrict__ out{k}" for k, (d, _) in enumerate(outputs_of(kernel))]
    ins = [f"const {storage(d)}* __restrict__ in{k}" for k, d in enumerate(kernel.inputs)]
    return ", ".join(outs + ins)


def map_code(source: Source, kernel: Map | MultiMap) -> str:
    """Add what a kernel makes of an element to `source` and return its name."""
    name = name_of(kernel)
    if name not in source:
        source.add("pb_nest", NEST)
        source.add(name, _body(source, kernel, name))
    return name


def _body(source: Source, kernel: Map | MultiMap, name: str) -> str:
    """One element, as a function of the elements it is made from and its index."""
    outs = outputs_of(kernel)
    roots = [parts(body, dtype) for dtype, body in outs]
    lines, names = emit(source, [e for r in roots for e in r], leaf_of(kernel.inputs, "i"))
    rest = iter(names)
    results = [
        stored(f"o{k}", dtype, [next(rest) for _ in own])
        for k, ((dtype, _), own) in enumerate(zip(outs, roots, strict=True))
    ]
    targets = ", ".join(f"{storage(d)}& o{k}" for k, (d, _) in enumerate(outs))
    head = f"PB_DEVICE void {name}({arguments(kernel.inputs)}const long long i, {targets}) {{"
    return "\n".join([head, *lines, *results, "}"])


def vector_width(kernel: Map | MultiMap) -> int:
    """Elements, a power of two, that a thread takes at once where arrays allow it."""
    outs = outputs_of(kernel)
    if weight(e for _, body in outs for e in body) >= HEAVY:
        return 1
    widest = max(d.itemsize for d in (*kernel.inputs, *(d for d, _ in outs)))
    return max(1, min(8, VECTOR_BYTES // widest))
