"""Kernels of depthwise convolution, where every channel is a group: vectors run along channels.

Tiles, local memory and panels are those of convolution; a panel has one weight for each
kernel position and channel.
"""

from __future__ import annotations

import functools

from pullback.core.dtypes import DType
from pullback.runtime.cpu import jit
from pullback.runtime.cpu.convolution_code import FORWARD, WEIGHT
from pullback.runtime.cpu.llvm import Function, Module
from pullback.runtime.cpu.tile_code import (
    AXES,
    Elements,
    Names,
    add_move,
    call_blocks,
    copy_output,
    fill_input,
    list_pixels,
    local_input,
    product,
    tile_of,
)

__all__ = ["forward_kernel", "weight_kernel"]

_HEIGHTS = (4, 2, 1)
_BLOCK = (
    ("ptr", "%source"), ("ptr", "%pixels"), ("ptr", "%offsets"), ("i64", "%count"),
    ("i64", "%channels"), ("ptr", "%panel"), ("ptr", "%out"), ("i64", "%pitch"),
)  # fmt: skip
_SUMS = (
    ("ptr", "%source"), ("ptr", "%pixels"), ("i64", "%count"), ("i64", "%channels"),
    ("ptr", "%offsets"), ("ptr", "%other"), ("i64", "%pitch"), ("ptr", "%out"),
)  # fmt: skip


def _add_pixel_block(module: Module, dtype: DType, rows: int, vectors: int) -> None:
    """The function that makes `rows` pixels of a panel of channels."""
    f = Function(module, f"@pixels{rows}", _BLOCK, qualifiers="internal ")
    v = Elements(f, dtype)
    heads = [v.at("%source", f.mul(f.int_at("%pixels", r), "%channels")) for r in range(rows)]
    state = [("ptr", "%panel"), *[(v.type, "zeroinitializer")] * (rows * vectors)]
    with f.loop("0", "%count", carried=state) as tap:
        panel, *sums = tap.carried
        offset = f.mul(f.int_at("%offsets", tap.i), "%channels")
        weights = [v.load(v.at(panel, str(c * v.lanes))) for c in range(vectors)]
        firsts = [v.at(head, offset) for head in heads]
        tap.next = [
            v.at(panel, str(vectors * v.lanes)),
            *[
                v.fma(v.load(v.at(first, str(c * v.lanes))), weight, sums[r * vectors + c])
                for r, first in enumerate(firsts)
                for c, weight in enumerate(weights)
            ],
        ]
    for r in range(rows):
        line = v.at("%out", f.mul("%pitch", str(r)))
        for c in range(vectors):
            v.store(tap.results[1 + r * vectors + c], v.at(line, str(c * v.lanes)))
    f.finish()


@functools.cache
def forward_kernel(dtype: DType, vectors: int) -> int:
    """`y[q, c] = sum over k of w[k, c] x[q * step + k, c]`: units are (batch, tile, block of c)."""
    module = Module()
    add_move(module, dtype)
    for rows in _HEIGHTS:
        _add_pixel_block(module, dtype, rows, vectors)
    f = Function(module, "@kernel")
    p, v = Names(f, FORWARD), Elements(f, dtype)
    width = str(vectors * v.lanes)
    tiles = product(f, *[p[f"tiles{d}"] for d in AXES])
    most = product(f, *[p[f"tile{d}"] for d in AXES])
    local = local_input(v, p)
    pitch = f.mul(p["part"], width)
    made = v.local(f.mul(most, pitch))
    pixels = f(f"alloca i64, i64 {most}, align 64")
    x, y, weight = p.pointer("x"), v.at(p.pointer("y"), p["y_start"]), p.pointer("weight")
    with f.loop("%lo", "%hi") as unit:
        rest, part = f.divmod(unit.i, p["parts"])
        item, number = f.divmod(rest, tiles)
        tile = tile_of(f, p, number)
        list_pixels(f, p, tile, pixels)
        count = product(f, *tile.counts)
        first = f.mul(part, p["part"])
        panels = f.minimum(p["part"], f.sub(p["panels"], first))
        c = f.mul(first, width)
        channels = f.minimum(f.mul(panels, width), f.sub(p["outs"], c))
        image = v.at(x, f.add(f.mul(item, p["x_batch"]), f.mul(c, p["x_channel"])))
        fill_input(v, p, tile, image, local, channels)
        with f.loop("0", panels) as panel:
            packed = v.at(weight, product(f, f.add(first, panel.i), p["positions"], width))
            column = f.mul(panel.i, width)
            source, target = v.at(local, column), v.at(made, column)
            with f.loop("0", count) as q:
                passed = (
                    f"ptr {source}, ptr {f.element(pixels, 'i64', q.i)}, ptr {p.rest}, "
                    f"i64 {p['positions']}, i64 {channels}, ptr {packed}, "
                    f"ptr {v.at(target, f.mul(q.i, pitch))}, i64 {pitch}"
                )
                q.step = call_blocks(f, "pixels", _HEIGHTS, f.sub(count, q.i), passed)
        out = v.at(y, f.add(f.mul(item, p["y_batch"]), f.mul(c, p["y_channel"])))
        copy_output(v, p, tile, out, made, pitch, channels, True)
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


