"""The walks of maps over arrays, as CUDA C: see `kernels` for what they are given."""

from __future__ import annotations

from pullback.compile.kernel.forms import Map, MultiMap
from pullback.runtime.cuda.kernels import (
    map_code,
    outputs_of,
    pointers,
    vector_width,
    weight,
)
from pullback.runtime.cuda.printer import Source, storage

__all__ = ["FLIGHT", "SIDE", "THREADS", "flight", "map_walk", "usual_walks"]

THREADS = 256  # of a thread block: eight of them fill a multiprocessor with 2048 threads
FLIGHT = 2  # packs of an input that a thread waits for at a time
LIGHT = 60  # instructions of an element up to which it does
SIDE = 32  # elements of a side of a tile: those of a warp

_TILE = """
template <int K> struct Tile {
  long long rows, columns, row[K], column[K];
};"""

_DENSE = """
extern "C" __global__ void __launch_bounds__({threads}) {name}_{walk}({pointers},
    const long long n) {{
  constexpr int V = {v}, U = {flight};
{same}
  const long long packs = n / V;
  const long long first = blockIdx.x * (long long)({threads} * U) + threadIdx.x;
{loads}
#pragma unroll
  for (int u = 0; u < U; ++u) {{
    const long long p = first + u * {threads};
    if (p >= packs) break;
{made}
#pragma unroll
    for (int e = 0; e < V; ++e) {name}({packed}p * V + e, {results});
{kept}
  }}
  const long long i = packs * V + first;
  if (V > 1 && i < n) {name}({single}i, {targets});
}}"""

_PACKS = """
extern "C" __global__ void __launch_bounds__({threads}) {name}_{walk}({pointers},
    const Nest<{k}> nest) {{
  constexpr int V = {v}, U = {flight};
  const long long first = blockIdx.x * (long long)({threads} * U) + threadIdx.x;
  long long at[U][{k}] = {{}};
{loads}
#pragma unroll
  for (int u = 0; u < U; ++u) {{
    const long long p = first + u * {threads};
    if (p >= nest.size) break;
{made}
#pragma unroll
    for (int e = 0; e < V; ++e) {name}({packed}p * V + e, {results});
{kept}
  }}
}}"""

_TILES = """
extern "C" __global__ void __launch_bounds__({threads}) {name}_{walk}({pointers},
    const Nest<1 + {k}> outer, const Tile<1 + {k}> tile) {{
  constexpr int EACH = {side} * {side} / {threads}, STEP = {threads} / {side};
{turned}
  const int x = (int)threadIdx.x % {side}, y = (int)threadIdx.x / {side};
  const unsigned across = (unsigned)((tile.columns + {side} - 1) / {side});
  const unsigned down = (unsigned)((tile.rows + {side} - 1) / {side});
  const long long column0 = (long long)(blockIdx.x % across) * {side};
  const long long row0 = (long long)(blockIdx.x / across % down) * {side};
  long long start[1 + {k}] = {{}};
  pb_locate(outer, (long long)(blockIdx.x / across / down), start);
{declared}
#pragma unroll
  for (int u = 0; u < EACH; ++u) {{
    const long long row = row0 + x, column = column0 + y + u * STEP;
    if (row < tile.rows && column < tile.columns) {{
{along}
    }}
  }}
#pragma unroll
  for (int u = 0; u < EACH; ++u) {{
    const long long row = row0 + y + u * STEP, column = column0 + x;
    if (row < tile.rows && column < tile.columns) {{
{straight}
    }}
  }}
#pragma unroll
  for (int u = 0; u < EACH; ++u) {{
{laid}
  }}
  __syncthreads();
#pragma unroll
  for (int u = 0; u < EACH; ++u) {{
    const int y_u = y + u * STEP;
    const long long row = row0 + y_u, column = column0 + x;
    if (row < tile.rows && column < tile.columns) {{
      const long long i = start[0] + row * tile.row[0] + column * tile.column[0];
      {name}({packed}i, {targets});
    }}
  }}
}}"""

_STRIDED = """
extern "C" __global__ void {name}_strided({pointers}, const Nest<{k}> nest) {{
  for (long long i = pb_first(); i < nest.size; i += pb_step()) {{
    long long at[{k}] = {{}};
    pb_locate(nest, i, at);
    {name}({single}i, {targets});
  }}
}}"""


def flight(kernel: Map | MultiMap) -> int:
    """Packs that a thread does."""
    return FLIGHT if weight(e for _, body in outputs_of(kernel) for e in body) < LIGHT else 1


def usual_walks(kernel: Map | MultiMap) -> tuple[str, str]:
    """The walk over dense arrays, and that over any."""
    arrays = len(outputs_of(kernel)) + len(kernel.inputs)
    return f"dense_{'u' * arrays}{vector_width(kernel)}", "strided"


