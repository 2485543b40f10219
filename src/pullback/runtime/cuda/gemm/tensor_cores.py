"""Products by the tensor cores of a Hopper, which multiply numbers of 8 or 11 significant bits.

Sums are made in float32, as one chain along k: bits depend neither on the tile nor on what else is
in a batch, but they are those of these units, and not of any CPU.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from pullback.compile.program.nest import Nest, coalesce
from pullback.compile.program.target import Area
from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.runtime.cuda.gemm.sources import text_of
from pullback.runtime.cuda.gemm.steps import Operand
from pullback.runtime.cuda.gpu import Gpu
from pullback.runtime.cuda.kernels import NEST
from pullback.runtime.cuda.launch import THREADS, packed
from pullback.runtime.cuda.printer import Source, convert, storage
from pullback.runtime.cuda.stages import VECTOR_BYTES, At, Either, Step, TensorMap

__all__ = [
    "ARCHITECTURE",
    "TILES",
    "Cores",
    "Kind",
    "Side",
    "Tile",
    "arranged",
    "kind_of",
    "tile_of",
]

ARCHITECTURE = "sm_90"  # whose instructions these are; later ones have others
PROCESSORS = 132  # multiprocessors that a choice of tiles has in mind: those of a Hopper
ROW = 128  # bytes of k in a stage: as many as the exchange of pieces in shared memory spans
ALIGNMENT = 1024  # bytes, of such tiles in shared memory
MOST_GRID = PROCESSORS * 8  # thread blocks of THREADS that are on them at a time
MAP_AXES = 5  # of a map at most: three of them are for batches
LINE_BLOCK = 64  # lines of a box where they lie side by side: ROW bytes of 16-bit numbers
# Up to there operands that cannot be copied as they are, are read element by element: to arrange
# them first takes two more launches, 4 us.
SMALL = 1 << 24  # multiply-adds of a product: 2**24 are 256 x 256 x 256
Sides = tuple[int, int, int]


class Kind(NamedTuple):
    """What the units multiply: the name in instructions, the dtype, products of an instruction."""

    name: str
    unit: DType
    depth: int

    @property
    def per_row(self) -> int:
        """Products of a stage."""
        return ROW // self.unit.itemsize


BFLOAT16 = Kind("bf16", dt.bfloat16, 16)
FLOAT16 = Kind("f16", dt.float16, 16)
TF32 = Kind("tf32", dt.float32, 8)


def kind_of(dtype: DType, precision: str) -> Kind | None:
    """What products of a dtype are made of at a precision; None: float32, in the CPU's order."""
    if precision == "highest":
        return None
    if dtype is dt.float32:
        return {"tf32": TF32, "bfloat16": BFLOAT16}.get(precision)
    return {dt.bfloat16: BFLOAT16, dt.float16: FLOAT16}.get(dtype)


class Tile(NamedTuple):
    """How a thread block makes a tile: see `kernels/tensor_cores.cu`.

    `resident` blocks are on a processor; `rate` is the part of the arithmetic that they reach
    together, `alone` that of one.
    """

    bm: int
    bn: int
    stages: int
    resident: int
    rate: float
    alone: float

    @property
    def threads(self) -> int:
        return 2 * self.bm + 128

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self.stages * (self.bm + self.bn) * ROW + ALIGNMENT


TILES = (
    Tile(128, 256, 4, 1, 0.78, 0.78),
    Tile(128, 192, 5, 1, 0.77, 0.77),
    Tile(128, 128, 6, 1, 0.76, 0.76),
    Tile(64, 128, 4, 2, 0.75, 0.56),
    Tile(64, 64, 6, 2, 0.54, 0.36),
    Tile(64, 32, 8, 2, 0.3, 0.18),
)  # measured on an H200
PLAIN = Tile(128, 128, 3, 1, 0.1, 0.1)  # where operands are read element by element
NO_MAP = bytes(128)  # of kernels that read element by element
UNITS_RATE = 2048.0  # multiply-adds of 16 bits of a processor in a cycle
ENTRY = 1700.0  # cycles of a block for its first operands, and for what it writes


@cache
def tile_of(kind: Kind, batch: int, m: int, n: int, k: int, least: int = 0) -> Tile:
    """The tile of at least so many columns that is expected to be the fastest; it has no effect on
    any bit.
    """

    def cycles(tile: Tile) -> float:
        blocks = batch * math.ceil(m / tile.bm) * math.ceil(n / tile.bn)
        rate = UNITS_RATE * 2 / kind.unit.itemsize
        work = tile.bm * tile.bn * max(k, kind.per_row) / rate  # of a block
        full, rest = divmod(math.ceil(blocks / PROCESSORS), tile.resident)
        turn = tile.resident * work / tile.rate + ENTRY
        return full * turn + (rest * work / tile.alone + ENTRY if rest else 0.0)

    return min((t for t in TILES if t.bn >= least), key=cycles)


