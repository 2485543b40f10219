"""Local copies of tiles of pixels: what the kernels of convolution and pooling have in common.

A unit copies the part of an array that its tile of output pixels reads to local memory, pixel by
pixel with channels side by side and a filler around the array. There a kernel position is one
offset for all pixels. Local memory is on the thread's stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from pullback.core.dtypes import DType
from pullback.runtime.cpu import jit
from pullback.runtime.cpu.llvm import Function, Module, of_width, register

__all__ = [
    "AXES",
    "STRIDES",
    "TILES",
    "Elements",
    "Names",
    "Tile",
    "add_move",
    "call_blocks",
    "copy_output",
    "fill_input",
    "lanes_of",
    "list_pixels",
    "local_input",
    "otherwise",
    "product",
    "tile_of",
]

AXES = ("1", "2", "3")
# The geometry that both kernels share; then come strides, and after all of them the offsets of
# kernel positions, in pixels of local memory.
TILES = (
    *(f"tiles{d}" for d in AXES),  # how many
    *(f"tile{d}" for d in AXES),  # output pixels of one
    *(f"places{d}" for d in AXES),  # output pixels of all
    *(f"size{d}" for d in AXES),  # input pixels
    *(f"step{d}" for d in AXES),  # input pixels from one output pixel to the next
    *(f"start{d}" for d in AXES),  # of the input pixel that the first output pixel reads first
    *(f"reach{d}" for d in AXES),  # input pixels of a tile
    *("groups", "ins", "outs", "block", "panels", "positions", "outer", "run"),
    "spare",  # the slot of local memory for the input, where it is too large for a stack, or -1
)
STRIDES = tuple(f"{a}_{s}" for a in "xy" for s in ("batch", "group", "channel", *AXES))


def lanes_of(dtype: DType) -> int:
    """Elements of a vector."""
    return jit.host().vector_bits // (8 * dtype.itemsize)


class Names:
    """The params of a kernel by name, and the pointers of its slots."""

    def __init__(self, f: Function, names: Sequence[str]):
        self.f = f
        self.words = {name: f.int_at("%params", i) for i, name in enumerate(names)}
        self.rest = f.element("%params", "i64", str(len(names)))

    def __getitem__(self, name: str) -> str:
        return self.words[name]

    def pointer(self, name: str) -> str:
        return self.f(f"load ptr, ptr {self.f.element('%ptrs', 'ptr', self.words[name])}")


class Elements:
    """Loads, stores and arithmetic of elements and vectors in one function."""

    def __init__(self, f: Function, dtype: DType):
        self.f, self.dtype, self.lanes = f, dtype, lanes_of(dtype)
        self.size, self.scalar = dtype.itemsize, register(dtype)
        self.type = of_width(self.scalar, self.lanes)

    def at(self, pointer: str, elements: str) -> str:
        return self.f.element(pointer, self.scalar, elements)

    def load(self, pointer: str) -> str:
        return self.f(f"load {self.type}, ptr {pointer}, align {self.size}")

    def store(self, value: str, pointer: str) -> None:
        self.f.do(f"store {self.type} {value}, ptr {pointer}, align {self.size}")

    def one(self, pointer: str) -> str:
        return self.f(f"load {self.scalar}, ptr {pointer}, align {self.size}")

    def store_one(self, value: str, pointer: str) -> None:
        self.f.do(f"store {self.scalar} {value}, ptr {pointer}, align {self.size}")

    def repeat(self, pointer: str) -> str:
        return self.f.splat(self.one(pointer), self.scalar, self.lanes)

    def fma(self, x: str, y: str, total: str) -> str:
        t = self.type
        name = f"llvm.fmuladd.v{self.lanes}f{8 * self.size}"
        function = self.f.module.intrinsic(name, t, t, t, t)
        return self.f(f"call {t} {function}({t} {x}, {t} {y}, {t} {total})")

    def pick(self, u: str, w: str, lanes: Sequence[int]) -> str:
        mask = f"<{len(lanes)} x i32> <{', '.join(f'i32 {k}' for k in lanes)}>"
        return self.f(f"shufflevector {self.type} {u}, {self.type} {w}, {mask}")

    def clear(self, pointer: str, elements: str) -> None:
        nbytes = self.f.mul(elements, str(self.size))
        fill = self.f.module.intrinsic("llvm.memset.p0.i64", "void", "ptr", "i8", "i64", "i1")
        self.f.do(f"call void {fill}(ptr {pointer}, i8 0, i64 {nbytes}, i1 false)")

    def fill(self, pointer: str, elements: str, value: str) -> None:
        """Writes the constant `value` to so many elements."""
        if value == "zeroinitializer":
            self.clear(pointer, elements)
            return
        with self.f.loop("0", elements) as i:
            self.store_one(value, self.at(pointer, i.i))

    def local(self, elements: str) -> str:
        """Memory on the stack, for as long as the function runs."""
        return self.f(f"alloca {self.scalar}, i64 {elements}, align 64")


def product(f: Function, *factors: str) -> str:
    total = factors[0]
    for factor in factors[1:]:
        total = f.mul(total, factor)
    return total


@contextmanager
def otherwise(f: Function, condition: str) -> Iterator[None]:
    """A block that runs unless the i1 `condition` holds."""
    with f.when(f(f"xor i1 {condition}, true")):
        yield


# -- copies ----------------------------------------------------------------------------------------

_MOVE = (
    ("ptr", "%source"), ("i64", "%source_row"), ("i64", "%source_column"), ("ptr", "%target"),
    ("i64", "%target_row"), ("i64", "%target_column"), ("i64", "%rows"), ("i64", "%columns"),
)  # fmt: skip


def add_move(module: Module, dtype: DType) -> None:
    """The function @move: a matrix copied between any strides, fast where both have a side of 1."""
    f = Function(module, "@move", _MOVE, qualifiers="internal ")
    v = Elements(f, dtype)
    inside, outside = f("icmp eq i64 %source_column, 1"), f("icmp eq i64 %target_column, 1")
    turned = f("icmp eq i64 %target_row, 1")
    along = f(f"and i1 {inside}, {outside}")
    across = f(f"and i1 {f(f'and i1 {inside}, {turned}')}, {f(f'xor i1 {outside}, true')}")
    for count in ("%rows", "%columns"):
        across = f(f"and i1 {across}, {f(f'icmp sge i64 {count}, {v.lanes}')}")
    with f.when(along), f.loop("0", "%rows") as row:
        source = v.at("%source", f.mul(row.i, "%source_row"))
        target = v.at("%target", f.mul(row.i, "%target_row"))
        whole = f(f"and i64 %columns, {-v.lanes}")
        with f.loop("0", whole, str(v.lanes)) as j:
            v.store(v.load(v.at(source, j.i)), v.at(target, j.i))
        with f.loop(whole, "%columns") as j:
            v.store_one(v.one(v.at(source, j.i)), v.at(target, j.i))
    with f.when(across):
        bottom, right = (f.sub(f"%{n}", str(v.lanes)) for n in ("rows", "columns"))
        with f.loop("0", "%rows", str(v.lanes)) as i, f.loop("0", "%columns", str(v.lanes)) as j:
            _turn(v, f.minimum(i.i, bottom), f.minimum(j.i, right))  # the last one overlaps
    with otherwise(f, f(f"or i1 {along}, {across}")):
        _move_each(v)
    f.finish()


def _move_each(v: Elements) -> None:
    f = v.f
    with f.loop("0", "%rows") as i, f.loop("0", "%columns") as j:
        source = f.add(f.mul(i.i, "%source_row"), f.mul(j.i, "%source_column"))
        target = f.add(f.mul(i.i, "%target_row"), f.mul(j.i, "%target_column"))
        v.store_one(v.one(v.at("%source", source)), v.at("%target", target))


def _turn(v: Elements, i: str, j: str) -> None:
    """One square of as many rows and columns as a vector has lanes, transposed."""
    f, half = v.f, v.lanes // 2
    rows = [f.mul(f.add(i, str(k)), "%source_row") for k in range(v.lanes)]
    vectors = [v.load(v.at("%source", f.add(row, j))) for row in rows]
    lower = [k for n in range(half) for k in (n, n + v.lanes)]
    upper = [k + half for k in lower]
    for _ in range(half.bit_length()):
        pairs = list(zip(vectors[:half], vectors[half:], strict=True))
        vectors = [v.pick(a, b, lanes) for a, b in pairs for lanes in (lower, upper)]
    for k, vector in enumerate(vectors):
        column = f.mul(f.add(j, str(k)), "%target_column")
        v.store(vector, v.at("%target", f.add(column, i)))


def call_move(f: Function, source: Sequence[str], target: Sequence[str], *counts: str) -> None:
    """Calls @move; source and target are (pointer, row, column)."""
    values = (*source, *target, *counts)
    passed = ", ".join(f"{t} {v}" for (t, _), v in zip(_MOVE, values, strict=True))
    f.do(f"call void @move({passed})")


# -- tiles -----------------------------------------------------------------------------------------


class Tile(NamedTuple):
    """A tile of output pixels: where it begins, and how many there are on each axis."""

    first: list[str]
    counts: list[str]


def tile_of(f: Function, p: Names, number: str) -> Tile:
    """The tile of this number among those of one image."""
    rest, third = f.divmod(number, p["tiles3"])
    one, two = f.divmod(rest, p["tiles2"])
    numbers = zip((one, two, third), AXES, strict=True)
    first = [f.mul(n, p[f"tile{d}"]) for n, d in numbers]
    left = [f.sub(p[f"places{d}"], b) for b, d in zip(first, AXES, strict=True)]
    counts = [f.minimum(p[f"tile{d}"], n) for n, d in zip(left, AXES, strict=True)]
    return Tile(first, counts)


def local_input(v: Elements, p: Names) -> str:
    """Local memory for a tile's input, with room after it: the last vector may reach over."""
    f = v.f
    inside = f(f"icmp slt i64 {p['spare']}, 0")
    size = f.add(product(f, *[p[f"reach{d}"] for d in AXES], p["block"]), str(4 * v.lanes))
    stack = v.local(f(f"select i1 {inside}, i64 {size}, i64 0"))
    slot = f(f"select i1 {inside}, i64 0, i64 {p['spare']}")
    other = f(f"load ptr, ptr {f.element('%ptrs', 'ptr', slot)}")
    return f(f"select i1 {inside}, ptr {stack}, ptr {other}")


