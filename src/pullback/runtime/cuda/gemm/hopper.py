"""Products by the tensor cores of a Hopper: `wgmma`, on tiles that the copy engine brings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from pullback.runtime.cuda.driver import Driver
from pullback.runtime.cuda.gemm.kinds import TF32, Kind, Problem, Side, cores_source
from pullback.runtime.cuda.launch import packed
from pullback.runtime.cuda.stages import VECTOR_BYTES, At, Either, Step, TensorMap

__all__ = ["ARCHITECTURE", "LINE", "TILES", "Hopper", "HopperTile", "tile_of"]

ARCHITECTURE = "sm_90"  # whose instructions these are; later ones have others
PROCESSORS = 132  # multiprocessors that a choice of tiles has in mind: those of a Hopper
ROW = 128  # bytes of k in a stage: as many as the exchange of pieces in shared memory spans
ALIGNMENT = 1024  # bytes, of such tiles in shared memory
MAP_AXES = 5  # of a map at most: three of them are for batches
LINE = 128  # bytes of L2 that are read at once
LINE_BLOCK = 64  # lines of a box where lines lie side by side


class HopperTile(NamedTuple):
    """How a thread block makes a tile: see `kernels/hopper.cu`.

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
        held = self.bn  # lines that lie side by side come LINE_BLOCK at a time
        if held > LINE_BLOCK:
            held = math.ceil(held / LINE_BLOCK) * LINE_BLOCK
        return self.stages * (self.bm + held) * ROW + ALIGNMENT


TILES = (
    HopperTile(128, 256, 4, 1, 0.78, 0.78),
    HopperTile(128, 192, 5, 1, 0.77, 0.77),
    HopperTile(192, 96, 5, 1, 0.72, 0.72),
    HopperTile(128, 128, 6, 1, 0.76, 0.76),
    HopperTile(64, 128, 4, 2, 0.75, 0.56),
    HopperTile(64, 64, 6, 2, 0.54, 0.36),
    HopperTile(64, 32, 8, 2, 0.3, 0.18),
)  # measured on an H200
PLAIN = HopperTile(128, 128, 3, 1, 0.1, 0.1)  # where operands are read element by element
FILES = "strips", "places", "fragments", "sums", "hopper"
NO_MAP = bytes(128)  # of kernels that read element by element
UNITS_RATE = 2048.0  # multiply-adds of 16 bits of a processor in a cycle
ENTRY = 1700.0  # cycles of a block for its first operands, and for what it writes


@cache
def tile_of(kind: Kind, batch: int, m: int, n: int, k: int, least: int = 0) -> HopperTile:
    """The tile of at least so many columns that is expected to be the fastest; it has no effect on
    any bit.
    """

    def cycles(tile: HopperTile) -> float:
        blocks = batch * math.ceil(m / tile.bm) * math.ceil(n / tile.bn)
        rate = UNITS_RATE * 2 / kind.unit.itemsize
        work = tile.bm * tile.bn * max(k, ROW // kind.unit.itemsize) / rate  # of a block
        full, rest = divmod(math.ceil(blocks / PROCESSORS), tile.resident)
        turn = tile.resident * work / tile.rate + ENTRY
        return full * turn + (rest * work / tile.alone + ENTRY if rest else 0.0)

    return min((t for t in TILES if t.bn >= least), key=cycles)


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


class Hopper:
    """The tensor cores of a Hopper, whose driver has maps for the copy engine."""

    def __init__(self, driver: Driver):
        self._driver = driver

    def lies(self, side: Side, k: int, kind: Kind) -> int | None:
        """See `Side.lies`; units take TF32 whose products lie side by side."""
        found = side.lies(k, kind)
        return None if found == 1 and kind is TF32 else found

    def reads_across(self, side: Side, lie: int | None, kind: Kind) -> bool:
        """Whether rows of 128 bytes are in two lines of L2, which takes half as long again."""
        step = side.operand.k if lie else side.operand.line
        return lie is not None and step * kind.unit.itemsize % LINE > 0

    def launch(self, problem: Problem, lies: Sequence[int | None], out: At) -> Step | Either:
        """The launch; the output is dense."""
        other = _step(problem, out)
        if None in lies or len(problem.batch.shape) > MAP_AXES - 2:
            return other
        kind, (m, n, k), shape = problem.kind, problem.sides, problem.batch.shape
        tile = tile_of(kind, math.prod(shape), m, n, k, LINE_BLOCK if lies[1] else 0)
        pair = Side(problem.a, m, kind.unit), Side(problem.b, n, kind.unit)
        left, right = (
            self._map(kind, side, k, lie, lines, shape, steps)
            for side, lie, lines, steps in zip(
                pair, lies, tile[:2], problem.batch.strides, strict=True
            )
        )
        return Either(_step(problem, out, tile, (left, right), lies), other)

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
            sides, steps, box = [k, side.lines], [x.line], (ROW // size, lines)
        if batch:
            sides += [n if s else 1 for n, s in zip(batch, batch_steps, strict=True)][::-1]
            sides += [1] * (MAP_AXES - len(sides))
            steps += [*batch_steps[::-1], *[0] * (MAP_AXES - 2 - len(batch))]
        one = VECTOR_BYTES // size  # any, where there is nothing to step to
        steps = [s * size if n > 1 else one * size for s, n in zip(steps, sides[1:], strict=True)]
        return TensorMap(x.at, self._driver.tensor_map(size, sides, steps, box))


def _step(
    problem: Problem,
    out: At,
    tile: HopperTile = PLAIN,
    maps: tuple[TensorMap | bytes, TensorMap | bytes] = (NO_MAP, NO_MAP),
    lies: Sequence[int | None] = (0, 0),
) -> Step:
    """The launch, by the copy engine if there are maps."""
    kind, batch = problem.kind, problem.batch
    axes = 0 if maps[0] is NO_MAP else MAP_AXES if batch.shape else 2
    words = {
        "BM": tile.bm, "BN": tile.bn, "STAGES": tile.stages,
        "RESIDENT": tile.resident, "MAPS": axes, "A_LINES": lies[0], "B_LINES": lies[1],
    }  # fmt: skip
    name, given = f"cores_{kind.name}", tuple(words.items())
    source = cores_source(
        name, FILES, kind, problem.given, problem.stored, given, _multiply(kind, tile.bn),
        problem.end_code(axes > 0),
    )  # fmt: skip
    tiles = problem.tiles(tile.bm, tile.bn)
    blocks = min(batch.size * tiles, PROCESSORS * tile.resident)
    own = (out, problem.a.at, problem.b.at, *maps, packed(batch, 2), problem.packed(tiles))
    return Step(
        source, name, (blocks, 1), tile.threads, (*own, *problem.end_arguments()),
        shared=tile.shared, anywhere=problem.anywhere(len(own)),
    )  # fmt: skip
