"""Local copies of tiles of pixels: what the kernels of convolution and pooling have in common.

A unit copies the part of an array that its tile of output pixels reads to local memory, pixel by
pixel with channels side by side and a filler around the array. There a kernel position is one
offset for all pixels. Local memory is on the thread's stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from pullback.core.dtypes import DType
from pullback.runtime.cpu.llvm import jit
from pullback.runtime.cpu.llvm.elements import Elements, call_move, otherwise, product
from pullback.runtime.cpu.llvm.records import NamedParams, Record
from pullback.runtime.cpu.llvm.writer import Function, IRModule

__all__ = [
    "AXES",
    "CHANNEL_BLOCK",
    "PIXELS",
    "PixelTile",
    "TileKernel",
    "by_axis",
    "call_blocks",
    "channel_units",
    "copy_output",
    "fill_input",
]

AXES = ("1", "2", "3")
# Numbers of all kernels over tiles, those of each axis first: how many tiles there are, output
# pixels of one and of all, input pixels, input pixels from one output pixel to the next, the input
# pixel that the first output pixel reads first, input pixels of a tile. `gap` are elements between
# the channels of two pixels of local memory, `spare` is the slot of local memory for the input,
# where it is too large for a stack, or -1. After the record come the offsets of kernel positions,
# in pixels of local memory.
PIXELS = " ".join(
    (
        *(
            f"{n}{d}"
            for n in ["tiles", "tile", "places", "size", "step", "start", "reach"]
            for d in AXES
        ),
        "groups ins outs block panels positions outer run gap spare",
        *(f"{a}_{s}" for a in "xy" for s in ("batch", "group", "channel", *AXES)),
    )
)


def by_axis(name: str, values: Sequence[int]) -> dict[str, int]:
    """A number of each axis by its name among the params."""
    return {f"{name}{d}": value for d, value in zip(AXES, values, strict=True)}


# -- tiles -----------------------------------------------------------------------------------------


class PixelTile(NamedTuple):
    """A tile of output pixels: where it begins, how many there are on each axis, and of all."""

    first: list[str]
    counts: list[str]
    total: str


def _tile_of(f: Function, p: NamedParams, number: str) -> PixelTile:
    """The tile of this number among those of one image."""
    rest, third = f.divmod(number, p["tiles3"])
    one, two = f.divmod(rest, p["tiles2"])
    numbers = zip((one, two, third), AXES, strict=True)
    first = [f.mul(n, p[f"tile{d}"]) for n, d in numbers]
    left = [f.sub(p[f"places{d}"], b) for b, d in zip(first, AXES, strict=True)]
    counts = [f.minimum(p[f"tile{d}"], n) for n, d in zip(left, AXES, strict=True)]
    return PixelTile(first, counts, product(f, *counts))


def _local_input(v: Elements, p: NamedParams) -> str:
    """Local memory for a tile's input, with room after it: the last vector may reach over."""
    f = v.f
    inside = f(f"icmp slt i64 {p['spare']}, 0")
    distance = f.add(p["block"], p["gap"])
    size = f.add(product(f, *[p[f"reach{d}"] for d in AXES], distance), str(4 * v.lanes))
    stack = v.local(f(f"select i1 {inside}, i64 {size}, i64 0"))
    slot = f(f"select i1 {inside}, i64 0, i64 {p['spare']}")
    other = f.pointer_in(slot)
    return f(f"select i1 {inside}, ptr {stack}, ptr {other}")


def _list_pixels(f: Function, p: NamedParams, tile: PixelTile, pixels: str) -> None:
    """Writes the places of the tile's pixels in local memory, one after the other."""
    one, two, three = tile.counts
    with f.loop("0", one) as i, f.loop("0", two) as j:
        line = f.add(f.mul(i.i, two), j.i)
        plane = f.mul(f.mul(i.i, p["step1"]), p["reach2"])
        row = f.mul(f.add(plane, f.mul(j.i, p["step2"])), p["reach3"])
        with f.loop("0", three) as k:
            place = f.element(pixels, "i64", f.add(f.mul(line, three), k.i))
            f.do(f"store i64 {f.add(row, f.mul(k.i, p['step3']))}, ptr {place}")


