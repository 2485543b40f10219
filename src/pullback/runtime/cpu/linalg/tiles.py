"""The steps of tiled factorisations as stages: leaves, products, copies.

Every step is a stage that threads share; a batch that gives each of them matrices of its own goes
through all steps matrix by matrix instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import SupportsIndex

from pullback.compile.kernel.factor_order import VECTOR_BYTES
from pullback.compile.kernel.lower import copy_kernel
from pullback.compile.program.tiles import Block, TiledSteps
from pullback.core.dtypes import DType
from pullback.runtime.cpu import native
from pullback.runtime.cpu.gemm import copy_code, panel_gemm
from pullback.runtime.cpu.gemm.cut import cut_of, task_tiles
from pullback.runtime.cpu.gemm.matmul import grain_of
from pullback.runtime.cpu.linalg import reflection_kernels, tile_kernels, tile_moves
from pullback.runtime.cpu.llvm.builder import index_params
from pullback.runtime.cpu.loops import map_stages
from pullback.runtime.cpu.native import Stage
from pullback.runtime.cpu.native.stages import LOCAL_BYTES, rows_stage

__all__ = ["Tiles"]
__tuning__ = ("_ROUNDS", "_COPIED", "_SWAPPED", "_SIDE")

_ROUNDS = 4  # matrices for each thread, from which on it does not matter that the last ones wait
_CALL = 1 / 1000  # of a task is what calling a kernel costs: some tens of nanoseconds
_LINE = 64  # bytes at whose multiples local areas begin
_COPIED = 1 << 15  # elements of a task that copies: some microseconds
_SWAPPED = 1 << 12  # exchanges of a task: some microseconds
_SIDE = 256  # columns of a tile of a triangle: those beyond the diagonal are made for nothing


class Tiles(TiledSteps):
    """The stages of a factorisation, in the order in which they are asked for."""

    def __init__(self, dtype: DType, batch: tuple[int, ...], area: Callable[[int], int]):
        super().__init__(dtype, batch, area)
        self._head: list[Stage] = []
        self._stages: list[Stage] = []
        self._local: list[tuple[int, int]] = []  # areas of one matrix: slots and bytes
        self._tasks = 0.0  # that the work for a matrix would make
        threads = native.get_threads()
        shared = self.count == 1 or (self.count % threads and self.count < _ROUNDS * threads)
        self._alone = not shared  # whether a thread has all of a matrix
        self.status = self._area(8)
        self._clear(self.status, 8)

    def stages(self) -> list[Stage]:
        """All of them; of a batch, as one that goes through matrix after matrix, if that leaves no
        thread without work for long.
        """
        if not self._alone:
            return [*self._head, *self._stages]
        grain = max(1, min(int(1 / self._tasks), self.count // (_ROUNDS * native.get_threads())))
        return [*self._head, rows_stage(self._stages, self.count, 1, grain, self._local)]

    def _area(self, nbytes: int) -> int:
        """The slot of scratch memory with so many bytes for each matrix."""
        room = LOCAL_BYTES - sum(-(-n // _LINE) * _LINE for _, n in self._local)
        if not self._alone or nbytes + _LINE > room:
            return self.area(self.count * nbytes)
        slot = self.area(0)
        self._local.append((slot, nbytes))
        return slot

    def _clear(self, slot: int, each: int) -> None:
        self._stages.append(copy_code.zero_stage(slot, self.count * each))

    def take(self, x: Block, target: Block) -> None:
        """Copies all matrices of a batch before anything else is done."""
        shape = (*self.batch, x.rows, x.columns)
        steps = [(*b.batch, b.row, b.column) for b in (target, x)]
        self._head += map_stages.map_stages(
            copy_kernel(self.dtype), shape, [target.slot], steps[:1], [x.slot], steps[1:]
        )

    # -- steps -----------------------------------------------------------------------------------

    def _stage(
        self, code: int, each: int, grain: int, params: Sequence[SupportsIndex], *blocks: Block
    ):
        """A stage with `each` units for a matrix, in tasks of `grain`."""
        steps = [[s * self.size for s in block.batch] for block in blocks]
        params = (*params, *index_params(self.batch, *steps))
        self._tasks += each / max(1, grain) + _CALL
        self._stages.append(Stage(code, self.count * each, max(1, grain), params))

    def bytes(self, **elements: int) -> dict[str, int]:
        """Numbers of elements as bytes, by the names that params have for them."""
        return {name: n * self.size for name, n in elements.items()}

    def multiply(self, c: Block, a: Block, b: Block, minus: bool, lower: bool = False) -> None:
        """c = a b, or c -= a b; with `lower` only what is not above the diagonal is wanted."""
        if 0 in (c.rows, c.columns):
            return
        if c.column != 1:
            c, a, b = c.turned, b.turned, a.turned
        shape, threads = (c.rows, c.columns, a.columns), native.get_threads()
        cut = cut_of(self.dtype, *shape, self.count, threads)
        if lower:
            cut = cut._replace(rows=min(_SIDE, c.rows))
        across, tiles = -(-c.columns // cut.columns), cut.tiles(c.rows, c.columns)
        params = panel_gemm.PLACED.packed(
            a=a.slot, b=b.slot, out=c.slot, m=c.rows, n=c.columns, k=a.columns, all_k=0,
            tile_m=cut.rows, tile_n=cut.columns, tiles=tiles, across=across, lower=int(lower),
            **self.bytes(
                a_row=a.row, a_column=a.column, b_row=b.row, b_column=b.column,
                out_row=c.row, a_at=a.at, b_at=b.at, out_at=c.at,
            ),
        )  # fmt: skip
        code = panel_gemm.placed_kernel(self.dtype, minus)
        grain = task_tiles(cut, a.columns, self.count * tiles, threads)
        self._stage(code, tiles, grain, params, a, b, c)

    def _solve_leaf(self, t: Block, x: Block, unit: bool) -> None:
        if x.columns == 0:
            return
        groups = -(-x.columns * self.size // VECTOR_BYTES)
        params = tile_kernels.TRIANGLE.packed(
            t=t.slot, x=x.slot, n=t.rows, count=x.columns, groups=groups, unit=int(unit),
            **self.bytes(
                t_at=t.at, t_row=t.row, t_column=t.column, x_at=x.at, x_row=x.row, x_column=x.column
            ),
        )  # fmt: skip
        code = tile_kernels.triangle_kernel(self.dtype)
        work = t.rows * t.rows * VECTOR_BYTES // self.size
        self._stage(code, groups, grain_of(2 * work), params, t, x)

    def _cholesky_leaf(self, a: Block, first: int) -> None:
        n = a.rows
        params = tile_kernels.CHOLESKY.packed(
            a=a.slot, status=self.status, n=n, first=first, **self.bytes(at=a.at, row=a.row)
        )
        self._stage(tile_kernels.cholesky_kernel(self.dtype), 1, grain_of(n**3), params, a)

    def _lu_leaf(self, a: Block, swaps: Block, first: int) -> None:
        params = tile_kernels.PANEL.packed(
            a=a.slot, swaps=swaps.slot, m=a.rows, n=a.columns, first=first,
            **self.bytes(at=a.at, column=a.column, swaps_at=swaps.at),
        )  # fmt: skip
        grain = grain_of(2 * a.rows * a.columns**2)
        self._stage(tile_kernels.panel_kernel(self.dtype), 1, grain, params, a, swaps)

    def _exchange(self, a: Block, swaps: Block, top: int, start: int, stop: int) -> None:
        """Exchanges rows as `swaps` say of steps `start` to `stop`; a begins with row `top`."""
        if a.columns == 0 or start == stop:
            return
        column = a._replace(at=a.at - top)
        code = tile_moves.exchange_kernel(self.dtype)
        params = tile_moves.EXCHANGE.packed(
            a=a.slot, swaps=swaps.slot, columns=a.columns, first=start, last=stop,
            **self.bytes(column=a.column, at=column.at, swaps_at=swaps.at),
        )  # fmt: skip
        self._stage(code, a.columns, _SWAPPED // (stop - start), params, a, swaps)

    def order(self, swaps: Block, n: int, count: int) -> None:
        """The permutation, behind the exchanges."""
        params = tile_moves.ORDER.packed(
            out=swaps.slot, status=self.status, n=n, count=count, **self.bytes(at=swaps.at)
        )
        self._stage(tile_moves.order_kernel(self.dtype), 1, _SWAPPED // max(1, n), params, swaps)

    def _qr_leaf(self, a: Block, v: Block, t: Block) -> None:
        n = v.columns
        params = reflection_kernels.HOUSEHOLDER.packed(
            a=a.slot, v=v.slot, t=t.slot, m=a.rows, n=n,
            **self.bytes(
                at=a.at, column=a.column, v_at=v.at, v_column=v.column, t_at=t.at, t_row=t.row
            ),
        )  # fmt: skip
        code = reflection_kernels.householder_kernel(self.dtype)
        self._stage(code, 1, grain_of(6 * a.rows * n * n), params, a, v, t)

    # -- before and after ------------------------------------------------------------------------

    def copy(self, x: Block, out: Block, symmetric: bool = False) -> None:
        """x, which begins a matrix and has dense rows or columns, to dense rows; with `symmetric`
        the lower triangle of (x + x^T) / 2.
        """
        if symmetric and x.column != 1:
            x = x.turned
        bands = -(-x.rows * self.size // VECTOR_BYTES)
        params = tile_moves.COPY.packed(
            x=x.slot, out=out.slot, status=self.status, m=x.rows, n=x.columns, bands=bands,
            **self.bytes(x_row=x.row, x_column=x.column, out_row=out.row, out_at=out.at),
        )  # fmt: skip
        code = tile_moves.copy_kernel(self.dtype, symmetric)
        grain = _COPIED * bands // max(1, x.rows * x.columns)
        self._stage(code, bands, grain, params, x, out)

    def permute(self, x: Block, out: Block, numbers: Block, back: bool) -> None:
        """Row i of `out` is the row of x that number i says, or the other way round."""
        params = tile_moves.PERMUTE.packed(
            x=x.slot, out=out.slot, numbers=numbers.slot, n=x.rows, k=x.columns, back=int(back),
            **self.bytes(x_row=x.row, x_column=x.column, numbers_at=numbers.at),
        )  # fmt: skip
        code = tile_moves.permute_kernel(self.dtype)
        self._stage(code, x.rows, _COPIED // max(1, x.columns), params, x, out, numbers)

    def identity(self, a: Block) -> None:
        """Ones on the diagonal of a block with dense rows, and zeros."""
        code = tile_moves.identity_kernel(self.dtype)
        grain = _COPIED // max(1, a.columns)
        params = tile_moves.IDENTITY.packed(out=a.slot, rows=a.rows, columns=a.columns)
        self._stage(code, a.rows, grain, params, a)

    def require_regular(self, a: Block, error: int) -> None:
        """An error about a matrix with a 0 on the diagonal."""
        step = self.bytes(step=a.row + a.column)
        params = tile_moves.REGULAR.packed(a=a.slot, n=a.rows, **step, code=error)
        grain = _COPIED // max(1, a.rows)
        self._stage(tile_moves.regular_kernel(self.dtype), 1, grain, params, a)

    def trim(self, a: Block, side: int, error: int = 0) -> None:
        """Clears what is above (1) or below (-1) the diagonal, nothing (0); what was found about a
        matrix becomes NaN or an error.
        """
        params = tile_moves.TRIM.packed(
            out=a.slot, status=self.status, rows=a.rows, columns=a.columns,
            **self.bytes(at=a.at, row=a.row), side=side, code=error,
        )  # fmt: skip
        grain = _COPIED // max(1, a.columns)
        self._stage(tile_moves.trim_kernel(self.dtype), a.rows, grain, params, a)