def _add_weight_block(module: Module, dtype: DType, rows: int, vectors: int) -> None:
    """The function that adds to the weights of `rows` kernel positions: a sum over pixels."""
    f = Function(module, f"@weights{rows}", _SUMS, qualifiers="internal ")
    v = Elements(f, dtype)
    heads = [v.at("%source", f.mul(f.int_at("%offsets", r), "%channels")) for r in range(rows)]
    places = [v.at("%out", str(k * v.lanes)) for k in range(rows * vectors)]
    state = [("ptr", "%other"), *[(v.type, v.load(place)) for place in places]]
    with f.loop("0", "%count", carried=state) as q:
        line, *sums = q.carried
        at = f.mul(f.int_at("%pixels", q.i), "%channels")
        others = [v.load(v.at(line, str(c * v.lanes))) for c in range(vectors)]
        firsts = [v.at(head, at) for head in heads]
        q.next = [
            v.at(line, "%pitch"),
            *[
                v.fma(v.load(v.at(first, str(c * v.lanes))), other, sums[r * vectors + c])
                for r, first in enumerate(firsts)
                for c, other in enumerate(others)
            ],
        ]
    for place, value in zip(places, q.results[1:], strict=True):
        v.store(value, place)
    f.finish()


@functools.cache
def weight_kernel(dtype: DType, vectors: int) -> int:
    """Sums over the tiles of a chunk, in the order of panels: units are (chunk, block of c).

    "block" is the number of channels of a block, and "part" of panels.
    """
    module = Module()
    add_move(module, dtype)
    for rows in _HEIGHTS:
        _add_weight_block(module, dtype, rows, vectors)
    f = Function(module, "@kernel")
    p, v = Names(f, WEIGHT), Elements(f, dtype)
    width = str(vectors * v.lanes)
    tiles = product(f, *[p[f"tiles{d}"] for d in AXES])
    most = product(f, *[p[f"tile{d}"] for d in AXES])
    local = local_input(v, p)
    pitch = p["block"]
    other = v.local(f.mul(most, pitch))
    pixels = f(f"alloca i64, i64 {most}, align 64")
    x, y, sums = (p.pointer(n) for n in ("x", "y", "sums"))
    v.clear(other, f.mul(most, pitch))
    with f.loop("%lo", "%hi") as unit:
        chunk, block = f.divmod(unit.i, p["blocks"])
        c = f.mul(block, p["block"])
        channels = f.minimum(p["block"], f.sub(p["outs"], c))
        panels, _ = f.divmod(f.add(channels, str(vectors * v.lanes - 1)), width)
        own = v.at(sums, f.add(f.mul(chunk, p["size"]), f.mul(c, p["positions"])))
        panel_size = f.mul(p["positions"], width)
        v.clear(own, f.mul(panels, panel_size))
        first = f.mul(chunk, p["chunk"])
        last = f.minimum(p["all_tiles"], f.add(first, p["chunk"]))
        with f.loop(first, last) as at:
            item, number = f.divmod(at.i, tiles)
            tile = tile_of(f, p, number)
            list_pixels(f, p, tile, pixels)
            count = product(f, *tile.counts)
            image = v.at(x, f.add(f.mul(item, p["x_batch"]), f.mul(c, p["x_channel"])))
            fill_input(v, p, tile, image, local, channels)
            map_ = v.at(y, f.add(f.mul(item, p["y_batch"]), f.mul(c, p["y_channel"])))
            copy_output(v, p, tile, map_, other, pitch, channels, False)
            with f.loop("0", panels) as panel, f.loop("0", p["positions"]) as tap:
                line = v.at(own, f.add(f.mul(panel.i, panel_size), f.mul(tap.i, width)))
                column = f.mul(panel.i, width)
                passed = (
                    f"ptr {v.at(local, column)}, ptr {pixels}, i64 {count}, i64 {channels}, "
                    f"ptr {f.element(p.rest, 'i64', tap.i)}, ptr {v.at(other, column)}, "
                    f"i64 {pitch}, ptr {line}"
                )
                left = f.sub(p["positions"], tap.i)
                tap.step = call_blocks(f, "weights", _HEIGHTS, left, passed)
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]
