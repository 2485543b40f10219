"""Kernels of convolution: tiles of pixels against packed panels of output channels.

Blocks of a few pixels and two vectors of output channels are summed in registers over kernel
positions and input channels; positions that follow each other along the last axis are one run of
elements. Weights lie in panels of those two vectors. Every sum has an order that depends on shapes
only.
"""

from __future__ import annotations

import functools

from pullback.core.dtypes import DType
from pullback.runtime.cpu import jit
from pullback.runtime.cpu.llvm import Function, Module
from pullback.runtime.cpu.tile_code import (
    AXES,
    STRIDES,
    TILES,
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

__all__ = [
    "FORWARD",
    "PACK",
    "UNPACK",
    "WEIGHT",
    "forward_kernel",
    "pack_kernel",
    "unpack_kernel",
    "weight_kernel",
]

FORWARD = ("x", "weight", "y", "y_start", "parts", "part", *TILES, *STRIDES)
WEIGHT = ("x", "y", "sums", "chunks", "chunk", "all_tiles", "blocks", "size", *TILES, *STRIDES)
PACK = ("source", "target", "panels", "ins", "outs", "positions", "block",
        "group", "out", "in")  # fmt: skip
UNPACK = ("source", "target", "panels", "ins", "outs", "positions", "block",
          "group", "out", "in", "chunks", "size")  # fmt: skip


def _heights(vectors: int) -> tuple[int, ...]:
    """Rows of the blocks that are kept in registers."""
    most = 8 if vectors == 1 or jit.host().vector_bits == 512 else 6
    return (most, 4, 2, 1)


# -- output from input and weight ------------------------------------------------------------------

_BLOCK = (
    ("ptr", "%source"), ("ptr", "%pixels"), ("ptr", "%offsets"), ("i64", "%count"),
    ("i64", "%channels"), ("i64", "%run"), ("ptr", "%panel"), ("ptr", "%out"), ("i64", "%pitch"),
)  # fmt: skip
_UNROLL = 4


def _add_pixel_block(module: Module, dtype: DType, rows: int, vectors: int) -> None:
    """The function that adds to `rows` pixels and a panel of channels."""
    f = Function(module, f"@pixels{rows}", _BLOCK, qualifiers="internal ")
    v = Elements(f, dtype)
    width = vectors * v.lanes
    heads = []
    for r in range(rows):
        place = f.mul(f.int_at("%pixels", r), "%channels")
        heads.append(v.at("%source", place))
    lines = [v.at("%out", f.mul("%pitch", str(r))) for r in range(rows)]
    places = [v.at(line, str(c * v.lanes)) for line in lines for c in range(vectors)]
    state = [("ptr", "%panel"), *[(v.type, v.load(place)) for place in places]]
    with f.loop("0", "%count", carried=state) as tap:
        offset = f.mul(f.int_at("%offsets", tap.i), "%channels")
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
    module, heights = Module(), _heights(vectors)
    add_move(module, dtype)
    for rows in heights:
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
        rest, number = f.divmod(rest, tiles)
        item, group = f.divmod(rest, p["groups"])
        tile = tile_of(f, p, number)
        list_pixels(f, p, tile, pixels)
        count = product(f, *tile.counts)
        first = f.mul(part, p["part"])
        panels = f.minimum(p["part"], f.sub(p["panels"], first))
        v.clear(made, f.mul(count, pitch))
        image = v.at(x, f.add(f.mul(item, p["x_batch"]), f.mul(group, p["x_group"])))
        own = f.add(f.mul(group, p["panels"]), first)
        with f.loop("0", p["ins"], p["block"]) as c:
            channels = f.minimum(p["block"], f.sub(p["ins"], c.i))
            fill_input(v, p, tile, v.at(image, f.mul(c.i, p["x_channel"])), local, channels)
            run = f.mul(p["run"], channels)
            with f.loop("0", panels) as panel:
                line = f.add(f.mul(f.add(own, panel.i), p["ins"]), c.i)
                packed = v.at(weight, product(f, line, p["positions"], width))
                target = v.at(made, f.mul(panel.i, width))
                with f.loop("0", count) as q:
                    passed = (
                        f"ptr {local}, ptr {f.element(pixels, 'i64', q.i)}, ptr {p.rest}, "
                        f"i64 {p['outer']}, i64 {channels}, i64 {run}, ptr {packed}, "
                        f"ptr {v.at(target, f.mul(q.i, pitch))}, i64 {pitch}"
                    )
                    q.step = call_blocks(f, "pixels", heights, f.sub(count, q.i), passed)
        outs = f.mul(first, width)
        at = f.add(f.mul(item, p["y_batch"]), f.mul(group, p["y_group"]))
        out = v.at(y, f.add(at, f.mul(outs, p["y_channel"])))
        wanted = f.minimum(f.mul(panels, width), f.sub(p["outs"], outs))
        copy_output(v, p, tile, out, made, pitch, wanted, True)
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


# -- weight from input and output ------------------------------------------------------------------

_SUMS = (
    ("ptr", "%source"), ("ptr", "%pixels"), ("i64", "%count"), ("i64", "%channels"),
    ("ptr", "%other"), ("i64", "%pitch"), ("ptr", "%out"),
)  # fmt: skip


def _add_weight_block(module: Module, dtype: DType, rows: int, vectors: int) -> None:
    """The function that adds to `rows` weights of a panel: a sum over pixels."""
    f = Function(module, f"@weights{rows}", _SUMS, qualifiers="internal ")
    v = Elements(f, dtype)
    places = [v.at("%out", str(k * v.lanes)) for k in range(rows * vectors)]
    state = [("ptr", "%other"), *[(v.type, v.load(place)) for place in places]]
    with f.loop("0", "%count", carried=state) as q:
        line, *sums = q.carried
        head = v.at("%source", f.mul(f.int_at("%pixels", q.i), "%channels"))
        others = [v.load(v.at(line, str(c * v.lanes))) for c in range(vectors)]
        factors = [v.repeat(v.at(head, str(r))) for r in range(rows)]
        sums = [
            v.fma(factor, other, sums[r * vectors + c])
            for r, factor in enumerate(factors)
            for c, other in enumerate(others)
        ]
        q.next = [v.at(line, "%pitch"), *sums]
    for place, value in zip(places, q.results[1:], strict=True):
        v.store(value, place)
    f.finish()


@functools.cache
def weight_kernel(dtype: DType, vectors: int) -> int:
    """Sums over the tiles of a chunk, in the order of panels: units are (chunk, group, block)."""
    module, heights = Module(), _heights(vectors)
    add_move(module, dtype)
    for rows in heights:
        _add_weight_block(module, dtype, rows, vectors)
    f = Function(module, "@kernel")
    p, v = Names(f, WEIGHT), Elements(f, dtype)
    width = str(vectors * v.lanes)
    tiles = product(f, *[p[f"tiles{d}"] for d in AXES])
    most = product(f, *[p[f"tile{d}"] for d in AXES])
    local = local_input(v, p)
    pitch = f.mul(p["panels"], width)
    other = v.local(f.mul(most, pitch))
    pixels = f(f"alloca i64, i64 {most}, align 64")
    x, y, sums = (p.pointer(n) for n in ("x", "y", "sums"))
    with f.loop("%lo", "%hi") as unit:
        rest, block = f.divmod(unit.i, p["blocks"])
        chunk, group = f.divmod(rest, p["groups"])
        c = f.mul(block, p["block"])
        channels = f.minimum(p["block"], f.sub(p["ins"], c))
        run = f.mul(p["run"], channels)
        own = v.at(sums, f.mul(chunk, p["size"]))
        panel_size = product(f, p["ins"], p["positions"], width)
        own = v.at(own, product(f, group, p["panels"], panel_size))
        own = v.at(own, product(f, c, p["positions"], width))
        with f.loop("0", p["panels"]) as panel:
            v.clear(
                v.at(own, f.mul(panel.i, panel_size)), product(f, channels, p["positions"], width)
            )
        first = f.mul(chunk, p["chunk"])
        last = f.minimum(p["all_tiles"], f.add(first, p["chunk"]))
        with f.loop(first, last) as at:
            item, number = f.divmod(at.i, tiles)
            tile = tile_of(f, p, number)
            list_pixels(f, p, tile, pixels)
            count = product(f, *tile.counts)
            image = v.at(x, f.add(f.mul(item, p["x_batch"]), f.mul(group, p["x_group"])))
            fill_input(v, p, tile, v.at(image, f.mul(c, p["x_channel"])), local, channels)
            map_ = v.at(y, f.add(f.mul(item, p["y_batch"]), f.mul(group, p["y_group"])))
            copy_output(v, p, tile, map_, other, pitch, p["outs"], False)
            with f.loop("0", p["panels"]) as panel, f.loop("0", p["outer"]) as tap:
                offset = f.mul(f.int_at(p.rest, tap.i), channels)
                source = v.at(local, offset)
                line = v.at(own, f.mul(panel.i, panel_size))
                line = v.at(line, product(f, tap.i, run, width))
                columns = v.at(other, f.mul(panel.i, width))
                with f.loop("0", run) as k:
                    passed = (
                        f"ptr {v.at(source, k.i)}, ptr {pixels}, i64 {count}, i64 {channels}, "
                        f"ptr {columns}, i64 {pitch}, ptr {v.at(line, f.mul(k.i, width))}"
                    )
                    k.step = call_blocks(f, "weights", heights, f.sub(run, k.i), passed)
    f.finish()
    return jit.compile_ir(module.text(), ["kernel"])["kernel"]


# -- weights in panels -----------------------------------------------------------------------------


def _place_in_panel(f: Function, p: Names, panel: str, c: str, t: str, width: str) -> str:
    """Where a panel has channel `c` at kernel position `t`: blocks of channels, positions, c."""
    block, inside = f.divmod(c, p["block"])
    before = f.mul(block, p["block"])
    channels = f.minimum(p["block"], f.sub(p["ins"], before))
    line = f.mul(f.add(f.mul(panel, p["ins"]), before), p["positions"])
    return f.mul(f.add(line, f.add(f.mul(t, channels), inside)), width)


@functools.cache
def pack_kernel(dtype: DType, vectors: int) -> int:
    """Weights into panels, zeros after the last channel: units are (group, panel, input channel).

    Offsets of kernel positions in the array come after the params.
    """
    f = Function(Module(), "@kernel")
    p, v = Names(f, PACK), Elements(f, dtype)
    width = vectors * v.lanes
    source, target = p.pointer("source"), p.pointer("target")
    with f.loop("%lo", "%hi") as unit:
        panel, c = f.divmod(unit.i, p["ins"])
        group, number = f.divmod(panel, p["panels"])
        first = f.mul(number, str(width))
        at = f.add(f.mul(group, p["group"]), f.mul(c, p["in"]))
        with f.loop("0", p["positions"]) as t:
            place = v.at(target, _place_in_panel(f, p, panel, c, t.i, str(width)))
            v.clear(place, str(width))
            line = f.add(at, f.int_at(p.rest, t.i))
            count = f.minimum(str(width), f.sub(p["outs"], first))
            with f.loop("0", count) as m:
                out = f.mul(f.add(first, m.i), p["out"])
                v.store_one(v.one(v.at(source, f.add(line, out))), v.at(place, m.i))
    f.finish()
    return jit.compile_ir(f.module.text(), ["kernel"], optimise=True)["kernel"]


@functools.cache
def unpack_kernel(dtype: DType, vectors: int) -> int:
    """The sums of chunks, from panels into an array: units are (group, output channel)."""
    f = Function(Module(), "@kernel")
    p, v = Names(f, UNPACK), Elements(f, dtype)
    width = str(vectors * v.lanes)
    source, target = p.pointer("source"), p.pointer("target")
    with f.loop("%lo", "%hi") as unit:
        group, m = f.divmod(unit.i, p["outs"])
        number, lane = f.divmod(m, width)
        panel = f.add(f.mul(group, p["panels"]), number)
        at = f.add(f.mul(group, p["group"]), f.mul(m, p["out"]))
        with f.loop("0", p["ins"]) as c, f.loop("0", p["positions"]) as t:
            place = f.add(_place_in_panel(f, p, panel, c.i, t.i, width), lane)
            start = v.one(v.at(source, place))
            following = f.add(place, p["size"])
            with f.loop("1", p["chunks"], carried=[(v.scalar, start), ("i64", following)]) as k:
                total, part = k.carried
                more = v.one(v.at(source, part))
                k.next = [f(f"fadd {v.scalar} {total}, {more}"), f.add(part, p["size"])]
            line = f.add(f.add(at, f.mul(c.i, p["in"])), f.int_at(p.rest, t.i))
            v.store_one(k.results[0], v.at(target, line))
    f.finish()
    return jit.compile_ir(f.module.text(), ["kernel"], optimise=True)["kernel"]
