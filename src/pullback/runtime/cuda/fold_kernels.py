"""Several reductions of the same arrays as one: their accumulators side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pullback.compile.kernel.forms import Reduce
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr, acc, substituted, text

__all__ = ["Fold", "Folds", "folds_of", "results_of", "stores_of"]

Body = tuple[Expr, ...]


@dataclass(frozen=True)
class Folds:
    """Like Reduce, with a dtype and a body that finishes for each output.

    `stores` are dtypes and bodies of arrays that are computed from the same elements.
    """

    inputs: tuple[DType, ...]
    outputs: tuple[DType, ...]
    init: Body
    element: Body
    combine: Body
    finishes: tuple[Body, ...]
    stores: tuple[tuple[DType, Body], ...] = ()

    @property
    def text(self) -> str:
        bodies = (self.init, self.element, self.combine, *self.finishes)
        names = [",".join(d.name for d in side) for side in (self.inputs, self.outputs)]
        bodies += tuple(body for _, body in self.stores)
        names.append(",".join(d.name for d, _ in self.stores))
        parts = "\n--\n".join(text(*body) for body in bodies)
        return f"folds({names[0]})->{names[1]};{names[2]}\n{parts}"


Fold: TypeAlias = Reduce | Folds


def results_of(kernel: Fold) -> list[tuple[DType, Body]]:
    """The dtype of each output, and what finishes it."""
    if isinstance(kernel, Reduce):
        return [(kernel.output, kernel.finish)]
    return list(zip(kernel.outputs, kernel.finishes, strict=True))


def stores_of(kernel: Fold) -> tuple[tuple[DType, Body], ...]:
    """The dtype and the body of each array that is computed beside."""
    return () if isinstance(kernel, Reduce) else kernel.stores


def folds_of(
    inputs: tuple[DType, ...],
    kernels: Sequence[Reduce],
    stores: Sequence[tuple[DType, Body]] = (),
) -> Folds:
    """Reductions, and arrays, of elements that read these inputs."""
    init: Body = ()
    element: Body = ()
    combine: Body = ()
    finishes: tuple[Body, ...] = ()
    for r in kernels:
        start = len(init)

        def moved(e: Expr, start: int = start) -> Expr:
            side, position = e.value  # type: ignore[misc]
            return acc(side, position + start, e.dtype)

        init, element = init + r.init, element + r.element
        combine += substituted(r.combine, moved, "acc")
        finishes += (substituted(r.finish, moved, "acc"),)
    outputs = tuple(r.output for r in kernels)
    return Folds(inputs, outputs, init, element, combine, finishes, tuple(stores))
