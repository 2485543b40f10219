"""The kernel IR: loop nests over scalar expressions, free of shapes and of any device.

Shapes and strides reach a compiled kernel as arguments, so a kernel is compiled once per body and
dtypes. Six forms carry every operation that is not an intrinsic:

    Map         out[i]           = body(inputs[i])
    MultiMap    out_n[i]         = body_n(inputs[i])
    Reduce      out[k]           = finish(tree over j of element(inputs[k, j]))
    Accumulate  out[k, j]        = finish(element(k, 0) ... element(k, j) combined in order)
    Gather      out[i, r]        = x[idx_1[i, r], ..., idx_n[i, r], r]
    Scatter     out[idx(i, r), r] = combine(out[idx(i, r), r], updates[i, r])  for i in order

The order of every combination is a function of shapes only, never of threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr, text

__all__ = ["Accumulate", "Gather", "Kernel", "Map", "MultiMap", "Reduce", "Scatter"]


def _names(dtypes: tuple[DType, ...]) -> str:
    return ",".join(d.name for d in dtypes)


@dataclass(frozen=True)
class Map:
    """Elementwise; `body` has one expression, or two (real, imaginary) for a complex output.

    The expressions read operand k with `load(k, ...)` and may use `index()`.
    """

    inputs: tuple[DType, ...]
    output: DType
    body: tuple[Expr, ...]

    @property
    def text(self) -> str:
        return f"map({_names(self.inputs)})->{self.output.name}\n{text(*self.body)}"


@dataclass(frozen=True)
class MultiMap:
    """Several maps of the same inputs over the same elements, made in one pass."""

    inputs: tuple[DType, ...]
    outputs: tuple[DType, ...]
    bodies: tuple[tuple[Expr, ...], ...]

    @property
    def text(self) -> str:
        bodies = "\n--\n".join(text(*body) for body in self.bodies)
        return f"map({_names(self.inputs)})->{_names(self.outputs)}\n{bodies}"


@dataclass(frozen=True)
class Reduce:
    """A reduction over the trailing axes.

    `element` maps one element (its loads, and `index()` as position j along the reduction) to
    accumulator values; `combine` joins accumulators `acc("a", n)` (earlier) and `acc("b", n)`;
    `init` is its identity; `finish` turns accumulators (`acc("a", n)`) into output parts. Where
    `step` is given, it may take the place of `combine` for an element that comes after all others.
    """

    inputs: tuple[DType, ...]
    output: DType
    init: tuple[Expr, ...]
    element: tuple[Expr, ...]
    combine: tuple[Expr, ...]
    finish: tuple[Expr, ...]
    step: tuple[Expr, ...] = ()

    @property
    def text(self) -> str:
        own = (self.init, self.element, self.combine, self.finish, self.step)
        parts = "\n--\n".join(text(*p) for p in own if p)
        return f"{type(self).__name__.lower()}({_names(self.inputs)})->{self.output.name}\n{parts}"


class Accumulate(Reduce):
    """Like Reduce, but keeps every prefix along the last axis, combined in sequence."""


@dataclass(frozen=True)
class Gather:
    """Reads `x` of `dtype` at positions given by integer arrays of dtypes `indices`.

    Negative indices count from the end; an index out of range sets the error word.
    """

    dtype: DType
    indices: tuple[DType, ...]

    @property
    def text(self) -> str:
        return f"gather {self.dtype.name}[{_names(self.indices)}]"


@dataclass(frozen=True)
class Scatter:
    """Starts from a copy of `x` and folds `updates` in, in row-major order of the index arrays.

    `combine` joins the present value `acc("a", part)` and the update `acc("b", part)`; both have
    the dtype of a part of `dtype` (float32 for float16 and bfloat16). `sums`: it is the sum, and a
    runtime may add in another fixed order and in a wider type; `exact`: as `fixed_point` says;
    `fold`: as `ir.lowering.ScatterRows` says.
    """

    dtype: DType
    indices: tuple[DType, ...]
    combine: tuple[Expr, ...]
    sums: bool = False
    exact: bool = False
    fold: str = ""

    @property
    def text(self) -> str:
        return f"scatter {self.dtype.name}[{_names(self.indices)}]\n{text(*self.combine)}"


Kernel = Map | MultiMap | Reduce | Accumulate | Gather | Scatter