def list_pixels(f: Function, p: Names, tile: Tile, pixels: str) -> None:
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
    p: Names,
    tile: Tile,
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
    with f.loop("0", reaches[0]) as i, f.loop("0", reaches[1]) as j:
        line = f.add(f.mul(i.i, p["reach2"]), j.i)
        target = v.at(local, product(f, line, p["reach3"], channels))
        one, two = f.add(starts[0], i.i), f.add(starts[1], j.i)
        valid = f(f"icmp ult i64 {one}, {p['size1']}")
        second = f(f"icmp ult i64 {two}, {p['size2']}")
        valid = f(f"and i1 {valid}, {second}")
        begin = f(f"select i1 {valid}, i64 {low}, i64 {reaches[2]}")
        end = f(f"select i1 {valid}, i64 {high}, i64 {reaches[2]}")
        v.fill(target, f.mul(begin, channels), filler)
        with f.when(valid):
            at = f.add(f.mul(one, p["x_1"]), f.mul(two, p["x_2"]))
            at = f.add(at, f.mul(f.add(starts[2], begin), p["x_3"]))
            inside = v.at(target, f.mul(begin, channels))
            by_channel = f(f"icmp eq i64 {p['x_channel']}, 1")
            pixels = f.sub(end, begin)
            with f.when(by_channel):
                place = (v.at(source, at), p["x_3"], "1")
                call_move(f, place, (inside, channels, "1"), pixels, channels)
            with otherwise(f, by_channel):
                place = (v.at(source, at), p["x_channel"], p["x_3"])
                call_move(f, place, (inside, "1", channels), channels, pixels)
        after = v.at(target, f.mul(end, channels))
        v.fill(after, f.mul(f.sub(reaches[2], end), channels), filler)


def _largest(f: Function) -> str:
    return f.module.intrinsic("llvm.smax.i64", "i64", "i64", "i64")


def _clamped(f: Function, value: str, top: str) -> str:
    """`value` between 0 and `top`."""
    return f.minimum(f(f"call i64 {_largest(f)}(i64 {value}, i64 0)"), top)


def copy_output(
    v: Elements, p: Names, tile: Tile, outer: str, local: str, pitch: str, count: str, out: bool
) -> None:
    """Copies `count` channels of a tile between local memory and the array at `outer`."""
    f = v.f
    one, two, three = tile.counts
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
