"""Kernels of convolution: tiles of pixels against packed panels of output channels.

Blocks of a few pixels and two vectors of output channels are summed in registers over kernel
positions and input channels; positions that follow each other along the last axis are one run of
elements. Weights lie in panels of those two vectors. Every sum has an order that depends on shapes
only.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from pullback.core.dtypes import DType
from pullback.runtime.cpu.convolution.panel_code import add_pack, add_unpack, call_pack, call_unpack
from pullback.runtime.cpu.convolution.tile_code import (
    PIXELS,
    TileKernel,
    call_blocks,
    copy_output,
    fill_input,
)
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.elements import Elements, add_move, product
from pullback.runtime.cpu.llvm.records import Record
from pullback.runtime.cpu.llvm.writer import Function, IRModule

__all__ = ["FORWARD", "WEIGHT", "forward_kernel", "weight_kernel"]

# `fresh` says whether the weight is the array: a unit then packs what it needs itself. After the
# offsets of kernel positions come, for a fresh weight, those in its array.
FORWARD = Record("x weight y", f"y_start parts part fresh w_group w_out w_in {PIXELS}")
# `sums` is the slot for panels of all chunks; -1: there is one chunk, and a unit writes the array
# of the weight itself, `span` kernel positions at a time.
WEIGHT = Record("sums weight x y", f"span chunks chunk all_tiles blocks size parts part {PIXELS}")


def _heights(vectors: int) -> tuple[int, ...]:
    """Rows of the blocks that are kept in registers."""
    most = 8 if vectors == 1 or jit.host().vector_bits == 512 else 6
    return (most, 4, 2, 1)


# -- output from input and weight ------------------------------------------------------------------

_BLOCK = (
    ("ptr", "%source"), ("ptr", "%pixels"), ("ptr", "%offsets"), ("i64", "%count"),
    ("i64", "%distance"), ("i64", "%run"), ("ptr", "%panel"), ("ptr", "%out"), ("i64", "%pitch"),
)  # fmt: skip
_UNROLL = 4  # channels of a turn, so that loads of the next hide behind sums


def _add_pixel_block(module: IRModule, dtype: DType, rows: int, vectors: int) -> None:
    """The function that adds to `rows` pixels and a panel of channels."""
    f = Function(module, f"@pixels{rows}", _BLOCK, qualifiers="internal ")
    v = Elements(f, dtype)
    width = vectors * v.lanes
    heads = []
    for r in range(rows):
        place = f.mul(f.int_at("%pixels", r), "%distance")
        heads.append(v.at("%source", place))
    lines = [v.at("%out", f.mul("%pitch", str(r))) for r in range(rows)]
    places = [v.at(line, str(c * v.lanes)) for line in lines for c in range(vectors)]
    state = [("ptr", "%panel"), *[(v.type, v.load(place)) for place in places]]
    with f.loop("0", "%count", carried=state) as tap:
        offset = f.mul(f.int_at("%offsets", tap.i), "%distance")
        firsts = [v.at(head, offset) for head in heads]
        inner = [(kind, value) for (kind, _), value in zip(state, tap.carried, strict=True)]
        whole = f(f"and i64 %run, {-_UNROLL}")
        for start, stop, steps in (("0", whole, _UNROLL), (whole, "%run", 1)):
            with f.loop(start, stop, str(steps), carried=inner) as k:
                panel, *sums = k.carried
                for s in range(steps):
                    at = f.add(k.i, str(s))
                    weights = [v.load(v.at(panel, str(c * v.lanes))) for c in range(vectors)]
                    factors = [v.repeat(v.at(first, at)) for first in firsts]
                    sums = [
                        v.fma(factor, weight, sums[r * vectors + c])
                        for r, factor in enumerate(factors)
                        for c, weight in enumerate(weights)
                    ]
                    panel = v.at(panel, str(width))
                k.next = [panel, *sums]
            inner = [(kind, value) for (kind, _), value in zip(state, k.results, strict=True)]
        tap.next = [value for _, value in inner]
    for place, value in zip(places, tap.results[1:], strict=True):
        v.store(value, place)
    f.finish()


@functools.cache
def forward_kernel(dtype: DType, vectors: int) -> int:
    """`y[q] = sum over k of w[k] x[q * step + k]`: units are (batch, group, tile, part of outs)."""
    module, heights = IRModule(), _heights(vectors)
    add_move(module, dtype)
    add_pack(module, dtype, vectors)
    for rows in heights:
        _add_pixel_block(module, dtype, rows, vectors)
    k = TileKernel(module, FORWARD, dtype, vectors)
    f, p, v, width = k.f, k.p, k.v, k.width
    pitch = f.mul(p["part"], width)
    made = v.local(f.mul(k.most, pitch))
    fresh = f(f"icmp ne i64 {p['fresh']}, 0")
    panel_size = product(f, p["positions"], p["block"], width)
    own_panel = v.local(f(f"select i1 {fresh}, i64 {panel_size}, i64 0"))
    places = f.element(k.offsets, "i64", p["outer"])
    x, y, weight = p.pointer("x"), v.at(p.pointer("y"), p["y_start"]), p.pointer("weight")
    with f.loop("%lo", "%hi") as unit:
        rest, part = f.divmod(unit.i, p["parts"])
        rest, number = f.divmod(rest, k.tiles)
        item, group = f.divmod(rest, p["groups"])
        tile = k.tile(number)
        first = f.mul(part, p["part"])
        panels = f.minimum(p["part"], f.sub(p["panels"], first))
        v.clear(made, f.mul(tile.total, pitch))
        own = f.add(f.mul(group, p["panels"]), first)
        with f.loop("0", p["ins"], p["block"]) as c:
            channels = f.minimum(p["block"], f.sub(p["ins"], c.i))
            fill_input(v, p, tile, k.place("x", x, item, group, c.i), k.local, channels)
            run, distance = f.mul(p["run"], channels), f.add(channels, p["gap"])
            with f.loop("0", panels) as panel:
                line = f.add(f.mul(f.add(own, panel.i), p["ins"]), c.i)
                packed = v.at(weight, product(f, line, p["positions"], width))
                packed = f(f"select i1 {fresh}, ptr {own_panel}, ptr {packed}")
                with f.when(fresh):
                    out = f.mul(f.add(first, panel.i), width)
                    at = f.add(f.mul(group, p["w_group"]), f.mul(out, p["w_out"]))
                    source = v.at(weight, f.add(at, f.mul(c.i, p["w_in"])))
                    left = f.minimum(width, f.sub(p["outs"], out))
                    call_pack(
                        f,
                        *(source, p["w_in"], p["w_out"], places, packed),
                        *(channels, p["positions"], left),
                    )
                target = v.at(made, f.mul(panel.i, width))
                with f.loop("0", tile.total) as q:
                    passed = (
                        f"ptr {k.local}, ptr {f.element(k.pixels, 'i64', q.i)}, ptr {k.offsets}, "
                        f"i64 {p['outer']}, i64 {distance}, i64 {run}, ptr {packed}, "
                        f"ptr {v.at(target, f.mul(q.i, pitch))}, i64 {pitch}"
                    )
                    q.step = call_blocks(f, "pixels", heights, f.sub(tile.total, q.i), passed)
        outs = f.mul(first, width)
        wanted = f.minimum(f.mul(panels, width), f.sub(p["outs"], outs))
        copy_output(v, p, tile, k.place("y", y, item, group, outs), made, pitch, wanted, True)
    return k.finish()


# -- weight from input and output ------------------------------------------------------------------

_SUMS = (
    ("ptr", "%source"), ("ptr", "%pixels"), ("i64", "%count"), ("i64", "%distance"),
    ("ptr", "%other"), ("ptr", "%out"),
)  # fmt: skip


def _add_weight_block(module: IRModule, dtype: DType, rows: int, vectors: int) -> None:
    """The function that adds to `rows` weights of a panel: a sum over pixels."""
    f = Function(module, f"@weights{rows}", _SUMS, qualifiers="internal ")
    v = Elements(f, dtype)
    places = [v.at("%out", str(k * v.lanes)) for k in range(rows * vectors)]
    state = [("ptr", "%other"), *[(v.type, v.load(place)) for place in places]]
    with f.loop("0", "%count", carried=state) as q:
        line, *sums = q.carried
        head = v.at("%source", f.mul(f.int_at("%pixels", q.i), "%distance"))
        others = [v.load(v.at(line, str(c * v.lanes))) for c in range(vectors)]
        factors = [v.repeat(v.at(head, str(r))) for r in range(rows)]
        sums = [
            v.fma(factor, other, sums[r * vectors + c])
            for r, factor in enumerate(factors)
            for c, other in enumerate(others)
        ]
        q.next = [v.at(line, str(vectors * v.lanes)), *sums]
    for place, value in zip(places, q.results[1:], strict=True):
        v.store(value, place)
    f.finish()


@functools.cache
def weight_kernel(dtype: DType, vectors: int) -> int:
    """Sums over the tiles of a chunk, in panels: units are (chunk, group, block of ins, part)."""
    module, heights = IRModule(), _heights(vectors)
    add_move(module, dtype)
    add_unpack(module, dtype, vectors)
    for rows in heights:
        _add_weight_block(module, dtype, rows, vectors)
    k = TileKernel(module, WEIGHT, dtype, vectors)
    f, p, v, width = k.f, k.p, k.v, k.width
    columns = v.local(f.mul(k.most, width))  # a panel of the output
    direct = f(f"icmp slt i64 {p['sums']}, 0")
    panel_size = f.mul(p["positions"], width)  # of one input channel
    most = product(f, p["part"], p["block"], panel_size)
    own_sums = v.local(f(f"select i1 {direct}, i64 {most}, i64 0"))
    slot = f(f"select i1 {direct}, i64 {p['weight']}, i64 {p['sums']}")
    sums = f.pointer_in(slot)
    x, y, weight = (p.pointer(n) for n in ("x", "y", "weight"))
    with f.loop("%lo", "%hi") as unit:
        rest, part = f.divmod(unit.i, p["parts"])
        rest, block = f.divmod(rest, p["blocks"])
        chunk, group = f.divmod(rest, p["groups"])
        begin = f.mul(part, p["part"])
        end = f.minimum(p["panels"], f.add(begin, p["part"]))
        c = f.mul(block, p["block"])
        channels = f.minimum(p["block"], f.sub(p["ins"], c))
        run, distance = f.mul(p["run"], channels), f.add(channels, p["gap"])
        ins = f(f"select i1 {direct}, i64 {channels}, i64 {p['ins']}")
        pitch = f.mul(ins, panel_size)
        at = f.mul(f.add(f.mul(group, p["panels"]), begin), pitch)
        at = f.add(at, f.add(f.mul(chunk, p["size"]), f.mul(c, panel_size)))
        own = f(f"select i1 {direct}, ptr {own_sums}, ptr {v.at(sums, at)}")
        panels = f.sub(end, begin)
        with f.loop("0", panels) as panel:
            v.clear(v.at(own, f.mul(panel.i, pitch)), f.mul(channels, panel_size))
        with k.chunk(chunk) as (item, tile):
            fill_input(v, p, tile, k.place("x", x, item, group, c), k.local, channels)
            with f.loop("0", panels) as panel:
                outs = f.mul(f.add(begin, panel.i), width)
                wanted = f.minimum(width, f.sub(p["outs"], outs))
                map_ = k.place("y", y, item, group, outs)
                copy_output(v, p, tile, map_, columns, width, wanted, False)
                lines = v.at(own, f.mul(panel.i, pitch))
                _add_pixels(k, heights, tile.total, (run, distance), columns, lines)
        with f.when(direct), f.loop("0", panels) as panel:
            outs = f.mul(f.add(begin, panel.i), width)
            row = f.mul(p["ins"], p["positions"])
            at = f.mul(f.add(f.mul(group, p["outs"]), outs), row)
            call_unpack(
                f,
                *(v.at(own, f.mul(panel.i, pitch)), "1", "0"),
                *(v.at(weight, f.add(at, f.mul(c, p["positions"]))), row, channels),
                *(p["positions"], f.minimum(width, f.sub(p["outs"], outs)), p["span"]),
            )
    return k.finish()


def _add_pixels(
    k: TileKernel,
    heights: Sequence[int],
    pixels: str,
    sizes: tuple[str, str],
    columns: str,
    lines: str,
) -> None:
    """Adds the products of a tile's pixels to the sums at `lines`, run by run of input elements."""
    f, v, (run, distance) = k.f, k.v, sizes
    with f.loop("0", k.p["outer"]) as tap:
        source = v.at(k.local, f.mul(f.int_at(k.offsets, tap.i), distance))
        line = v.at(lines, product(f, tap.i, run, k.width))
        with f.loop("0", run) as i:
            passed = (
                f"ptr {v.at(source, i.i)}, ptr {k.pixels}, i64 {pixels}, "
                f"i64 {distance}, ptr {columns}, "
                f"ptr {v.at(line, f.mul(i.i, k.width))}"
            )
            i.step = call_blocks(f, "weights", heights, f.sub(run, i.i), passed)
