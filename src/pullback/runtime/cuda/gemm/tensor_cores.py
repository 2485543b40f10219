"""Products by tensor cores, which multiply numbers of 8 or 11 significant bits.

Sums are made in float32, as one chain along k: bits depend neither on the tile nor on what else is
in a batch, but they are those of these units, and not of any CPU. A Hopper has units of its own,
others from sm_80 on those of warps.
"""

from __future__ import annotations

import math

from pullback.compile.program.nest import coalesce
from pullback.compile.program.target import Area
from pullback.core.dtypes import DType
from pullback.runtime.cuda.gemm import hopper, warps
from pullback.runtime.cuda.gemm.endings import End
from pullback.runtime.cuda.gemm.hopper import LINE, Hopper
from pullback.runtime.cuda.gemm.kinds import Kind, Problem, Side, cores_source
from pullback.runtime.cuda.gemm.steps import Operand
from pullback.runtime.cuda.gemm.warps import Warps
from pullback.runtime.cuda.gpu import Gpu
from pullback.runtime.cuda.launch import THREADS, packed
from pullback.runtime.cuda.stages import VECTOR_BYTES, At, Either, Step

__all__ = ["Cores", "arranged"]

LINES, ROW = 64, 128  # of a tile of kernels/pack.cu: lines, and bytes of each
MOST_GRID = 1056  # thread blocks of THREADS: what a Hopper holds at a time
# Up to there operands that cannot be copied as they are, are read element by element: to arrange
# them first takes two more launches, 4 us.
SMALL = 1 << 24  # multiply-adds of a product: 2**24 are 256 x 256 x 256
# An operand that is read slowly is copied first if that is worth it: the copy grows with the square
# of a product's side, what is spared with the cube.
WORTH = 2048  # the side of a square product from which on that is so
LONG = 4  # lines of L2 from which on lines of a copy begin with one of them


class Cores:
    """The tensor cores of a GPU."""

    def __init__(self, gpu: Gpu):
        self._units: Hopper | Warps | None = None
        if gpu.architecture == hopper.ARCHITECTURE and gpu.driver.has_maps:
            self._units = Hopper(gpu.driver)
        elif int(gpu.architecture.removeprefix("sm_")) >= warps.LEAST_ARCHITECTURE:
            self._units = Warps(gpu.processors)

    def are_there(self) -> bool:
        """Whether the GPU has some that there are kernels for."""
        return self._units is not None

    def steps(
        self,
        kind: Kind,
        dtype: DType,
        batch: tuple[int, ...],
        sides: tuple[int, int, int],
        a: Operand,
        b: Operand,
        out: At,
        area: Area,
        end: End | None = None,
    ) -> list[Step | Either]:
        """The launches of products of a dtype; the output is dense."""
        units = self._units
        assert units is not None
        m, n, k = sides
        pair, before = [Side(a, m, dtype), Side(b, n, dtype)], []
        if math.prod(batch) * m * n * k > SMALL:
            worth = 2 * m * n >= WORTH * (m + n)
            for i, side in enumerate(pair):
                lie = units.lies(side, k, kind)
                if lie is None or (worth and units.reads_across(side, lie, kind)):
                    step, pair[i] = arranged(kind, batch, side, k, area)
                    before.append(step)
        lies = [units.lies(side, k, kind) for side in pair]
        nest = coalesce(batch, [side.operand.batch for side in pair])
        left, right = (side.operand for side in pair)
        problem = Problem(kind, pair[0].dtype, dtype, nest, sides, left, right, batch, end)
        return [*before, units.launch(problem, lies, out)]


def arranged(
    kind: Kind, batch: tuple[int, ...], side: Side, k: int, area: Area
) -> tuple[Step, Side]:
    """The launch that copies an operand line by line, rounded to what is multiplied; the copy."""
    x, lines, dtype = side
    size = kind.unit.itemsize
    multiple = LINE if k * size > LONG * LINE else VECTOR_BYTES  # bytes from line to line
    width = math.ceil(k * size / multiple) * multiple // size
    own, items = [0] * len(batch), 1
    for d in reversed(range(len(batch))):
        if x.batch[d] and batch[d] > 1:
            own[d] = items * lines * width
            items *= batch[d]
    kept = [d for d in range(len(batch)) if own[d]]
    nest = coalesce([batch[d] for d in kept], [[x.batch[d] for d in kept]])
    at = At(area(items * lines * width * size))
    name = f"pieces_{kind.name}"
    source = cores_source(name, ("pack",), kind, dtype, kind.unit)
    across = ROW // size
    tiles = items * math.ceil(lines / LINES) * math.ceil(width / across)
    arguments = (at, x.at, packed(nest, 1), lines, k, x.line, x.k, width)
    step = Step(source, f"{name}_pack", (min(tiles, MOST_GRID), 1), THREADS, arguments)
    return step, Side(Operand(at, tuple(own), width, 1), lines, kind.unit)
