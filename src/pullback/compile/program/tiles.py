"""Factorisations and solutions of matrices by tiles: blocks of a matrix are taken apart by halves
down to leaves, and all else is products.

How a matrix is divided depends on its size alone, and so do the bits. A target says what a leaf,
a product and a copy are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pullback.compile.kernel.factor_order import LEAF, PANEL, first_half
from pullback.compile.kernel.lower import broadcast_strides
from pullback.compile.program.target import Place
from pullback.core.dtypes import DType

__all__ = ["TILED", "Block", "TiledSteps"]


class Block(NamedTuple):
    """A part of the matrices of a batch: a slot, where it begins, its size and strides; all count
    elements.
    """

    slot: int
    at: int
    rows: int
    columns: int
    row: int
    column: int
    batch: tuple[int, ...]

    def part(self, i: int, j: int, rows: int | None = None, columns: int | None = None) -> Block:
        """The block from row i and column j on, to the end if no size is given."""
        rows = self.rows - i if rows is None else rows
        columns = self.columns - j if columns is None else columns
        at = self.at + i * self.row + j * self.column
        return self._replace(at=at, rows=rows, columns=columns)

    @property
    def turned(self) -> Block:
        """The transpose."""
        rows, columns, row, column = self.columns, self.rows, self.column, self.row
        return self._replace(rows=rows, columns=columns, row=row, column=column)

    @property
    def flipped(self) -> Block:
        """The last row first."""
        return self._replace(at=self.at + (self.rows - 1) * self.row, row=-self.row)


class TiledSteps(ABC):
    """The steps of a factorisation, in the order in which they are asked for.

    Of complex matrices, `adjoint` is the conjugate transpose; what is said of transposes is said of
    it.
    """

    def __init__(self, dtype: DType, batch: tuple[int, ...], area: Callable[[int], int]):
        self.dtype, self.batch, self.area = dtype, batch, area
        self.size, self.count = dtype.itemsize, math.prod(batch)
        self._rooms: tuple[int, int, int] = (0, 0, 0)

    def run(
        self,
        name: str,
        operands: Sequence[Place],
        static: Mapping[str, Any],
        out: Place,
        error: int,
    ) -> None:
        """All steps of a primitive, whose result is dense."""
        slot, av = out
        blocks = [self._readable(operand) for operand in operands]
        each = av.size // self.count
        flat = len(av.shape) != len(self.batch) + 2
        rows, columns = (1, each) if flat else av.shape[-2:]
        TILED[name](self, blocks, self.dense(slot, 0, rows, columns, each), static, error)

    def _readable(self, operand: Place) -> Block:
        """The matrices of an operand: their rows or columns are dense."""
        slot, av = operand
        assert av.strides is not None
        rows, columns = av.shape[-2:]
        *batch, row, column = broadcast_strides(av, (*self.batch, rows, columns))
        block = Block(slot, 0, rows, columns, row, column, tuple(batch))
        return block if 1 in (row, column) else self.taken(block)

    # -- memory ------------------------------------------------------------------------------------

    @abstractmethod
    def _area(self, nbytes: int) -> int:
        """The slot of scratch memory with so many bytes for each matrix."""

    @abstractmethod
    def _clear(self, slot: int, each: int) -> None:
        """Zeros in so many bytes of each matrix."""

    def dense(self, slot: int, at: int, rows: int, columns: int, each: int) -> Block:
        """Dense rows from an element on; a matrix of the batch has `each` elements."""
        steps = [each * math.prod(self.batch[d + 1 :]) for d in range(len(self.batch))]
        return Block(slot, at, rows, columns, columns, 1, tuple(steps))

    def scratch(self, rows: int, columns: int, clear: bool = False) -> Block:
        """Memory of its own for a dense block."""
        size = rows * columns
        slot = self._area(size * self.size)
        if clear:
            self._clear(slot, size * self.size)
        return self.dense(slot, 0, rows, columns, size)

    def make_rooms(self, elements: int) -> None:
        """Memory for products that are needed for a moment."""
        nbytes = elements * self.size
        self._rooms = self._area(nbytes), self._area(nbytes), elements

    def _room(self, which: int, rows: int, columns: int) -> Block:
        return self.dense(self._rooms[which], 0, rows, columns, self._rooms[2])

    def taken(self, x: Block) -> Block:
        """A copy with dense rows, made before anything else is done."""
        size = x.rows * x.columns
        target = self.dense(self.area(self.count * size * self.size), 0, x.rows, x.columns, size)
        self.take(x, target)
        return target

    # -- what a target has kernels for -------------------------------------------------------------

    @abstractmethod
    def take(self, x: Block, target: Block) -> None:
        """Copies all matrices of a batch before anything else is done."""

    def adjoint(self, x: Block) -> Block:
        """The transpose, conjugated if x is complex."""
        return x.turned

    @abstractmethod
    def multiply(self, c: Block, a: Block, b: Block, minus: bool, lower: bool = False) -> None:
        """c = a b, or c -= a b; with `lower` only what is not above the diagonal is wanted."""

    @abstractmethod
    def _solve_leaf(self, t: Block, x: Block, unit: bool) -> None:
        """X of T X = B in place of B, for a lower triangle of at most LEAF rows."""

    @abstractmethod
    def _cholesky_leaf(self, a: Block, first: int) -> None:
        """See `cholesky`, of at most LEAF rows."""

    @abstractmethod
    def _lu_leaf(self, a: Block, swaps: Block, first: int) -> None:
        """See `lu`, of at most LEAF columns."""

    @abstractmethod
    def _qr_leaf(self, a: Block, v: Block, t: Block) -> None:
        """See `qr`, of at most LEAF columns."""

    @abstractmethod
    def _exchange(self, a: Block, swaps: Block, top: int, start: int, stop: int) -> None:
        """Exchanges rows as `swaps` say of steps `start` to `stop`; a begins with row `top`."""

    @abstractmethod
    def order(self, swaps: Block, n: int, count: int) -> None:
        """The permutation, behind the exchanges."""

    @abstractmethod
    def copy(self, x: Block, out: Block, symmetric: bool = False) -> None:
        """x, which begins a matrix and has dense rows or columns, to dense rows; with `symmetric`
        the lower triangle of (x + x^T) / 2.
        """

    @abstractmethod
    def permute(self, x: Block, out: Block, numbers: Block, back: bool) -> None:
        """Row i of `out` is the row of x that number i says, or the other way round."""

    @abstractmethod
    def identity(self, a: Block) -> None:
        """Ones on the diagonal of a block with dense rows, and zeros."""

    @abstractmethod
    def require_regular(self, a: Block, error: int) -> None:
        """An error about a matrix with a 0 on the diagonal."""

    @abstractmethod
    def trim(self, a: Block, side: int, error: int = 0) -> None:
        """Clears what is above (1) or below (-1) the diagonal, nothing (0); what was found about a
        matrix becomes NaN or an error.
        """

    # -- by halves ---------------------------------------------------------------------------------

    def solve(self, t: Block, x: Block, lower: bool, unit: bool) -> None:
        """X of T X = B in place of B; its rows are dense, or its columns if T is lower."""
        n, h = t.rows, first_half(t.rows)
        if n <= LEAF:
            if lower:
                self._solve_leaf(t, x, unit)
            else:
                self._solve_leaf(t.flipped.turned.flipped.turned, x.flipped, unit)
            return
        first, last = (t.part(0, 0, h, h), x.part(0, 0, h)), (t.part(h, h), x.part(h, 0))
        if lower:
            self.solve(*first, lower, unit)
            self.multiply(last[1], t.part(h, 0, columns=h), first[1], minus=True)
            self.solve(*last, lower, unit)
        else:
            self.solve(*last, lower, unit)
            self.multiply(first[1], t.part(0, h, rows=h), last[1], minus=True)
            self.solve(*first, lower, unit)

    def cholesky(self, a: Block, first: int = 0) -> None:
        """L in place of the lower triangle of A, whose rows are dense; `first` is the number of its
        first row.
        """
        n, h = a.rows, first_half(a.rows)
        if n <= LEAF:
            self._cholesky_leaf(a, first)
            return
        left, below, rest = a.part(0, 0, h, h), a.part(h, 0, columns=h), a.part(h, h)
        self.cholesky(left, first)
        self._solve_below(left, below)
        self.multiply(rest, below, self.adjoint(below), minus=True, lower=True)
        self.cholesky(rest, first + h)

    def _solve_below(self, left: Block, below: Block) -> None:
        """X of X L^T = B in place of B."""
        self.solve(left, below.turned, lower=True, unit=False)

    def lu(self, a: Block, swaps: Block, first: int = 0) -> None:
        """L and U in place of A, whose columns are dense and are those of the matrix from row and
        column `first` on; the numbers of exchanged rows at `swaps`.
        """
        rows = min(a.rows, a.columns)
        if a.columns <= LEAF and a.columns <= a.rows:
            self._lu_leaf(a, swaps, first)
            return
        h = first_half(rows) if a.columns <= a.rows else rows
        left, right = a.part(0, 0, columns=h), a.part(0, h)
        self.lu(left, swaps, first)
        self._exchange(right, swaps, first, first, first + h)
        self.solve(left.part(0, 0, h), right.part(0, 0, h), lower=True, unit=True)
        self.multiply(right.part(h, 0), left.part(h, 0), right.part(0, 0, h), minus=True)
        if h < rows:
            self.lu(right.part(h, 0), swaps, first + h)
            self._exchange(left, swaps, first, first + h, first + rows)

    def qr(self, a: Block, v: Block, t: Block) -> None:
        """R in place of the upper triangle of A, the reflections in V and T, which is clear: of A's
        columns, which are dense, as many are taken as V has.
        """
        n, h = v.columns, first_half(v.columns)
        if n <= LEAF:
            self._qr_leaf(a, v, t)
            return
        left, right = v.part(0, 0, columns=h), v.part(h, h)
        first, last, corner = t.part(0, 0, h, h), t.part(h, h), t.part(0, h, rows=h)
        self.qr(a, left, first)
        self.reflect(a.part(0, h, columns=n - h), left, self.adjoint(first))
        self.qr(a.part(h, h), right, last)
        inner, outer = (self._room(k, h, n - h) for k in (0, 1))
        self.multiply(inner, self.adjoint(left.part(h, 0)), right, minus=False)
        self.multiply(outer, inner, last, minus=False)
        self.multiply(corner, first, outer, minus=True)

    def reflect(self, c: Block, v: Block, t: Block) -> None:
        """c -= V T V^T c."""
        if c.columns == 0:
            return
        one, two = (self._room(k, v.columns, c.columns) for k in (0, 1))
        self.multiply(one, self.adjoint(v), c, minus=False)
        self.multiply(two, t, one, minus=False)
        self.multiply(c, v, two, minus=True)


def _cholesky(
    tiles: TiledSteps, operands: Sequence[Block], out: Block, static: Mapping[str, Any], error: int
) -> None:
    tiles.copy(operands[0], out, symmetric=True)
    tiles.cholesky(out)
    tiles.trim(out, 1, error)


def _solve_triangular(
    tiles: TiledSteps, operands: Sequence[Block], out: Block, static: Mapping[str, Any], error: int
) -> None:
    a, b = operands
    if not static["unit_diagonal"]:
        tiles.require_regular(a, error)
    tiles.take(b, out)
    tiles.solve(a, out, static["lower"], static["unit_diagonal"])


def _lu(
    tiles: TiledSteps, operands: Sequence[Block], out: Block, static: Mapping[str, Any], error: int
) -> None:
    x = operands[0].turned
    columns, rows = x.rows, x.columns
    packed, swaps = out.part(0, 0, rows=columns), out.part(columns, 0)
    tiles.copy(x, packed)
    tiles.lu(packed.turned, swaps)
    tiles.trim(packed, 0)
    tiles.order(swaps, rows, min(rows, columns))


def _lu_solve(
    tiles: TiledSteps, operands: Sequence[Block], out: Block, static: Mapping[str, Any], error: int
) -> None:
    _, b, f = operands
    n = b.rows
    both, numbers = f.part(0, 0, rows=n).turned, f.part(n + 1, 0)
    tiles.require_regular(both, error)
    if static["adjoint"]:
        x, across = tiles.taken(b), tiles.adjoint(both)
        tiles.solve(across, x, lower=True, unit=False)
        tiles.solve(across, x, lower=False, unit=True)
        tiles.permute(x, out, numbers, back=True)
    else:
        tiles.permute(b, out, numbers, back=False)
        tiles.solve(both, out, lower=True, unit=True)
        tiles.solve(both, out, lower=False, unit=False)


def _qr(
    tiles: TiledSteps, operands: Sequence[Block], out: Block, static: Mapping[str, Any], error: int
) -> None:
    x = operands[0]
    m, n = x.rows, x.columns
    k = min(m, n)
    q = m if static["complete"] else k
    packed = tiles.scratch(n, m)
    tiles.copy(x.turned, packed)
    a, v = packed.turned, tiles.scratch(k, m, clear=True).turned
    widest = min(PANEL, k)
    ts = tiles.scratch(k, widest, clear=True)
    tiles.make_rooms(widest * max(n, q))
    panels = []
    for c in range(0, k, PANEL):
        w = min(PANEL, k - c)
        panels.append((c, v.part(c, c, columns=w), ts.part(c, 0, w, w)))
    for c, vectors, t in panels:
        tiles.qr(a.part(c, c), vectors, t)
        tiles.reflect(a.part(c, c + vectors.columns), vectors, tiles.adjoint(t))
    left = out._replace(rows=q, columns=m, row=m)
    right = out._replace(at=out.at + q * m, rows=q, columns=n, row=n)
    tiles.identity(left)
    for c, vectors, t in reversed(panels):
        tiles.reflect(left.turned.part(c, c), vectors, t)
    tiles.copy(a.part(0, 0, rows=q), right)
    tiles.trim(left, 0)
    tiles.trim(right, -1)


Make = Callable[[TiledSteps, Sequence[Block], Block, Mapping[str, Any], int], None]
TILED: Mapping[str, Make] = {
    "cholesky": _cholesky,
    "solve_triangular": _solve_triangular,
    "lu": _lu,
    "lu_solve": _lu_solve,
    "qr": _qr,
}