def map_walk(source: Source, kernel: Map | MultiMap, walk: str) -> None:
    """Add a walk of a kernel to `source`."""
    name, outs = map_code(source, kernel), outputs_of(kernel)
    form, _, arrays = walk.partition("_")
    kinds, v = arrays.rstrip("0123456789"), arrays.lstrip("uzsnt") or "1"
    words = {
        "name": name, "walk": walk, "pointers": pointers(kernel), "threads": THREADS, "v": v,
        "flight": flight(kernel), "k": len(outs) + len(kernel.inputs), "side": SIDE,
    }  # fmt: skip
    if form == "strided":
        words |= _strided(kernel)
    elif form == "tiles":
        source.add("pb_tile", _TILE)
        words |= _tiles(kernel, kinds)
    else:
        words |= _packs(kernel, kinds, form == "dense")
    text = {"strided": _STRIDED, "tiles": _TILES, "packs": _PACKS, "dense": _DENSE}[form]
    source.add(f"{name}_{walk}", text.format(**words))


def _strided(kernel: Map | MultiMap) -> dict[str, str]:
    outs = len(outputs_of(kernel))
    return {
        "single": "".join(f"in{k}[at[{outs + k}]], " for k in range(len(kernel.inputs))),
        "targets": ", ".join(f"out{k}[at[{k}]]" for k in range(outs)),
    }


def _packs(kernel: Map | MultiMap, kinds: str, dense: bool) -> dict[str, str]:
    """How packs are read, made and written."""
    outs = [d for d, _ in outputs_of(kernel)]
    same, declared, loads, packed, single = [], [], [], [], []
    for k, (d, kind) in enumerate(zip(kernel.inputs, kinds[len(outs) :], strict=True)):
        c = storage(d)
        if kind == "z" and dense:
            same.append(f"  const {c} x{k} = in{k}[0];")
            packed.append(f"x{k}, ")
            single.append(f"x{k}, ")
            continue
        place = f"in{k} + p * V" if dense else f"in{k} + at[u][{len(outs) + k}]"
        single.append(f"in{k}[i], ")
        if kind == "z":
            declared.append(f"  {c} p{k}[U];")
            loads.append(f"    p{k}[u] = *({place});")
            packed.append(f"p{k}[u], ")
        else:
            declared.append(f"  Pack<{c}, V> p{k}[U];")
            loads.append(
                f"    p{k}[u] = {'pb_pack' if kind == 'u' else 'pb_singles'}<{c}, V>({place});"
            )
            packed.append(f"p{k}[u].v[e], ")
    made, kept = [], []
    for k, (d, kind) in enumerate(zip(outs, kinds, strict=False)):
        c = storage(d)
        place = f"out{k} + p * V" if dense else f"out{k} + at[u][{k}]"
        made.append(f"    Pack<{c}, V> r{k};")
        if kind == "u":
            kept.append(f"    *reinterpret_cast<Pack<{c}, V>*>({place}) = r{k};")
        else:
            kept.append(
                f"#pragma unroll\n    for (int e = 0; e < V; ++e) ({place})[e] = r{k}.v[e];"
            )
    found = [] if dense else ["    pb_locate(nest, p, at[u]);"]
    size = "packs" if dense else "nest.size"
    loop = [
        *declared, "#pragma unroll", "  for (int u = 0; u < U; ++u) {",
        f"    const long long p = first + u * {THREADS};", f"    if (p >= {size}) break;",
        *found, *loads, "  }",
    ]  # fmt: skip
    return {
        "same": "\n".join(same), "loads": "\n".join(loop), "made": "\n".join(made),
        "kept": "\n".join(kept), "packed": "".join(packed), "single": "".join(single),
        "results": ", ".join(f"r{k}.v[e]" for k in range(len(outs))),
        "targets": ", ".join(f"out{k}[i]" for k in range(len(outs))),
    }  # fmt: skip


def _tiles(kernel: Map | MultiMap, kinds: str) -> dict[str, str]:
    """How a tile is read: what lies along its other axis goes through shared memory."""
    outs = len(outputs_of(kernel))
    turned, declared, along, straight, laid, packed = [], [], [], [], [], []
    for k, (d, kind) in enumerate(zip(kernel.inputs, kinds[outs:], strict=True)):
        c, n = storage(d), 1 + outs + k
        place = f"in{k}[start[{n}] + row * tile.row[{n}] + column * tile.column[{n}]]"
        declared.append(f"  {c} p{k}[EACH];")
        read = f"      p{k}[u] = {place};"
        if kind == "t":
            turned.append(f"  __shared__ {c} s{k}[{SIDE}][{SIDE} + 1];")
            along.append(read)
            laid.append(f"    s{k}[y + u * STEP][x] = p{k}[u];")
            packed.append(f"s{k}[x][y_u], ")
        else:
            straight.append(read)
            packed.append(f"p{k}[u], ")
    places = [
        f"out{k}[start[{1 + k}] + row * tile.row[{1 + k}] + column * tile.column[{1 + k}]]"
        for k in range(outs)
    ]
    return {
        "turned": "\n".join(turned), "declared": "\n".join(declared), "along": "\n".join(along),
        "straight": "\n".join(straight), "laid": "\n".join(laid), "packed": "".join(packed),
        "targets": ", ".join(places),
    }  # fmt: skip
