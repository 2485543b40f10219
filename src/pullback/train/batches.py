"""Rows of arrays in batches, shuffled by a key, one epoch after another."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from pullback.core import pytrees
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import from_numpy, to_numpy
from pullback.ops.indexing import take
from pullback.ops.random import fold_in, permutation

__all__ = ["batches"]


def batches(
    data: Any,
    size: int,
    *,
    key: Any = None,
    epochs: int | None = 1,
    start: int = 0,
    drop_last: bool = True,
    prefetch: int = 1,
) -> Iterator[Any]:
    """Trees of `size` rows each from a tree of arrays, epoch after epoch (None: without end).

    With a key each epoch has an order of its own, that of `fold_in(key, epoch)`; so batch number n
    is always the same, and `start=n` goes on there. NumPy arrays (memory-mapped ones too) are read
    `prefetch` batches ahead by a thread. Unless `drop_last`, an epoch may end with a shorter batch.

    >>> x, y = pb.arange(6), pb.arange(6) * 10
    >>> [b for _, b in pb.train.batches((x, y), 3)]
    [tensor([ 0, 10, 20], int64, cpu), tensor([30, 40, 50], int64, cpu)]
    """
    leaves, structure = pytrees.flatten(data)
    rows = _rows(leaves)
    for what, value in (("size", size), ("prefetch", prefetch), ("start", start)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise DTypeError(f"batches: {what} must be an integer, got {value!r}.")
    if key is not None:
        fold_in(key, 0)  # a key that is none is refused here, not at the first batch
    if size < 1 or prefetch < 0 or start < 0:
        raise ShapeError(
            "batches: size must be positive, prefetch and start not negative, got"
            f" {size}, {prefetch} and {start}."
        )
    each = rows // size if drop_last else -(-rows // size)
    if each == 0:
        raise ShapeError(f"batches: a batch of {size} rows does not fit in {rows} rows.")
    on_host = any(isinstance(x, np.ndarray) for x in leaves)

    def batch(epoch: int, order: Any, n: int) -> Any:
        chosen = slice(n * size, min((n + 1) * size, rows))
        index = None if order is None else order[chosen]
        return pytrees.unflatten(structure, [_taken(x, chosen, index) for x in leaves])

    def jobs() -> Iterator[tuple[int, Any, int]]:
        epoch, first = divmod(start, each)
        while epochs is None or epoch < epochs:
            order = None if key is None else permutation(fold_in(key, epoch), rows)
            for n in range(first, each):
                yield epoch, order, n
            epoch, first = epoch + 1, 0

    if not on_host or prefetch == 0:
        return (batch(*job) for job in jobs())
    return _ahead(batch, jobs(), prefetch)


def _rows(leaves: list[Any]) -> int:
    counts = {x.shape[0] if getattr(x, "ndim", 0) else -1 for x in leaves}
    if len(counts) != 1 or -1 in counts:
        shapes = [getattr(x, "shape", type(x).__name__) for x in leaves]
        raise ShapeError(f"batches: the arrays must have one number of rows, got shapes {shapes}.")
    return counts.pop()


def _taken(x: Any, chosen: slice, index: Any) -> Any:
    if isinstance(x, np.ndarray):
        found = x[chosen] if index is None else x[to_numpy(index)]
        return from_numpy(np.ascontiguousarray(found))
    return x[chosen] if index is None else take(x, index, axis=0)


def _ahead(batch: Any, jobs: Iterator[tuple], count: int) -> Iterator[Any]:
    """The batches of `jobs`, of which a thread makes `count` ahead of the one in use."""
    with ThreadPoolExecutor(1, thread_name_prefix="pullback-batches") as pool:
        waiting = []
        for job in jobs:
            waiting.append(pool.submit(batch, *job))
            if len(waiting) > count:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()