def fill_input(
    v: Elements,
    p: NamedParams,
    tile: PixelTile,
    source: str,
    local: str,
    channels: str,
    filler: str = "zeroinitializer",
) -> None:
    """Copies what a tile reads to local memory, with a filler outside of the array at `source`."""
    f = v.f
    starts = [
        f.add(f.mul(b, p[f"step{d}"]), p[f"start{d}"])
        for b, d in zip(tile.first, AXES, strict=True)
    ]
    most = [f.mul(f.sub(n, "1"), p[f"step{d}"]) for n, d in zip(tile.counts, AXES, strict=True)]
    spans = [f.mul(f.sub(p[f"tile{d}"], "1"), p[f"step{d}"]) for d in AXES]
    reaches = [
        f.sub(p[f"reach{d}"], f.sub(s, m)) for d, s, m in zip(AXES, spans, most, strict=True)
    ]
    low = _clamped(f, f.sub("0", starts[2]), reaches[2])
    high = _clamped(f, f.sub(p["size3"], starts[2]), reaches[2])
    high = f(f"call i64 {_largest(f)}(i64 {low}, i64 {high})")
    distance = f.add(channels, p["gap"])
    with f.loop("0", reaches[0]) as i, f.loop("0", reaches[1]) as j:
        line = f.add(f.mul(i.i, p["reach2"]), j.i)
        target = v.at(local, product(f, line, p["reach3"], distance))
        one, two = f.add(starts[0], i.i), f.add(starts[1], j.i)
        valid = f(f"icmp ult i64 {one}, {p['size1']}")
        second = f(f"icmp ult i64 {two}, {p['size2']}")
        valid = f(f"and i1 {valid}, {second}")
        begin = f(f"select i1 {valid}, i64 {low}, i64 {reaches[2]}")
        end = f(f"select i1 {valid}, i64 {high}, i64 {reaches[2]}")
        v.fill(target, f.mul(begin, distance), filler)
        with f.when(valid):
            at = f.add(f.mul(one, p["x_1"]), f.mul(two, p["x_2"]))
            at = f.add(at, f.mul(f.add(starts[2], begin), p["x_3"]))
            inside = v.at(target, f.mul(begin, distance))
            by_channel = f(f"icmp eq i64 {p['x_channel']}, 1")
            pixels = f.sub(end, begin)
            with f.when(by_channel):
                place = (v.at(source, at), p["x_3"], "1")
                call_move(f, place, (inside, distance, "1"), pixels, channels)
            with otherwise(f, by_channel):
                place = (v.at(source, at), p["x_channel"], p["x_3"])
                call_move(f, place, (inside, "1", distance), channels, pixels)
        after = v.at(target, f.mul(end, distance))
        v.fill(after, f.mul(f.sub(reaches[2], end), distance), filler)


def _largest(f: Function) -> str:
    return f.module.intrinsic("llvm.smax.i64", "i64", "i64", "i64")


def _clamped(f: Function, value: str, top: str) -> str:
    """`value` between 0 and `top`."""
    return f.minimum(f(f"call i64 {_largest(f)}(i64 {value}, i64 0)"), top)


def _one_line(f: Function, p: NamedParams, tile: PixelTile) -> str:
    """Whether the lines of a tile follow each other in the output."""
    three = tile.counts[2]
    whole = f(f"icmp eq i64 {three}, {p['places3']}")
    dense = f(f"icmp eq i64 {p['y_2']}, {f.mul(p['y_3'], three)}")
    return f(f"and i1 {whole}, {dense}")


def copy_output(
    v: Elements,
    p: NamedParams,
    tile: PixelTile,
    outer: str,
    local: str,
    pitch: str,
    count: str,
    out: bool,
) -> None:
    """Copies `count` channels of a tile between local memory and the array at `outer`."""
    f = v.f
    one, two, three = tile.counts
    joined = _one_line(f, p, tile)  # so that short ones make whole vectors
    three = f(f"select i1 {joined}, i64 {f.mul(two, three)}, i64 {three}")
    two = f(f"select i1 {joined}, i64 1, i64 {two}")
    with f.loop("0", one) as i, f.loop("0", two) as j:
        line = f.mul(f.add(f.mul(i.i, two), j.i), three)
        inner = (v.at(local, f.mul(line, pitch)), pitch, "1")
        at = f.add(
            f.mul(f.add(tile.first[0], i.i), p["y_1"]), f.mul(f.add(tile.first[1], j.i), p["y_2"])
        )
        at = f.add(at, f.mul(tile.first[2], p["y_3"]))
        array = (v.at(outer, at), p["y_3"], p["y_channel"])
        if out:
            call_move(f, inner, array, three, count)
        else:
            by_channel = f(f"icmp eq i64 {p['y_channel']}, 1")
            with f.when(by_channel):
                call_move(f, array, inner, three, count)
            with otherwise(f, by_channel):
                call_move(f, (array[0], array[2], array[1]), (inner[0], "1", pitch), count, three)


def call_blocks(f: Function, name: str, heights: Sequence[int], left: str, values: str) -> str:
    """Calls the function of the height that suits what is left, and returns that height."""
    height = "1"
    for rows in sorted(heights)[1:]:
        height = f(f"select i1 {f(f'icmp sge i64 {left}, {rows}')}, i64 {rows}, i64 {height}")
    for rows in heights:
        with f.when(f(f"icmp eq i64 {height}, {rows}")):
            f.do(f"call void @{name}{rows}({values})")
    return height


# -- kernels ---------------------------------------------------------------------------------------


