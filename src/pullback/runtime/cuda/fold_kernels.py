"""Several reductions of the same arrays as one: their accumulators side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pullback.compile.kernel.forms import Reduce
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr, acc, substituted, text

__all__ = ["Fold", "Folds", "folds_of", "results_of"]

Body = tuple[Expr, ...]


@dataclass(frozen=True)
class Folds:
    """Like Reduce, with a dtype and a body that finishes for each output."""

    inputs: tuple[DType, ...]
    outputs: tuple[DType, ...]
    init: Body
    element: Body
    combine: Body
    finishes: tuple[Body, ...]

    @property
    def text(self) -> str:
        bodies = (self.init, self.element, self.combine, *self.finishes)
        names = [",".join(d.name for d in side) for side in (self.inputs, self.outputs)]
        parts = "\n--\n".join(text(*body) for body in bodies)
        return f"folds({names[0]})->{names[1]}\n{parts}"


Fold: TypeAlias = Reduce | Folds


def results_of(kernel: Fold) -> list[tuple[DType, Body]]:
    """The dtype of each output, and what finishes it."""
    if isinstance(kernel, Reduce):
        return [(kernel.output, kernel.finish)]
    return list(zip(kernel.outputs, kernel.finishes, strict=True))


def folds_of(inputs: tuple[DType, ...], kernels: Sequence[Reduce]) -> Folds:
    """Reductions whose elements read these inputs."""
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
    return Folds(inputs, tuple(r.output for r in kernels), init, element, combine, finishes)
