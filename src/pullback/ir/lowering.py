"""How an operation is computed, said without naming a device.

`compile` turns these into kernels or calls of intrinsics; every runtime then prints or calls the
same thing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from pullback.core import dtypes as dt
from pullback.core.avals import Aval
from pullback.core.dtypes import DType
from pullback.ir.scalar import Complex, Expr, Value, cast, load

__all__ = [
    "Boxes",
    "Elementwise",
    "Fold",
    "GatherRows",
    "Intrinsic",
    "Lowering",
    "Placement",
    "ScatterRows",
    "View",
    "compute_dtype",
    "operand",
    "parts",
]


def compute_dtype(dtype: DType) -> DType:
    """The dtype of the expressions that stand for (a part of) an element."""
    part = dtype.real
    return dt.float32 if part is dt.float16 or part is dt.bfloat16 else part


@lru_cache(1024)
def operand(position: int, dtype: DType) -> Value:
    """The expression that reads one element of an operand."""
    if dtype.is_complex:
        return Complex(load(position, dtype.real, 0), load(position, dtype.real, 1))
    return cast(load(position, dtype), compute_dtype(dtype))


def parts(value: Value) -> tuple[Expr, ...]:
    """The real expressions that make up a value."""
    return (value.re, value.im) if isinstance(value, Complex) else (value,)


@dataclass(frozen=True)
class Elementwise:
    """`body(*operands, **static)` for each element, operands broadcast to the output's shape.

    Operands arrive as expressions of their compute dtype: float32 for float16 and bfloat16,
    `Complex` pairs for complex. A body without operands uses `scalar.index()`.
    """

    body: Callable[..., Value]


class Reduction(NamedTuple):
    """Accumulators of a fold: see `compile.kernel.Reduce`."""

    init: tuple[Expr, ...]
    element: tuple[Expr, ...]
    combine: tuple[Expr, ...]
    finish: tuple[Expr, ...]
    step: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class Fold:
    """A reduction over static `axes`, or with `keep` a running fold along static `axis` (optionally
    `reverse`).

    `build(element_value, compute_dtype, **static)` gives the accumulators.
    """

    build: Callable[..., Reduction]
    keep: bool = False


@dataclass(frozen=True)
class View:
    """The same elements in another arrangement: `place(aval, **static)` gives (offset, shape,
    strides) in elements.

    None means that these strides can't express it; the runtime then makes a dense copy first.
    """

    place: Callable[..., tuple[int, tuple[int, ...], tuple[int, ...]] | None]


class Placement(NamedTuple):
    """Operand `operand` goes to the box of the output that starts at `start` with element steps
    `step`.
    """

    operand: int
    start: tuple[int, ...]
    step: tuple[int, ...]
    shape: tuple[int, ...]  # the box's shape; the operand broadcasts to it


@dataclass(frozen=True)
class Boxes:
    """The output is assembled from operands: later placements overwrite earlier ones."""

    place: Callable[..., list[Placement]]


@dataclass(frozen=True)
class GatherRows:
    """`out[i, r] = x[idx_1[i, r], ..., idx_n[i, r], r]` for operands (x, *indices).

    Index arrays have the rank of the output and broadcast to its shape.
    """


@dataclass(frozen=True)
class ScatterRows:
    """`out = x; out[idx(i, r), r] = combine(out[idx(i, r), r], updates[i, r])` for operands (x,
    updates, *indices). `sums`: combine adds, so that a runtime may sum in a wider type;
    `exact`: it must give the exact sum, rounded once. `fold`: combine is the "max", "min" or "mul"
    of real numbers, which a runtime may take in another fixed order.
    """

    combine: Callable[[Value, Value], Value]
    sums: bool = False
    exact: bool = False
    fold: str = ""


@dataclass(frozen=True)
class Intrinsic:
    """A named routine that runtimes take from a library made for it: "matmul", "argsort",
    "searchsorted". `raises`: what it finds in its operands may be an error. `work(avals, out)`: the
    operations that it takes, as `ir.cost` counts them; None where it only passes over its operands.
    """

    name: str
    raises: bool = False
    work: Callable[[Sequence[Aval], Aval], int] | None = None


Lowering = Elementwise | Fold | View | Boxes | GatherRows | ScatterRows | Intrinsic
