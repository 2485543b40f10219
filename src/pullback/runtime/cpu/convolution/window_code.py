"""Kernels of pooling: the largest element under a window, where it is, and elements at places.

Tiles and local memory are those of convolution; vectors run along channels.
"""

from __future__ import annotations

import functools
import math

from pullback.core.dtypes import DType
from pullback.runtime.cpu.convolution.tile_code import (
    AXES,
    CHANNEL_BLOCK,
    PIXELS,
    PixelTile,
    TileKernel,
    channel_units,
)
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.elements import Elements, add_move, otherwise
from pullback.runtime.cpu.llvm.records import NamedParams, Record
from pullback.runtime.cpu.llvm.writer import Function, IRModule, literal, register

__all__ = ["EXTREMUM", "PLANES", "extremum_kernel", "planes_kernel"]

EXTREMUM = Record("x y", f"y_start parts part dilation1 dilation2 dilation3 {PIXELS}")
_ARRAYS = "values index out"
PLANES = Record(
    _ARRAYS,
    "code size count channels block blocks inner "
    + " ".join(f"{a}_{s}" for a in _ARRAYS.split() for s in ("batch", "channel", "step")),
)


def _lowest(dtype: DType) -> str:
    return literal(-math.inf, dtype)


def _add_block(module: IRModule, dtype: DType, rows: int, vectors: int, indices: bool) -> None:
    """The function that makes `rows` pixels of a panel of channels.

    NaN is the largest of all, the last one if there are several; else it is the first largest.
    `other` has two numbers for each pixel: the index of its window's corner, which may lie outside
    the array, and of the first element inside.
    """
    f = Function(module, f"@pixels{rows}", CHANNEL_BLOCK, qualifiers="internal ")
    v = Elements(f, dtype)
    whole = f"i{8 * dtype.itemsize}"
    numbers = f"<{v.lanes} x {whole}>"
    sums = rows * vectors
    heads = [v.at("%source", f.mul(f.int_at("%pixels", r), "%channels")) for r in range(rows)]
    lowest = f.splat(_lowest(dtype), v.scalar, v.lanes)
    state = [(v.type, lowest)] * sums
    corners = []
    if indices:
        corners = [f.int_at("%other", 2 * r) for r in range(rows)]
        for r in range(rows):
            first = _narrowed(f, f.int_at("%other", 2 * r + 1), whole)
            state += [(numbers, f.splat(first, whole, v.lanes))] * vectors
    with f.loop("0", "%count", carried=state) as tap:
        offset = f.mul(f.int_at("%offsets", tap.i), "%channels")
        best, places = tap.carried[:sums], tap.carried[sums:]
        step = f.int_at("%offsets", f.add("%count", tap.i)) if indices else ""
        for r, head in enumerate(heads):
            first = v.at(head, offset)
            at = ""
            if indices:
                at = f.splat(_narrowed(f, f.add(corners[r], step), whole), whole, v.lanes)
            for c in range(vectors):
                k = r * vectors + c
                x = v.load(v.at(first, str(c * v.lanes)))
                larger = f(f"fcmp ogt {v.type} {x}, {best[k]}")
                nan = f(f"fcmp uno {v.type} {x}, {x}")
                take = f(f"or <{v.lanes} x i1> {larger}, {nan}")
                chosen = f"select <{v.lanes} x i1> {take}, "
                best[k] = f(f"{chosen}{v.type} {x}, {v.type} {best[k]}")
                if indices:
                    places[k] = f(f"{chosen}{numbers} {at}, {numbers} {places[k]}")
        tap.next = [*best, *places]
    found = tap.results[sums:] if indices else tap.results
    kind = numbers if indices else v.type
    for r in range(rows):
        line = v.at("%out", f.mul("%pitch", str(r)))
        for c in range(vectors):
            place = v.at(line, str(c * v.lanes))
            f.do(f"store {kind} {found[r * vectors + c]}, ptr {place}, align {v.size}")
    f.finish()


def _narrowed(f: Function, number: str, kind: str) -> str:
    return number if kind == "i64" else f(f"trunc i64 {number} to {kind}")


