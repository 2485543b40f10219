"""Steps of tiled factorisations on targets that launch them one after the other.

A product that is taken from a matrix is made chunk by chunk of the order, and each is taken when
it is made.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Generic, TypeVar

from pullback.compile.kernel.order import CHUNK
from pullback.compile.program.products import ProductKernels
from pullback.compile.program.stages import At
from pullback.compile.program.target import Area, Place
from pullback.compile.program.tiles import Block, TiledSteps
from pullback.core.dtypes import DType

__all__ = ["AS_IT_IS", "CONJUGATED", "SYMMETRIC", "QueuedTiles"]

AS_IT_IS, SYMMETRIC, CONJUGATED = range(3)  # ways of a copy
S = TypeVar("S")  # a step of the target


class QueuedTiles(TiledSteps, Generic[S]):
    """The steps of a factorisation, in the order in which they are asked for.

    A matrix has a status, in `status_bytes`: 0, or what was found about it.
    """

    status_bytes: int

    def __init__(
        self,
        dtype: DType,
        batch: tuple[int, ...],
        area: Area,
        products: ProductKernels[S],
        status: int | None = None,
    ):
        super().__init__(dtype, batch, area)
        self._multiply = products
        self._scratch: dict[tuple[int, int], int] = {}  # of products, one after the other
        self._head: list[S] = []
        self._steps: list[S] = []
        self._largest = 0  # elements of a matrix that a product is taken from, at most
        self._made: int | None = None  # the slot of such products
        self.status = self._clean_status() if status is None else status

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

    def steps(self) -> list[S]:
        return [*self._head, *self._steps]

    # -- what a target has kernels for -------------------------------------------------------------

    @abstractmethod
    def _copied(self, x: Block, target: Block, way: int, looks: bool) -> None:
        """A copy; `looks`: an element that is no finite number gives a status of -1."""

    @abstractmethod
    def _take_product(self, c: Block, product: Block) -> None:
        """Subtract from a matrix."""

    # -- memory ------------------------------------------------------------------------------------

    def _area(self, nbytes: int) -> int:
        return self.area(self.count * nbytes)

    def _clean_status(self) -> int:
        """The slot of statuses that are 0."""
        slot = self._area(self.status_bytes)
        self._clear(slot, self.status_bytes)
        return slot

    def _room(self, which: int, rows: int, columns: int) -> Block:
        """Dense for the whole batch, as products are."""
        return self.dense(self._rooms[which], 0, rows, columns, rows * columns)

    # -- steps -------------------------------------------------------------------------------------

    def take(self, x: Block, target: Block) -> None:
        before, self._steps = self._steps, []
        self._copied(x, target, AS_IT_IS, False)
        self._head += self._steps
        self._steps = before

    def copy(self, x: Block, out: Block, symmetric: bool = False) -> None:
        if symmetric and x.column != 1 and not self.dtype.is_complex:
            x = x.turned
        self._copied(x, out, SYMMETRIC if symmetric else AS_IT_IS, True)

    def conjugate(self, x: Block, target: Block) -> None:
        """A conjugated copy; in place if both are the same."""
        self._copied(x, target, CONJUGATED, False)

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
            self._take_product(c, made)

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

    def _solve_below(self, left: Block, below: Block) -> None:
        """Of complex matrices the conjugate is found, and conjugated."""
        if self.dtype.is_complex:
            self.conjugate(below, below)
        super()._solve_below(left, below)
        if self.dtype.is_complex:
            self.conjugate(below, below)
