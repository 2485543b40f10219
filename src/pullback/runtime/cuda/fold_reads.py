"""How the walks of reductions read arrays and store others beside, as CUDA C: see `fold_walks`."""

from __future__ import annotations

from collections.abc import Sequence

from pullback.compile.kernel.order import LANES
from pullback.runtime.cuda.fold_kernels import Fold, stores_of
from pullback.runtime.cuda.printer import storage

__all__ = ["column_bounds", "column_most", "column_reads", "small_reads", "wide_reads"]

# Threads that a processor holds at least where sums of columns read many arrays: 128 registers for
# each, if at most half of them are for elements that it waits for.
RESIDENT = 512
MOST_IN_FLIGHT = 64
# In so few, light elements wait for nothing but memory: all of it is asked for at once, as the
# loads of a lane follow each other.
FEW_BLOCKS = 64  # thread blocks of a launch at most: half of an H200's processors


def column_most(width: str) -> int:
    """The most threads of a thread block of `columns` whose threads have so many outputs."""
    return LANES * (16 if width == "1" else 8)


def wide_reads(kernel: Fold, kinds: str, flight: int) -> dict[str, str]:
    """How `wide` reads, neighbours in memory or one element for the whole row, and stores."""
    pointers, loads, packed, single, prefetches = [], [], [], [], []
    count = len(kernel.inputs)
    for k, (d, _) in enumerate(stores_of(kernel)):
        pointers.append(f"  {storage(d)}* const y{k} = store{k} + start[{count + k}] + j;")
    for k, (d, kind) in enumerate(zip(kernel.inputs, kinds, strict=False)):
        c = storage(d)
        if kind == "z":
            pointers.append(f"  {c} x{k} = {{}};\n  if (valid) x{k} = in{k}[start[{k}]];")
            packed.append(f"x{k}")
            single.append(f"x{k}")
            continue
        pointers.append(f"  const {c}* const x{k} = in{k} + start[{k}] + j;")
        line = 128 // d.itemsize
        prefetches.append(
            f"    for (int m = part * {line}; m < n; m += TEAM * {line})"
            f" pb_prefetch(x{k} + m - part * V);"
        )
        loads.append(_load(c, k, f"x{k} + i + {LANES} * u", kind))
        packed.append(f"p{k}[u].v[v]")
        single.append(f"x{k}[i + v]")
    targets = [f", y{k}[i + v]" for k in range(len(stores_of(kernel)))]
    return {
        "pointers": "\n".join(pointers), **_in_flight(loads, flight),
        "prefetched": "\n".join([f"  if (gridDim.x <= {FEW_BLOCKS}) {{", *prefetches, "  }"]),
        "packed": ", ".join(packed), "single": ", ".join(single), "targets": "".join(targets),
        **_stored(kernel, kinds, [f"y{k} + i + {LANES} * u" for k in range(len(targets))]),
    }  # fmt: skip


def small_reads(kernel: Fold, kinds: str, flight: int) -> dict[str, str]:
    """How `small` reads: neighbours in memory one by one, or one element for the whole row."""
    pointers, loads, packed = [], [], []
    place = "i + step * u < n ? i + step * u : n - 1"
    for k, (d, kind) in enumerate(zip(kernel.inputs, kinds, strict=True)):
        c, own = storage(d), f"in{k} + start[{k}]"
        if kind == "z":
            pointers.append(f"    const {c} x{k} = *({own});")
            packed.append(f"x{k}")
        else:
            pointers.append(f"    const {c}* const x{k} = {own} + j;")
            loads.append((f"{c} p{k}", f"x{k}[{place}]"))
            packed.append(f"p{k}[u]")
    return {
        "pointers": "\n".join(pointers), **_in_flight(loads, flight), "packed": ", ".join(packed),
    }  # fmt: skip


def _stored(kernel: Fold, kinds: str, places: Sequence[str]) -> dict[str, str]:
    """How arrays are stored beside, V neighbours of each at its place."""
    made, kept, stores = [], [], stores_of(kernel)
    own = kinds[len(kernel.inputs) :].lower()
    for k, ((d, _), kind, at) in enumerate(zip(stores, own, places, strict=True)):
        c = storage(d)
        made.append(f"      Pack<{c}, V> r{k};")
        if kind == "u":
            kept.append(f"      *reinterpret_cast<Pack<{c}, V>*>({at}) = r{k};")
        else:
            kept.append("#pragma unroll")
            kept.append(f"      for (int v = 0; v < V; ++v) ({at})[v] = r{k}.v[v];")
    results = "".join(f", r{k}.v[v]" for k in range(len(stores)))
    return {"made": "\n".join(made), "kept": "\n".join(kept), "results": results}


def column_reads(kernel: Fold, kinds: str, flight: int) -> dict[str, str]:
    """How `columns` reads: outputs that are neighbours in memory, or that read the same.

    Arrays whose elements are at the same places share what counts these, or 24 of them would leave
    registers for one thread block of a processor.
    """
    lines, loads, packed, places, count = [], [], [], [], len(kernel.inputs)
    arrays = [(f"in{k}", f"const {storage(d)}") for k, d in enumerate(kernel.inputs)]
    arrays += [(f"store{k}", storage(d)) for k, (d, _) in enumerate(stores_of(kernel))]
    moved: list[tuple[str, int]] = []  # what is moved along, and the number of its step
    for k, ((name, c), kind) in enumerate(zip(arrays, kinds, strict=True)):
        lead = k if kind.islower() else kinds.index(kind.lower())
        places.append(f"{name} + at{lead} + s{lead} * u")
        if kind.isupper():
            continue
        lines.append(f"  const long long s{k} = steps.step[{k}] * {LANES};")
        first = f"start[{k}] + j * steps.step[{k}]"
        if kind.upper() in kinds:
            lines.append(f"  long long at{k} = {first};")
            moved.append((f"at{k}", k))
        else:
            lines.append(f"  {c}* x{k} = {name} + {first};")
            places[k] = f"x{k} + s{k} * u"
            moved.append((f"x{k}", k))
    for k, (d, kind) in enumerate(zip(kernel.inputs, kinds.lower(), strict=False)):
        c = storage(d)
        if kind == "z":
            loads.append((f"{c} p{k}", f"*({places[k]})"))
            packed.append(f"p{k}[u]")
        else:
            loads.append(_load(c, k, places[k], kind))
            packed.append(f"p{k}[u].v[v]")
    return {
        "pointers": "\n".join(lines), **_in_flight(loads, flight), "packed": ", ".join(packed),
        "advance_in_flight": "\n".join(f"    {x} += s{k} * {flight};" for x, k in moved),
        "advance_by_one": "\n".join(f"    {x} += s{k};" for x, k in moved),
        **_stored(kernel, kinds, places[count:]),
    }  # fmt: skip


def column_bounds(kernel: Fold, kinds: str, width: int, flight: int) -> str:
    """The most threads of a thread block of `columns`, and how many blocks a processor holds where
    many arrays share places.
    """
    most = column_most(str(width))
    words = sum(max(4, d.itemsize * width) for d in kernel.inputs) // 4 * flight
    many = not kinds.islower() and words <= MOST_IN_FLIGHT
    return f"{most}, {RESIDENT // most}" if many else str(most)


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
