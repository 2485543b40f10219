"""What can be known of indices before values come: a stable order of them, or chunks."""

from __future__ import annotations

from typing import Any

from pullback.runtime.cuda.scatter.chunks import chunk_buffers, chunk_plan_recipe
from pullback.runtime.cuda.scatter.executor import (
    Array,
    IndexReport,
    cupy_module,
    program,
    shared_limit,
)
from pullback.runtime.cuda.scatter.ordered import order_buffers, order_recipe
from pullback.runtime.cuda.scatter.recipes import Case, Recipe

__all__ = ["Kept", "SortedIndices"]


class Kept:
    """Buffers in one allocation, by name."""

    def __init__(self, sizes: dict[str, int]):
        places, total = {}, 0
        for name, size in sizes.items():
            places[name] = total
            total += -(-size // 512) * 512
        self.nbytes = total
        self._memory = cupy_module().cuda.alloc(total)
        self.addresses = {name: self._memory.ptr + at for name, at in places.items()}


class SortedIndices:
    """Indices and what was derived from them; the indices must not change while it is used.

    An order serves wide rows and every fold, chunks serve exact sums of narrow rows: each is made
    when a call first needs it, on that call's stream.
    """

    def __init__(self, indices: Array, rows: int):
        self.indices, self.rows, self.count = indices, rows, int(indices.size)
        self._kept: dict[object, tuple[Kept, IndexReport, Any]] = {}

    @property
    def size(self) -> int:
        """Rows of the destination."""
        return self.rows

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that the plan holds, besides the indices."""
        return sum(kept.nbytes for kept, _, _ in self._kept.values())

    def order(self, call: IndexReport) -> dict[str, int]:
        """The buffers of a stable order, for a call."""
        if "order" not in self._kept:
            shared = shared_limit(call.device)
            recipe = order_recipe(self.indices.dtype.name, self.count, self.rows, shared)
            self._make("order", order_buffers(self.count), recipe)
        return self._use("order", call)

    def chunks(self, case: Case, call: IndexReport) -> dict[str, int]:
        """The buffers of chunks for a call."""
        key = case.item_bytes, case.shared
        if key not in self._kept:
            self._make(key, chunk_buffers(case), chunk_plan_recipe(case))
        return self._use(key, call)

    def _make(self, key: object, sizes: dict[str, int], recipe: Recipe) -> None:
        kept, checked = Kept(sizes), IndexReport("scatter_plan", self.indices, self.rows)
        places = {"index": self.indices.data.ptr, "aligned": int(self.indices.data.ptr % 16 == 0)}
        checked.run(program(recipe, checked.device), places | kept.addresses)
        self._kept[key] = kept, checked, checked.stream.record()

    def _use(self, key: object, call: IndexReport) -> dict[str, int]:
        kept, made, event = self._kept[key]
        if made.stream.ptr != call.stream.ptr:
            call.stream.wait_event(event)
        call.follow(made)
        return kept.addresses