# -- sources ---------------------------------------------------------------------------------------

_FLOATS = {"bf16": "pb_from_bfloat16(x)", "f16": "pb_from_float16(x)", "tf32": "x"}
_PAIRS = {"bf16": "cvt.rn.bf16x2.f32", "f16": "cvt.rn.f16x2.f32"}


def _head(kind: Kind, given: DType, stored: DType) -> str:
    """The types that kernels are about, and what lies between them."""
    pair = "return 0;"
    if kind.name in _PAIRS:
        made = f'asm("{_PAIRS[kind.name]} %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));'
        pair = f"unsigned x = 0;\n#ifndef PB_EMULATED\n  {made}\n#endif\n  return x;"
    return (
        f"typedef {storage(stored)} Stored;\ntypedef {storage(given)} Given;\n"
        f"typedef {storage(kind.unit)} Unit;\ntypedef float Value;\n"
        f"PB_DEVICE Unit pb_unit(Given x) {{ return {convert('x', given, kind.unit)}; }}\n"
        f"PB_DEVICE float pb_float(Unit x) {{ return {_FLOATS[kind.name]}; }}\n"
        f"PB_DEVICE Stored pb_narrow(float x) {{ return {convert('x', dt.float32, stored)}; }}\n"
        f"PB_DEVICE unsigned pb_pair(float low, float high) {{\n  {pair}\n}}"
    )


def _multiply(kind: Kind, columns: int) -> str:
    """The instruction for 64 rows: `more` is 0 where sums begin."""
    count = columns // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    flags = "" if kind is TF32 else f", %{count + 3}, %{count + 4}"
    given = '"l"(a), "l"(b), "r"(more)' + ("" if kind is TF32 else ', "n"(A_LINES), "n"(B_LINES)')
    outs = ", ".join(f'"+f"(c[{i}])' for i in range(count))
    name = f"wgmma.mma_async.sync.aligned.m64n{columns}k{kind.depth}.f32.{kind.name}.{kind.name}"
    return (
        f"PB_DEVICE void pb_multiply(float (&c)[{count}], u64 a, u64 b, int more) {{\n"
        f'#ifndef PB_EMULATED\n  asm volatile("{{\\n.reg .pred adds;\\n'
        f'setp.ne.b32 adds, %{count + 2}, 0;\\n"\n    "{name}"\n'
        f'    " {{{sums}}}, %{count}, %{count + 1}, adds, 1, 1{flags};\\n}}"\n'
        f"    : {outs}\n    : {given});\n#endif\n}}"
    )


@cache
def _source(name: str, kind: Kind, given: DType, stored: DType, words: tuple, tile: int) -> str:
    source = Source()
    source.add("pb_nest", NEST)
    source.add("pb_head", _head(kind, given, stored))
    source.add("pb_words", "\n".join(f"#define {w} {v}" for w, v in words))
    source.add("pb_copies", text_of("copies"))
    source.add("pb_pieces", text_of("pieces"))
    if tile:
        source.add("pb_multiply", _multiply(kind, tile))
    file = "tensor_cores" if tile else "pack"
    source.add(f"pb_{file}", text_of(file).replace("NAME", name))
    return source.text()


# -- launches --------------------------------------------------------------------------------------


class Side(NamedTuple):
    """An operand, the number of its lines, the dtype of what lies there."""

    operand: Operand
    lines: int
    dtype: DType

    def lies(self, k: int, kind: Kind) -> int | None:
        """Whether the copy engine can copy tiles: 0, products lie side by side; 1, lines do."""
        x, wide = self.operand, VECTOR_BYTES // kind.unit.itemsize
        if self.dtype is not kind.unit or any(s < 0 or s % wide for s in x.batch):
            return None
        line = wide if self.lines == 1 else x.line
        if x.k == 1 and line > 0 and line % wide == 0:
            return 0
        step = wide if k == 1 else x.k
        return 1 if x.line == 1 and kind is not TF32 and step > 0 and step % wide == 0 else None


