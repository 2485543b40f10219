"""Memory, elements and expressions of the reference target: arrays of NumPy.

Buffers are arrays of bytes, a slot is a buffer and an offset, and the code of a stage is a Python
function of all slots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from pullback.compile.program.stages import Stage
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr, topological
from scalar_evaluator import _cast, _value

Array = np.ndarray
Slots = list[tuple[Array, int]]


class Found(Exception):
    """The first error of a stage: code, position and value."""


def values(roots: Sequence[Expr], leaf: Callable[[Expr], Array]) -> list[Array]:
    """Expressions over whole arrays; `leaf` knows loads, indices and accumulators."""
    known: dict[Expr, Array] = {}
    with np.errstate(all="ignore"):
        for root in roots:
            for e in topological(root, dict.fromkeys(known, 0)):
                if e.op in ("load", "index", "acc"):
                    known[e] = np.asarray(leaf(e))
                else:
                    known[e] = _value(e, [known[a] for a in e.args], ())
    return [known[r] for r in roots]


def part(x: Array, e: Expr) -> Array:
    """What a load takes of an operand."""
    if x.dtype.kind == "c":
        x = x.imag if e.value[1] else x.real  # type: ignore[index]
    return _cast(x, e.dtype.numpy)


def look(slots: Slots, slot: int, dtype: DType, shape: Sequence[int], strides: Any) -> Array:
    """An array in the memory of a slot; strides are in elements."""
    if math.prod(shape) == 0:
        return np.empty(tuple(shape), dtype.numpy)
    memory, at = slots[slot]
    first = np.ndarray((1,), dtype.numpy, memory.data, at)
    return as_strided(first, tuple(shape), [s * dtype.itemsize for s in strides])


def read(slots: Slots, kernel: Any, at: Any, shape: Any, strides: Any) -> list[Array]:
    """The inputs of a kernel."""
    return [
        look(slots, slot, dtype, shape, own)
        for slot, dtype, own in zip(at, kernel.inputs, strides, strict=True)
    ]


def put(target: Array, parts: Sequence[Array]) -> None:
    """Store the parts of elements."""
    with np.errstate(all="ignore"):
        if target.dtype.kind == "c":
            target.real, target.imag = parts
        else:
            target[...] = _cast(np.broadcast_to(parts[0], target.shape), target.dtype)


def stage(run: Callable[[Slots], None]) -> list[Stage]:
    return [Stage(run, 1, 1, ())]  # type: ignore[arg-type]


def places(slots: Slots, kernel: Any, shape: Any, indices: Any) -> Array:
    """The offsets that indices stand for, in elements; checked."""
    total = np.zeros(shape, np.int64)
    bad: list[tuple[int, int, int]] = []
    given = zip(indices.slots, kernel.indices, indices.strides, indices.axes, strict=True)
    for k, (slot, dtype, strides, (size, step)) in enumerate(given):
        index = look(slots, slot, dtype, shape, strides).astype(np.int64)
        wrong = np.flatnonzero((index < -size) | (index >= size))
        bad += [(int(w), indices.first_code + k, int(index.reshape(-1)[w])) for w in wrong[:1]]
        total += np.where(index < 0, index + size, index) * step
    if bad:
        position, code, value = min(bad)
        raise Found(code, position, value)
    return total


def spread(shape: Sequence[int], strides: Sequence[int]) -> Array:
    """The offset of every element of a strided array."""
    grids = np.indices(tuple(shape)) if len(shape) else np.zeros((0,), np.int64)
    return sum((g * s for g, s in zip(grids, strides, strict=True)), np.zeros(shape, np.int64))


def split(x: Array) -> list[Array]:
    """The real parts that make up elements."""
    return [np.real(x), np.imag(x)] if x.dtype.kind == "c" else [x]


def product(a: Array, b: Array) -> Array:
    """A product in a wider dtype."""
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    kind = wide if a.dtype.kind in "fcV" else a.dtype
    with np.errstate(all="ignore"):
        return (a.astype(kind) @ b.astype(kind)).astype(a.dtype)
