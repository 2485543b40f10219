"""Products and transpositions of small and middling real matrices in LLVM IR.

    dots       k lies side by side in a and b: vectors run along k, and a tree joins their lanes
    transpose  a copy of b, so that its columns lie side by side: see `direct_gemm`

Both are made over rows of the output, so that any range of rows can be made on its own.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from pullback.core.dtypes import DType
from pullback.runtime.cpu import jit
from pullback.runtime.cpu.llvm import Function, Module
from pullback.runtime.cpu.vectors import Arguments, Vectors

__all__ = ["DOTS", "TRANSPOSE", "dots_kernel", "transpose_kernel"]

DOTS = ("a", "b", "out", "m", "n", "k", "a_row", "b_column")
TRANSPOSE = ("source", "target", "rows", "columns", "stride", "pitch")


@functools.cache
def dots_kernel(dtype: DType) -> int:
    """A kernel over the rows of all matrices of a batch; params are `DOTS`, then the batch."""
    module = Module()
    f = Function(module, "@kernel")
    p = Arguments(f, DOTS, 3)
    v = Vectors(f, dtype)
    a, b, out = p.pointers
    together = max(8, v.lanes)
    with p.parts() as part, f.loop("0", part.rows) as line:
        row = f.add(part.row, line.i)
        head = v.at(a, f.add(part.a, f.mul(row, p["a_row"])))
        target = v.at(out, f.mul(f.add(f.mul(part.item, p["m"]), row), p["n"]))
        with f.loop("0", p["n"], str(together)) as j:
            sums = _dots(f, v, p, head, v.at(b, part.b), j.i, together)
            for first in range(0, together, v.lanes):
                column = f.add(j.i, str(first))
                rest, place = f.sub(p["n"], column), v.at(target, column)
                total = _join(v, sums[first : first + v.lanes])
                full = f(f"icmp sge i64 {rest}, {v.lanes}")
                with f.when(full):
                    v.store(total, place)
                with f.when(f(f"xor i1 {full}, true")):
                    v.store_first(total, place, rest)
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


def _dots(
    f: Function, v: Vectors, p: Arguments, head: str, first: str, j: str, count: int
) -> list[str]:
    """The products of the row at `head` with columns j, j + 1, ..., lane by lane."""
    last = f.sub(p["n"], "1")
    columns = [f.minimum(f.add(j, str(c)), last) for c in range(count)]
    places = [v.at(first, f.mul(c, p["b_column"])) for c in columns]

    def step(at: str, sums: Sequence[str], mask: str | None) -> list[str]:
        factor = v.load(v.at(head, at), mask)
        pairs = zip(places, sums, strict=True)
        return [v.fma(factor, v.load(v.at(place, at), mask), total) for place, total in pairs]

    whole = f(f"and i64 {p['k']}, {-v.lanes}")
    zeros = [(v.type, "zeroinitializer")] * count
    with f.loop("0", whole, str(v.lanes), carried=zeros) as k:
        k.next = step(k.i, k.carried, None)
    state = [(v.type, value) for value in k.results]
    with f.loop(whole, p["k"], str(v.lanes), carried=state) as tail:
        tail.next = step(tail.i, tail.carried, v.mask(f.sub(p["k"], tail.i)))
    return tail.results


def _join(v: Vectors, vectors: list[str]) -> str:
    """The sums of the lanes of each vector, as one vector."""
    even, odd = (range(side, 2 * v.lanes, 2) for side in (0, 1))
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [v.add(v.pick(u, w, even), v.pick(u, w, odd)) for u, w in pairs]
    return vectors[0]


@functools.cache
def transpose_kernel(dtype: DType) -> int:
    """A kernel that copies dense columns to rows of whole vectors; params are `TRANSPOSE`.

    A unit is a block of as many rows as a vector has lanes, of a matrix of the batch, which comes
    after the params. The last block of a matrix is filled up with zeros.
    """
    module = Module()
    f = Function(module, "@kernel")
    p = Arguments(f, TRANSPOSE, 2)
    v = Vectors(f, dtype)
    source, target = p.pointers
    pitch, lanes = p["pitch"], str(v.lanes)
    blocks = f(f"udiv i64 {f.add(p['rows'], str(v.lanes - 1))}, {lanes}")
    with f.loop("%lo", "%hi") as unit:
        item, block = f.divmod(unit.i, blocks)
        i = f.mul(block, lanes)
        first = v.at(source, f.add(p.offsets(item, 1)[0], i))
        out = v.at(target, f.mul(f.mul(unit.i, lanes), pitch))
        mask = v.mask(f.sub(p["rows"], i))
        with f.loop("0", pitch, lanes) as j:
            for r, row in enumerate(_square(f, v, p, first, j.i, mask)):
                v.store(row, v.at(out, f.add(f.mul(pitch, str(r)), j.i)))
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


def _square(f: Function, v: Vectors, p: Arguments, first: str, j: str, mask: str) -> list[str]:
    """Columns from j on, as rows; the last column again where there are fewer than lanes."""
    last = f.sub(p["columns"], "1")
    columns = [f.minimum(f.add(j, str(c)), last) for c in range(v.lanes)]
    vectors = [v.load(v.at(first, f.mul(c, p["stride"])), mask) for c in columns]
    half = v.lanes // 2
    lower = [k for i in range(half) for k in (i, i + v.lanes)]
    upper = [k + half for k in lower]
    for _ in range(half.bit_length()):
        pairs = list(zip(vectors[:half], vectors[half:], strict=True))
        vectors = [v.pick(u, w, lanes) for u, w in pairs for lanes in (lower, upper)]
    return vectors