class TileKernel:
    """A kernel over tiles: its params, local memory for a tile's input, and the tile's pixels."""

    def __init__(self, module: IRModule, params: Record, dtype: DType, vectors: int):
        f = self.f = Function(module, "@kernel")
        self.p = NamedParams(f, params)
        self.offsets, self.v = self.p.rest(), Elements(f, dtype)
        self.width = str(vectors * self.v.lanes)
        self.tiles, self.most = (
            product(f, *[self.p[f"{name}{d}"] for d in AXES]) for name in ("tiles", "tile")
        )
        self.local = _local_input(self.v, self.p)
        self.pixels = f(f"alloca i64, i64 {self.most}, align 64")

    def tile(self, number: str) -> PixelTile:
        """The tile of this number, whose pixels are the listed ones from now on."""
        tile = _tile_of(self.f, self.p, number)
        _list_pixels(self.f, self.p, tile, self.pixels)
        return tile

    def place(self, array: str, pointer: str, item: str, group: str, channel: str) -> str:
        """The address of an image of the array "x" or "y" at a channel of a group."""
        f, p = self.f, self.p
        at = f.add(f.mul(item, p[f"{array}_batch"]), f.mul(group, p[f"{array}_group"]))
        return self.v.at(pointer, f.add(at, f.mul(channel, p[f"{array}_channel"])))

    @contextmanager
    def chunk(self, number: str) -> Iterator[tuple[str, PixelTile]]:
        """A loop over the tiles of a chunk: (batch item, tile)."""
        f, p = self.f, self.p
        first = f.mul(number, p["chunk"])
        last = f.minimum(p["all_tiles"], f.add(first, p["chunk"]))
        with f.loop(first, last) as at:
            item, tile = f.divmod(at.i, self.tiles)
            yield item, self.tile(tile)

    def finish(self) -> int:
        self.f.finish()
        return jit.compile_ir(self.f.module.text(), ["kernel"])["kernel"]


# What `channel_units` passes to the functions of blocks; the last one is the caller's own.
CHANNEL_BLOCK = (
    ("ptr", "%source"), ("ptr", "%pixels"), ("ptr", "%offsets"), ("i64", "%count"),
    ("i64", "%channels"), ("ptr", "%out"), ("i64", "%pitch"), ("ptr", "%other"),
)  # fmt: skip


def _is_row(f: Function, p: NamedParams, tile: PixelTile) -> str:
    """Whether the output has the pixels of a tile at equal distances and channels side by side."""
    dense = f(f"icmp eq i64 {p['y_channel']}, 1")
    plane = f(f"icmp eq i64 {tile.counts[0]}, 1")
    line = f(f"icmp eq i64 {tile.counts[1]}, 1")
    line = f(f"or i1 {line}, {_one_line(f, p, tile)}")
    return f(f"and i1 {dense}, {f(f'and i1 {plane}, {line}')}")


def channel_units(
    k: TileKernel,
    heights: Sequence[int],
    other: Callable[[str, str], str],
    filler: str = "zeroinitializer",
    begin: Callable[[PixelTile], None] = lambda tile: None,
) -> None:
    """The loop of a kernel that makes each channel from itself: units are (batch, tile, part of c).

    Functions @pixels<height> make pixels of a panel; `other(panel, pixel)` is their own argument,
    and `begin` is called when a tile is entered.
    """
    f, p, v, width = k.f, k.p, k.v, k.width
    x, y = p.pointer("x"), v.at(p.pointer("y"), p["y_start"])
    room = f.mul(p["part"], width)
    made = v.local(f.mul(k.most, room))  # where the output can't be written at once
    with f.loop("%lo", "%hi") as unit:
        rest, part = f.divmod(unit.i, p["parts"])
        item, number = f.divmod(rest, k.tiles)
        tile = k.tile(number)
        begin(tile)
        first = f.mul(part, p["part"])
        panels = f.minimum(p["part"], f.sub(p["panels"], first))
        c = f.mul(first, width)
        channels = f.minimum(f.mul(panels, width), f.sub(p["outs"], c))
        fill_input(v, p, tile, k.place("x", x, item, "0", c), k.local, channels, filler)
        out = k.place("y", y, item, "0", c)
        all_lanes = f(f"icmp eq i64 {channels}, {f.mul(panels, width)}")
        direct = f(f"and i1 {all_lanes}, {_is_row(f, p, tile)}")
        start = "0"
        for d, first_place in zip(AXES, tile.first, strict=True):
            start = f.add(start, f.mul(first_place, p[f"y_{d}"]))
        result = f(f"select i1 {direct}, ptr {v.at(out, start)}, ptr {made}")
        pitch = f(f"select i1 {direct}, i64 {p['y_3']}, i64 {room}")
        with f.loop("0", panels) as panel:
            column = f.mul(panel.i, width)
            source, target = v.at(k.local, column), v.at(result, column)
            with f.loop("0", tile.total) as q:
                passed = (
                    f"ptr {source}, ptr {f.element(k.pixels, 'i64', q.i)}, ptr {k.offsets}, "
                    f"i64 {p['positions']}, i64 {channels}, "
                    f"ptr {v.at(target, f.mul(q.i, pitch))}, i64 {pitch}, "
                    f"ptr {other(f.add(first, panel.i), q.i)}"
                )
                q.step = call_blocks(f, "pixels", heights, f.sub(tile.total, q.i), passed)
        with otherwise(f, direct):
            copy_output(v, p, tile, out, made, room, channels, True)