def _list_bases(f: Function, p: NamedParams, tile: PixelTile, bases: str) -> None:
    """Writes the two indices of each pixel that `_add_block` asks for."""
    one, two, three = tile.counts
    with f.loop("0", one) as i, f.loop("0", two) as j, f.loop("0", three) as k:
        corner = inside = "0"
        for d, first, loop in zip(AXES, tile.first, (i, j, k), strict=True):
            at = f.add(f.mul(f.add(first, loop.i), p[f"step{d}"]), p[f"start{d}"])
            every = p[f"dilation{d}"]
            before = f.sub("0", at)
            steps = f(f"sdiv i64 {f.add(before, f.sub(every, '1'))}, {every}")
            outside = f(f"icmp slt i64 {at}, 0")
            moved = f(f"select i1 {outside}, i64 {f.add(at, f.mul(steps, every))}, i64 {at}")
            corner = f.add(f.mul(corner, p[f"size{d}"]), at)
            inside = f.add(f.mul(inside, p[f"size{d}"]), moved)
        line = f.add(f.mul(f.add(f.mul(i.i, two), j.i), three), k.i)
        place = f.element(bases, "i64", f.mul(line, "2"))
        f.do(f"store i64 {corner}, ptr {place}")
        f.do(f"store i64 {inside}, ptr {f.element(place, 'i64', '1')}")


@functools.cache
def extremum_kernel(dtype: DType, vectors: int, indices: bool) -> int:
    """The largest element of each window, or its index: units are (batch, tile, block of c).

    Offsets of window positions in local memory come after the params, and then those in indices.
    """
    module, heights = IRModule(), (2, 1) if indices else (4, 2, 1)
    add_move(module, dtype)
    for rows in heights:
        _add_block(module, dtype, rows, vectors, indices)
    k = TileKernel(module, EXTREMUM, dtype, vectors)
    f = k.f
    bases = f(f"alloca i64, i64 {f.mul(k.most, '2')}, align 64")
    channel_units(
        k,
        heights,
        lambda _, pixel: f.element(bases, "i64", f.mul(pixel, "2")),
        _lowest(dtype),
        lambda tile: _list_bases(f, k.p, tile, bases) if indices else None,
    )
    return k.finish()


@functools.cache
def planes_kernel(dtype: DType, index: DType, adds: bool) -> int:
    """Elements at the places of a plane that an index array gives: read, or added to zeros.

    Units are (batch, block of channels). "inner" says that channels run in the inner loop; a block
    then has all of them, and its part of the output is dense.
    """
    f = Function(IRModule(), "@kernel")
    p, v = NamedParams(f, PLANES), Elements(f, dtype)
    values, index_, out = (p.pointer(n) for n in ("values", "index", "out"))
    by_pixel = f(f"icmp ne i64 {p['inner']}, 0")
    with f.loop("%lo", "%hi") as unit:
        item, block = f.divmod(unit.i, p["blocks"])
        c = f.mul(block, p["block"])
        channels = f.minimum(p["block"], f.sub(p["channels"], c))
        starts = {
            n: f.add(f.mul(item, p[f"{n}_batch"]), f.mul(c, p[f"{n}_channel"]))
            for n in ("values", "index", "out")
        }
        outer = f(f"select i1 {by_pixel}, i64 {p['count']}, i64 {channels}")
        inner = f(f"select i1 {by_pixel}, i64 {channels}, i64 {p['count']}")
        if adds:
            v.clear(v.at(out, starts["out"]), f.mul(p["size"], channels))
        with f.loop("0", outer) as a, f.loop("0", inner) as b:
            channel = f(f"select i1 {by_pixel}, i64 {b.i}, i64 {a.i}")
            pixel = f(f"select i1 {by_pixel}, i64 {a.i}, i64 {b.i}")
            places = {
                n: f.add(start, f.mul(channel, p[f"{n}_channel"])) for n, start in starts.items()
            }
            at = f.add(places["index"], f.mul(pixel, p["index_step"]))
            kind = register(index)
            raw = f(f"load {kind}, ptr {f.element(index_, kind, at)}, align {index.itemsize}")
            number = raw if kind == "i64" else f(f"sext {kind} {raw} to i64")
            _check_index(f, p, number, at)
            near, far = ("values", "out") if adds else ("out", "values")
            here = f.add(places[near], f.mul(pixel, p[f"{near}_step"]))
            there = f.add(places[far], f.mul(number, p[f"{far}_step"]))
            if adds:
                target = v.at(out, there)
                total = f(f"fadd {v.scalar} {v.one(target)}, {v.one(v.at(values, here))}")
                v.store_one(total, target)
            else:
                v.store_one(v.one(v.at(values, there)), v.at(out, here))
    f.finish()
    return jit.compile_ir(f.module.text(), ["kernel"], optimise=True)["kernel"]


def _check_index(f: Function, p: NamedParams, number: str, position: str) -> None:
    """Ends the kernel with an error where an index is not in the plane."""
    with otherwise(f, f(f"icmp ult i64 {number}, {p['size']}")):
        for word, value in ((1, position), (2, number), (0, p["code"])):
            f.do(f"store i64 {value}, ptr {f.element('%error', 'i64', str(word))}")
        f.do("ret void")
        f.block(f.label())
