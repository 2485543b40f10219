"""The steps of tiled factorisations as launches: leaves, products, copies.

A product that is taken from a matrix is made chunk by chunk of the order, and each is taken when
it is made.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from pullback.compile.kernel.order import CHUNK
from pullback.compile.program.nest import coalesce
from pullback.compile.program.target import Place
from pullback.compile.program.tiles import Block, TiledSteps
from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.runtime.cuda.launch import MAX_GRID, THREADS, grid_of, packed
from pullback.runtime.cuda.linalg import reflections, tile_kernels
from pullback.runtime.cuda.loops import zero_steps
from pullback.runtime.cuda.products import Products
from pullback.runtime.cuda.stages import RECORD, At, Either, Step

__all__ = ["Tiles", "report_step"]

_SMALL_THREADS = 64  # of a thread block whose threads have matrices: many blocks share few ones
_AS_IT_IS, _SYMMETRIC, _CONJUGATED = range(3)  # ways of a copy


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


class Tiles(TiledSteps):
    """The launches of a factorisation, in the order in which they are asked for."""

    def __init__(
        self,
        dtype: DType,
        batch: tuple[int, ...],
        area: Callable[[int], int],
        products: Products,
    ):
        super().__init__(dtype, batch, area)
        self._multiply = products.steps
        self._scratch: dict[tuple[int, int], int] = {}  # of products, one after the other
        self._head: list[Step | Either] = []
        self._steps: list[Step | Either] = []
        self._largest = 0  # elements of a matrix that a product is taken from, at most
        self._made: int | None = None  # the slot of such products
        self.status = self._area(8)
        self._clear(self.status, 8)

    def run(
        self,
        name: str,
        operands: Sequence[Place],
        static: Mapping[str, Any],
        out: Place,
        error: int,
    ) -> None:
        matrices = [math.prod(av.shape[-2:]) for _, av in operands]
        self._largest = max(out[1].size // self.count, *matrices)
        super().run(name, operands, static, out, error)

    def steps(self) -> list[Step | Either]:
        return [*self._head, *self._steps]

    # -- memory ------------------------------------------------------------------------------------

    def _area(self, nbytes: int) -> int:
        return self.area(self.count * nbytes)

    def _clear(self, slot: int, each: int) -> None:
        kind, size = (dt.int64, 8) if each % 8 == 0 else (dt.uint8, 1)
        self._steps += zero_steps(kind, self.count * each // size, slot)

    def _room(self, which: int, rows: int, columns: int) -> Block:
        """Dense for the whole batch, as products are."""
        return self.dense(self._rooms[which], 0, rows, columns, rows * columns)

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

    def take(self, x: Block, target: Block) -> None:
        before, self._steps = self._steps, []
        self._elements("copy", (target, x), _AS_IT_IS, 0, before=(At(self.status),))
        self._head += self._steps
        self._steps = before

    def conjugate(self, x: Block, target: Block) -> None:
        """A conjugated copy; in place if both are the same."""
        self._elements("copy", (target, x), _CONJUGATED, 0, before=(At(self.status),))

    def adjoint(self, x: Block) -> Block:
        if not self.dtype.is_complex:
            return x.turned
        target = self.scratch(x.rows, x.columns)
        self.conjugate(x, target)
        return target.turned

    def multiply(self, c: Block, a: Block, b: Block, minus: bool, lower: bool = False) -> None:
        if 0 in (c.rows, c.columns):
            return
        if not minus:
            self._product(c, a, b)
            return
        size = c.rows * c.columns
        assert size <= self._largest
        if self._made is None:
            self._made = self._area(self._largest * self.size)
        made = self.dense(self._made, 0, c.rows, c.columns, size)
        for k in range(0, a.columns, CHUNK):
            width = min(CHUNK, a.columns - k)
            self._product(made, a.part(0, k, columns=width), b.part(k, 0, rows=width))
            self._elements("take", (c, made))

    def _product(self, c: Block, a: Block, b: Block) -> None:
        """A product whose rows are dense, for the whole batch."""
        left, right = ((At(x.slot, x.at * self.size), (*x.batch, x.row, x.column)) for x in (a, b))
        sides, out = (c.rows, c.columns, a.columns), At(c.slot, c.at * self.size)
        numbers = count()

        def area(nbytes: int) -> int:
            key = next(numbers), nbytes
            if key not in self._scratch:
                self._scratch[key] = self.area(nbytes)
            return self._scratch[key]

        self._steps += self._multiply(self.dtype, self.batch, sides, left, right, out, area)

    def _solve_leaf(self, t: Block, x: Block, unit: bool) -> None:
        if x.columns:
            grid = grid_of(self.count * x.columns)
            self._launch("solve", grid, THREADS, (x, t), int(unit))

    def _solve_below(self, left: Block, below: Block) -> None:
        """Of complex matrices the conjugate is found, and conjugated."""
        if self.dtype.is_complex:
            self.conjugate(below, below)
        super()._solve_below(left, below)
        if self.dtype.is_complex:
            self.conjugate(below, below)

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

    def copy(self, x: Block, out: Block, symmetric: bool = False) -> None:
        way = _SYMMETRIC if symmetric else _AS_IT_IS
        if symmetric and x.column != 1 and not self.dtype.is_complex:
            x = x.turned
        self._elements("copy", (out, x), way, 1, before=(At(self.status),))

    def permute(self, x: Block, out: Block, numbers: Block, back: bool) -> None:
        self._elements("permute", (out, x, numbers), int(back))

    def identity(self, a: Block) -> None:
        self._elements("identity", (a,))

    def require_regular(self, a: Block, error: int) -> None:
        status = self._area(8)
        self._clear(status, 8)
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
