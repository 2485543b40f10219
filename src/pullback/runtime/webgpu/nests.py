"""Walks over strided arrays: the words of a nest, and the WGSL that finds an element's places."""

from __future__ import annotations

from collections.abc import Sequence

from pullback.compile.program.nest import Nest

__all__ = ["EACH", "LEAST_MANY", "MAIN", "THREADS", "locate", "main_of", "nest_words"]

THREADS = 256  # of a workgroup: what every adapter allows
EACH = 4  # elements of a thread: 16 bytes under way, as many as a GPU's memory keeps up with
LEAST_MANY = 1 << 16  # elements from which on there are enough threads all the same


def main_of(each: int) -> str:
    """The head of a kernel with one thread for `each` of arg(0) elements; `i` is the first one, the
    others follow it at distances of THREADS.
    """
    return f"""@compute @workgroup_size({THREADS})
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>,
        @builtin(local_invocation_id) l: vec3<u32>) {{
  let i = (w.x + w.y * n.x) * {THREADS * each}u + l.x;
  if (i >= arg(0u)) {{ return; }}"""


MAIN = main_of(1)


def nest_words(nest: Nest, streams: int | None = None) -> tuple[int, ...]:
    """The words that `locate` reads: sizes, then the strides of each stream, or the first ones."""
    return (*nest.shape, *(s for own in nest.strides[:streams] for s in own))


def locate(rank: int, names: Sequence[str], first: int, index: str, indent: str = "  ") -> str:
    """Statements that let variables be the offsets of element `index`; its words are from `first`
    on. Wrapping words may stand for negative strides.
    """
    lines = [f"var {name} = 0u;" for name in names]
    if rank:
        lines.append(f"var {names[0]}_rest = {index};" if rank > 1 else "")
    for d in range(rank - 1, -1, -1):
        at = index if rank == 1 else f"{names[0]}_rest"
        if d:
            lines += [
                f"let {names[0]}_q{d} = {at} / arg({first + d}u);",
                f"let {names[0]}_r{d} = {at} - {names[0]}_q{d} * arg({first + d}u);",
                f"{at} = {names[0]}_q{d};",
            ]
            at = f"{names[0]}_r{d}"
        for k, name in enumerate(names):
            lines.append(f"{name} += {at} * arg({first + rank * (1 + k) + d}u);")
    return "\n".join(indent + line for line in lines if line)
