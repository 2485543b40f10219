"""Factorisations and solutions of matrices by tiles; those of real ones have the bits of the CPU.

A matrix has a status: 0, or what was found about it; -1 is an element that is no finite number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pullback.compile.kernel.factor_order import MINORS
from pullback.compile.kernel.lower import broadcast_strides
from pullback.compile.program import matrices
from pullback.compile.program.nest import coalesce
from pullback.compile.program.queued_tiles import AS_IT_IS, QueuedTiles
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Fault, Place
from pullback.compile.program.tiles import TILED, Block
from pullback.core import dtypes as dt
from pullback.core.avals import Aval
from pullback.core.dtypes import DType
from pullback.runtime.webgpu.maps import zero_steps
from pullback.runtime.webgpu.matrix_kernels import kernel
from pullback.runtime.webgpu.nests import MAIN, THREADS, nest_words
from pullback.runtime.webgpu.printer import item
from pullback.runtime.webgpu.products import product_steps
from pullback.runtime.webgpu.stages import (
    At,
    Binding,
    Dispatch,
    fault_words,
    linear_groups,
    stage,
)

__all__ = ["NAMES", "Tiles", "matrix_faults", "matrix_stages", "report_steps"]

NAMES = (*TILED, "det", "cofactors")  # of the intrinsics


@cache
def _report_source(notes: bool) -> str:
    """Words: matrices, what the value is counted from, if not 0. Arrays: the words of the error,
    statuses. The first matrix with a status above 0 is found, then its value noted.
    """
    found = "let own = load1(i); let is_bad = bitcast<i32>(own) > 0 && load0(3u) == 0u;"
    note = """if (is_bad && load0(0u) == ~i) {
    store0(1u, select(own, arg(1u) - own, arg(1u) != 0u));
    store0(2u, 0u);
    store0(3u, 1u);
  }"""
    body = note if notes else "if (is_bad) { _ = max0(0u, ~i); }"
    return "\n".join([MAIN, f"  {found}", f"  {body}", "}"])


def report_steps(status: int, number: int, start: int, error: int) -> list[Dispatch]:
    """The dispatches that note an error about the first matrix with a status above 0; if `start` is
    not 0 its value is what is left of that.
    """
    arrays = (Binding(fault_words(error), "u32", "atomic"), Binding(At(status), "u32"))
    groups, words = linear_groups(number, THREADS), (number, start)
    find = Dispatch(_report_source(False), arrays, words, groups, checked=True)
    return [find, Dispatch(_report_source(True), arrays, words, groups)]


class Tiles(QueuedTiles[Dispatch]):
    """The dispatches of a factorisation, in the order in which they are asked for.

    `small`: the matrices of the batch are worked on undivided. With a `status`, what is found goes
    there.
    """

    status_bytes = 4

    def __init__(
        self,
        dtype: DType,
        batch: tuple[int, ...],
        area: Area,
        small: bool,
        status: int | None = None,
    ):
        super().__init__(dtype, batch, area, product_steps, status)
        self._small = small

    # -- memory ------------------------------------------------------------------------------------

    def _clear(self, slot: int, each: int) -> None:
        self._steps += zero_steps(dt.uint32, self.count * each // 4, slot)

    # -- dispatches --------------------------------------------------------------------------------

    def _launch(
        self,
        name: str,
        threads: int,
        blocks: tuple[Block, ...],
        *more: int,
        status: int | None = None,
        writes: bool = False,
        rounds: int = 0,
    ) -> None:
        """A kernel of `matrix_kernels` on the matrices of a batch, and their statuses."""
        if threads == 0:
            return
        nest = coalesce(self.batch, [b.batch for b in blocks])
        source, modes, whole = kernel(name, self.dtype, len(nest.shape), len(more))
        words = [threads, self.count]
        for b in blocks:
            words += [b.at, b.rows, b.columns, b.row, b.column]
        kind = item(self.dtype)
        arrays = [Binding(At(b.slot), kind, m) for b, m in zip(blocks, modes, strict=True)]
        if status is not None:
            arrays.append(Binding(At(status), "u32", "write" if writes else "read"))
        groups = self.count if whole else linear_groups(threads, THREADS)
        own = (*words, *more, *nest_words(nest))
        self._steps.append(Dispatch(source, tuple(arrays), own, groups, rounds=rounds))

    def _elements(self, name: str, blocks: tuple[Block, ...], *more: int, **status: Any) -> None:
        """A kernel with a thread for each element of the first block."""
        size = self.count * blocks[0].rows * blocks[0].columns
        self._launch(name, size, blocks, *more, **status)

    # -- steps -------------------------------------------------------------------------------------

    def dense_copy(self, operand: Place, looks: bool) -> int:
        """The slot of an operand's matrices, one after the other."""
        slot, av = operand
        assert av.strides is not None
        rows, columns = av.shape[-2:]
        *batch, row, column = broadcast_strides(av, (*self.batch, rows, columns))
        target = self.scratch(rows, columns)
        x = Block(slot, 0, rows, columns, row, column, tuple(batch))
        self._copied(x, target, AS_IT_IS, looks)
        return target.slot

    def _copied(self, x: Block, target: Block, way: int, looks: bool) -> None:
        self._elements("copy", (target, x), way, int(looks), status=self.status, writes=True)

    def _take_product(self, c: Block, product: Block) -> None:
        self._elements("take", (c, product))

    def solve(self, t: Block, x: Block, lower: bool, unit: bool) -> None:
        if self._small and not lower:  # rows of few elements are summed from left to right
            self._launch("upper", self.count * x.columns, (x, t), int(unit))
        else:
            super().solve(t, x, lower, unit)

    def _solve_leaf(self, t: Block, x: Block, unit: bool) -> None:
        self._launch("solve", self.count * x.columns, (x, t), int(unit))

    def _cholesky_leaf(self, a: Block, first: int) -> None:
        self._launch("cholesky", self.count, (a,), first, status=self.status, writes=True)

    def _lu_leaf(self, a: Block, swaps: Block, first: int) -> None:
        rounds = a.rows * a.columns // 10  # of 256 threads, of which each has rows and all columns
        self._launch("panel", self.count, (a, swaps), first, rounds=rounds)

    def _qr_leaf(self, a: Block, v: Block, t: Block) -> None:
        rounds = a.rows * v.columns // 4  # some 25 chains of 64 a column, half of them on average
        self._launch("reflect", self.count, (a, v, t), rounds=rounds)

    def _exchange(self, a: Block, swaps: Block, top: int, start: int, stop: int) -> None:
        self._launch("exchange", self.count * a.columns, (a, swaps), top, start, stop)

    def order(self, swaps: Block, n: int, count: int) -> None:
        self._launch("order", self.count, (swaps,), n, count, status=self.status)

    def permute(self, x: Block, out: Block, numbers: Block, back: bool) -> None:
        self._elements("permute", (out, x, numbers), int(back))

    def identity(self, a: Block) -> None:
        self._elements("identity", (a,))

    def require_regular(self, a: Block, error: int) -> None:
        status = self._clean_status()
        self._launch("regular", self.count, (a,), status=status, writes=True)
        self._steps += report_steps(status, self.count, 0, error)

    def trim(self, a: Block, side: int, error: int = 0) -> None:
        self._elements("trim", (a,), side, status=self.status)
        if error:
            self._steps += report_steps(self.status, self.count, 0, error)

    def determinant(self, packed: Place, out: Block) -> None:
        """The determinants from the results of `lu`."""
        self._launch("determinant", self.count, (out, self._readable(packed)))

    def cofactors(self, x: Place, packed: Place, out: Block) -> None:
        """The matrices of cofactors, by minors or from the results of `lu`."""
        n = out.columns
        if n <= MINORS:
            self._launch(f"minors{n}", self.count, (out, self._readable(x)))
        else:
            self._launch("cofactors", self.count * n, (out, self._readable(packed)))


def matrix_stages(
    name: str,
    operands: Sequence[Place],
    static: Mapping[str, Any],
    result: Place,
    area: Area,
    error: int,
) -> list[Stage]:
    """The stages of a primitive; the result is dense."""
    slot, out = result
    batch = matrices.batch_of(name, out)
    if out.size == 0 or math.prod(batch) == 0:
        return []
    small = matrices.is_small(name, [av for _, av in operands])
    tiles = Tiles(out.dtype, batch, area, small)
    if name == "det":
        tiles.determinant(operands[1], tiles.dense(slot, 0, 1, 1, 1))
    elif name == "cofactors":
        n = out.shape[-1]
        tiles.cofactors(operands[0], operands[1], tiles.dense(slot, 0, n, n, n * n))
    else:
        tiles.run(name, operands, static, result, error)
    return stage(*tiles.steps())


def matrix_faults(
    name: str, avals: Sequence[Aval], static: Mapping[str, Any], result: Aval
) -> list[tuple[str, Fault]]:
    """What its error code stands for."""
    return [matrices.failure(name, avals, static, result)]
