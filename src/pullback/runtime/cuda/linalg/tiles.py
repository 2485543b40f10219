"""The steps of tiled factorisations as launches: leaves and copies."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pullback.compile.program.nest import coalesce
from pullback.compile.program.queued_tiles import QueuedTiles
from pullback.compile.program.target import Place
from pullback.compile.program.tiles import Block
from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.runtime.cuda.launch import MAX_GRID, THREADS, grid_of, packed
from pullback.runtime.cuda.linalg import reflections, tile_kernels
from pullback.runtime.cuda.loops import zero_steps
from pullback.runtime.cuda.stages import RECORD, At, Either, Step

__all__ = ["Tiles", "report_step"]

_SMALL_THREADS = 64  # of a thread block whose threads have matrices: many blocks share few ones


def report_step(dtype: DType, status: int, count: int, start: int, error: int) -> Step:
    """The launch that notes an error about the first matrix with a status above 0; if `start` is
    not 0 its value is what is left of that.
    """
    name, source = tile_kernels.kernels(dtype)
    arguments = (At(RECORD), At(status), count, start, error)
    return Step(source, f"{name}report", (1, 1), THREADS, arguments, checked=True)


def packed_part(b: Block) -> bytes:
    """The struct Part of a block."""
    return struct.pack("<5q", b.at, b.rows, b.columns, b.row, b.column)


def packed_nest(batch: Sequence[int], *blocks: Block) -> bytes:
    """The struct Nest of a batch."""
    return packed(coalesce(batch, [b.batch for b in blocks]))


class Tiles(QueuedTiles[Step | Either]):
    """The launches of a factorisation, in the order in which they are asked for."""

    status_bytes = 8

    # -- memory ------------------------------------------------------------------------------------

    def _clear(self, slot: int, each: int) -> None:
        kind, size = (dt.int64, 8) if each % 8 == 0 else (dt.uint8, 1)
        self._steps += zero_steps(kind, self.count * each // size, slot)

    # -- launches ----------------------------------------------------------------------------------

    def _launch(
        self, end: str, grid: int, block: int, blocks: tuple[Block, ...], *more: int | At,
        before: tuple[At, ...] = (),
    ) -> None:  # fmt: skip
        """A kernel of `tile_kernels` on the matrices of a batch."""
        kind = reflections if end == "reflect" else tile_kernels
        name, source = kind.kernels(self.dtype)
        nest, parts = packed_nest(self.batch, *blocks), [packed_part(b) for b in blocks]
        slots = [At(b.slot) for b in blocks]
        arguments = (*slots, *before, nest, *parts, *more)
        self._steps.append(Step(source, f"{name}{end}", (grid, 1), block, arguments))

    def _elements(
        self, end: str, blocks: tuple[Block, ...], *more: int, before: tuple[At, ...] = ()
    ) -> None:
        """A kernel with a thread for each element of the first block."""
        size = self.count * blocks[0].rows * blocks[0].columns
        if size:
            self._launch(end, grid_of(size), THREADS, blocks, *more, before=before)

    def _matrices(
        self, end: str, threads: int, blocks: tuple[Block, ...], *more: int,
        before: tuple[At, ...] = (),
    ) -> None:  # fmt: skip
        """A kernel with a thread block for each matrix."""
        self._launch(end, min(self.count, MAX_GRID), threads, blocks, *more, before=before)

    # -- steps -------------------------------------------------------------------------------------

    def _copied(self, x: Block, target: Block, way: int, looks: bool) -> None:
        self._elements("copy", (target, x), way, int(looks), before=(At(self.status),))

    def _take_product(self, c: Block, product: Block) -> None:
        self._elements("take", (c, product))

    def _solve_leaf(self, t: Block, x: Block, unit: bool) -> None:
        if x.columns:
            grid = grid_of(self.count * x.columns)
            self._launch("solve", grid, THREADS, (x, t), int(unit))

    def _cholesky_leaf(self, a: Block, first: int) -> None:
        self._matrices("cholesky", 32, (a,), first, before=(At(self.status),))

    def _lu_leaf(self, a: Block, swaps: Block, first: int) -> None:
        self._matrices("panel", tile_kernels.PANEL_THREADS, (a, swaps), first)

    def _qr_leaf(self, a: Block, v: Block, t: Block) -> None:
        self._matrices("reflect", reflections.THREADS, (a, v, t))

    def _exchange(self, a: Block, swaps: Block, top: int, start: int, stop: int) -> None:
        if a.columns and start < stop:
            grid = grid_of(self.count * a.columns)
            self._launch("exchange", grid, THREADS, (a, swaps), top, start, stop)

    def order(self, swaps: Block, n: int, count: int) -> None:
        self._matrices("order", THREADS, (swaps,), n, count, before=(At(self.status),))

    def permute(self, x: Block, out: Block, numbers: Block, back: bool) -> None:
        self._elements("permute", (out, x, numbers), int(back))

    def identity(self, a: Block) -> None:
        self._elements("identity", (a,))

    def require_regular(self, a: Block, error: int) -> None:
        status = self._clean_status()
        grid = grid_of(self.count * a.rows)
        self._launch("regular", grid, THREADS, (a,), before=(At(status),))
        self._steps.append(report_step(self.dtype, status, self.count, a.rows + 1, error))

    def trim(self, a: Block, side: int, error: int = 0) -> None:
        self._elements("trim", (a,), side, before=(At(self.status),))
        if error:
            self._steps.append(report_step(self.dtype, self.status, self.count, 0, error))

    # -- without tiles -----------------------------------------------------------------------------

    def report(self, error: int) -> None:
        """An error about the first matrix with a status."""
        self._steps.append(report_step(self.dtype, self.status, self.count, 0, error))

    def determinant(self, packed: Block, result: Place) -> None:
        """The determinants from the results of `lu`."""
        slot, _ = result
        out = self.dense(slot, 0, 1, 1, 1)
        name, source = tile_kernels.kernels(self.dtype)
        nest = packed_nest(self.batch, out, packed)
        arguments = (At(slot), At(packed.slot), nest, packed_part(packed))
        self._steps.append(
            Step(source, f"{name}determinant", (grid_of(self.count), 1), THREADS, arguments)
        )

    def side_by_side(self, kernel: tuple[str, str], result: Place, given: Sequence[Block]) -> None:
        """A kernel with a thread for each matrix; the result is dense."""
        (name, source), (slot, av) = kernel, result
        out = self.dense(slot, 0, 1, 1, av.size // self.count)
        nest = packed_nest(self.batch, out, *given)
        slots = [At(b.slot) for b in given]
        arguments = (At(slot), *slots, At(self.status), nest, *map(packed_part, given))
        grid = -(-self.count // _SMALL_THREADS)
        self._steps.append(Step(source, name, (min(grid, MAX_GRID), 1), _SMALL_THREADS, arguments))

    def block_each(
        self,
        kernel: tuple[str, str],
        threads: int,
        result: Place,
        given: Sequence[Block],
        room: int,
        *more: int,
    ) -> None:
        """A kernel with a thread block for each matrix, and so many bytes to work in."""
        (name, source), (slot, av) = kernel, result
        each = av.size // self.count
        work = At(self._area(room))
        nest = packed_nest(self.batch, self.dense(slot, 0, 1, 1, each), *given)
        arguments = (
            *(At(slot), *(At(b.slot) for b in given), work, At(self.status), nest),
            *(*map(packed_part, given), each, *more),
        )
        grid = min(self.count, MAX_GRID), 1
        self._steps.append(Step(source, name, grid, threads, arguments))
