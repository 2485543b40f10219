"""Kernels of depthwise convolution, where every channel is a group: vectors run along channels.

Tiles, local memory and panels are those of convolution; a panel has one weight for each
kernel position and channel.
"""

from __future__ import annotations

import functools

from pullback.core.dtypes import DType
from pullback.runtime.cpu.convolution.convolution_code import FORWARD, WEIGHT
from pullback.runtime.cpu.convolution.tile_code import (
    CHANNEL_BLOCK,
    TileKernel,
    call_blocks,
    channel_units,
    copy_output,
    fill_input,
)
from pullback.runtime.cpu.llvm.elements import Elements, add_move, product
from pullback.runtime.cpu.llvm.writer import Function, IRModule

__all__ = ["forward_kernel", "weight_kernel"]

_HEIGHTS = (4, 2, 1)  # of blocks whose sums fill the registers, the highest first
_SUMS = (
    ("ptr", "%source"), ("ptr", "%pixels"), ("i64", "%count"), ("i64", "%channels"),
    ("ptr", "%offsets"), ("ptr", "%other"), ("i64", "%pitch"), ("ptr", "%out"),
)  # fmt: skip


def _add_pixel_block(module: IRModule, dtype: DType, rows: int, vectors: int) -> None:
    """The function that makes `rows` pixels of a panel of channels."""
    f = Function(module, f"@pixels{rows}", CHANNEL_BLOCK, qualifiers="internal ")
    v = Elements(f, dtype)
    heads = [v.at("%source", f.mul(f.int_at("%pixels", r), "%channels")) for r in range(rows)]
    state = [("ptr", "%other"), *[(v.type, "zeroinitializer")] * (rows * vectors)]
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
    module = IRModule()
    add_move(module, dtype)
    for rows in _HEIGHTS:
        _add_pixel_block(module, dtype, rows, vectors)
    k = TileKernel(module, FORWARD, dtype, vectors)
    f, p, v = k.f, k.p, k.v
    weight = p.pointer("weight")
    channel_units(
        k, _HEIGHTS, lambda panel, _: v.at(weight, product(f, panel, p["positions"], k.width))
    )
    return k.finish()


def _add_weight_block(module: IRModule, dtype: DType, rows: int, vectors: int) -> None:
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
    module = IRModule()
    add_move(module, dtype)
    for rows in _HEIGHTS:
        _add_weight_block(module, dtype, rows, vectors)
    k = TileKernel(module, WEIGHT, dtype, vectors)
    f, p, v, width = k.f, k.p, k.v, k.width
    pitch = p["block"]
    other = v.local(f.mul(k.most, pitch))
    x, y, sums = (p.pointer(n) for n in ("x", "y", "sums"))
    v.clear(other, f.mul(k.most, pitch))
    with f.loop("%lo", "%hi") as unit:
        chunk, block = f.divmod(unit.i, p["blocks"])
        c = f.mul(block, p["block"])
        channels = f.minimum(p["block"], f.sub(p["outs"], c))
        panels, _ = f.divmod(f.add(channels, str(vectors * v.lanes - 1)), width)
        own = v.at(sums, f.add(f.mul(chunk, p["size"]), f.mul(c, p["positions"])))
        panel_size = f.mul(p["positions"], width)
        v.clear(own, f.mul(panels, panel_size))
        with k.chunk(chunk) as (item, tile):
            fill_input(v, p, tile, k.place("x", x, item, "0", c), k.local, channels)
            map_ = k.place("y", y, item, "0", c)
            copy_output(v, p, tile, map_, other, pitch, channels, False)
            with f.loop("0", panels) as panel, f.loop("0", p["positions"]) as tap:
                line = v.at(own, f.add(f.mul(panel.i, panel_size), f.mul(tap.i, width)))
                column = f.mul(panel.i, width)
                passed = (
                    f"ptr {v.at(k.local, column)}, ptr {k.pixels}, i64 {tile.total}, "
                    f"i64 {channels}, ptr {f.element(k.offsets, 'i64', tap.i)}, "
                    f"ptr {v.at(other, column)}, i64 {pitch}, ptr {line}"
                )
                left = f.sub(p["positions"], tap.i)
                tap.step = call_blocks(f, "weights", _HEIGHTS, left, passed)
    return k.finish()