class Cores:
    """The tensor cores of a GPU."""

    def __init__(self, gpu: Gpu):
        self._gpu = gpu

    def are_there(self) -> bool:
        """Whether the GPU has them, and its driver the maps for the copy engine."""
        return self._gpu.architecture == ARCHITECTURE and self._gpu.driver.has_maps

    def steps(
        self,
        kind: Kind,
        dtype: DType,
        batch: tuple[int, ...],
        sides: Sides,
        a: Operand,
        b: Operand,
        out: At,
        area: Area,
    ) -> list[Step | Either]:
        """The launches of products of a dtype; the output is dense."""
        m, n, k = sides
        pair, before = [Side(a, m, dtype), Side(b, n, dtype)], []
        if math.prod(batch) * m * n * k > SMALL:
            for i, side in enumerate(pair):
                if side.lies(k, kind) is None:
                    step, pair[i] = arranged(kind, batch, side, k, area)
                    before.append(step)
        lies = [side.lies(k, kind) for side in pair]
        nest = coalesce(batch, [side.operand.batch for side in pair])
        product = _Product(kind, pair[0].dtype, dtype, nest, sides, *(x.operand for x in pair))
        other = product.step(out)
        if None in lies or len(nest.shape) > MAP_AXES - 2:
            return [*before, other]
        tile = tile_of(kind, math.prod(batch), *sides, LINE_BLOCK if lies[1] else 0)
        left, right = (
            self._map(kind, side, k, lie, lines, nest.shape, steps)
            for side, lie, lines, steps in zip(pair, lies, tile[:2], nest.strides, strict=True)
        )
        return [*before, Either(product.step(out, tile, (left, right), lies), other)]

    def _map(
        self,
        kind: Kind,
        side: Side,
        k: int,
        lie: int | None,
        lines: int,
        batch: tuple[int, ...],
        batch_steps: tuple[int, ...],
    ) -> TensorMap:
        """The map of an operand, with boxes of so many lines."""
        size, x = kind.unit.itemsize, side.operand
        if lie:
            sides, steps, box = [side.lines, k], [x.k], (LINE_BLOCK, LINE_BLOCK)
        else:
            sides, steps, box = [k, side.lines], [x.line], (kind.per_row, lines)
        if batch:
            sides += [n if s else 1 for n, s in zip(batch, batch_steps, strict=True)][::-1]
            sides += [1] * (MAP_AXES - len(sides))
            steps += [*batch_steps[::-1], *[0] * (MAP_AXES - 2 - len(batch))]
        one = VECTOR_BYTES // size  # any, where there is nothing to step to
        steps = [s * size if n > 1 else one * size for s, n in zip(steps, sides[1:], strict=True)]
        return TensorMap(x.at, self._gpu.driver.tensor_map(size, sides, steps, box))


class _Product(NamedTuple):
    """A batch of products of `given`, written as `stored`."""

    kind: Kind
    given: DType
    stored: DType
    batch: Nest
    sides: Sides
    a: Operand
    b: Operand

    def step(
        self,
        out: At,
        tile: Tile = PLAIN,
        maps: tuple[TensorMap | bytes, TensorMap | bytes] = (NO_MAP, NO_MAP),
        lies: Sequence[int | None] = (0, 0),
    ) -> Step:
        """The launch, by the copy engine if there are maps."""
        (m, n, k), (a, b) = self.sides, (self.a, self.b)
        axes = 0 if maps[0] is NO_MAP else MAP_AXES if self.batch.shape else 2
        words = {
            "BM": tile.bm, "BN": tile.bn, "STAGES": tile.stages,
            "RESIDENT": tile.resident, "MAPS": axes, "A_LINES": lies[0], "B_LINES": lies[1],
        }  # fmt: skip
        name = f"cores_{self.kind.name}"
        given = tuple(words.items())
        source = _source(name, self.kind, self.given, self.stored, given, tile.bn)
        tiles = math.ceil(m / tile.bm) * math.ceil(n / tile.bn)
        blocks = min(self.batch.size * tiles, PROCESSORS * tile.resident)
        sides = struct.pack("<8q", m, n, k, a.line, a.k, b.line, b.k, tiles)
        arguments = (out, a.at, b.at, *maps, packed(self.batch, 2), sides)
        return Step(source, name, (blocks, 1), tile.threads, arguments, shared=tile.shared)


def arranged(
    kind: Kind, batch: tuple[int, ...], side: Side, k: int, area: Area
) -> tuple[Step, Side]:
    """The launch that copies an operand line by line, rounded to what is multiplied; the copy."""
    x, lines, dtype = side
    width = math.ceil(k * kind.unit.itemsize / VECTOR_BYTES) * VECTOR_BYTES // kind.unit.itemsize
    own, items = [0] * len(batch), 1
    for d in reversed(range(len(batch))):
        if x.batch[d] and batch[d] > 1:
            own[d] = items * lines * width
            items *= batch[d]
    kept = [d for d in range(len(batch)) if own[d]]
    nest = coalesce([batch[d] for d in kept], [[x.batch[d] for d in kept]])
    at = At(area(items * lines * width * kind.unit.itemsize))
    name = f"pieces_{kind.name}"
    source = _source(name, kind, dtype, kind.unit, (), 0)
    tiles = items * math.ceil(lines / LINE_BLOCK) * math.ceil(width / kind.per_row)
    arguments = (at, x.at, packed(nest, 1), lines, k, x.line, x.k, width)
    step = Step(source, f"{name}_pack", (min(tiles, MOST_GRID), 1), THREADS, arguments)
    return step, Side(Operand(at, tuple(own), width, 1), lines, kind.unit)
