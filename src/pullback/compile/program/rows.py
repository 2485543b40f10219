"""Row kernels, pass by pass: what a pass folds and stores are kernels of their own over all rows.

The orders are those of single folds, so the bits are the same. Numbers of rows and rows that a
kernel keeps for itself lie in scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pullback.compile.kernel.forms import Map, MultiMap, Reduce
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Strides, Target
from pullback.compile.schedule.groups import Stored
from pullback.compile.schedule.row_kernel import Pass, RowPlan
from pullback.core.dtypes import DType
from pullback.ir.scalar import Expr, load, substituted, topological

__all__ = ["RowPasses", "row_stages"]

Body = tuple[Expr, ...]


def row_stages(
    target: Target,
    plan: RowPlan,
    rows: int,
    length: int,
    slot: Callable[[Stored, int], int],
    area: Area,
    /,
) -> list[Stage]:
    """What `Target.rows` wants, of the maps and reductions of a target."""
    return RowPasses(target, plan, rows, length, slot, area).stages()


class RowPasses:
    """The stages of each pass; a target may have others for some of them."""

    def __init__(
        self,
        target: Target,
        plan: RowPlan,
        rows: int,
        length: int,
        slot: Callable[[Stored, int], int],
        area: Area,
    ):
        self.target = target
        self.kernel, self.rows, self.length, self.area = plan.kernel, rows, length, area
        self.slots: list[int] = []
        self.strides: list[tuple[int, int]] = []  # along rows, and along one
        for k, stream in enumerate(plan.kernel.streams):
            if stream.kind in ("scalar", "buffer"):
                wide = length if stream.kind == "buffer" else 1
                self.slots.append(area(rows * wide * stream.dtype.itemsize))
                self.strides.append((wide, int(wide > 1)))
            else:
                place = plan.places[k]
                self.slots.append(slot(place.stored, place.offset))
                self.strides.append((place.stride, int(stream.kind == "unit")))
        self.kept = self._kept()
        self.columns = [slot(s, 0) for s in plan.columns]
        self.wholes = [slot(s, 0) for s in plan.wholes]

    def _kept(self) -> list[tuple[int, int]]:
        """The numbers of rows that are copied in the end; others are made where they belong."""
        targets = {target for _, target in self.kernel.kept}
        others = {at for k, at in enumerate(self.slots) if k not in targets}
        copied = []
        for k, target in self.kernel.kept:
            if self.slots[target] in others:  # what is read till then may be there
                copied.append((k, target))
            else:
                self.slots[k] = self.slots[target]
        return copied

    def stages(self) -> list[Stage]:
        found: list[Stage] = []
        columns, wholes = iter(self.columns), iter(self.wholes)
        for p in self.kernel.passes:
            for k, body in p.scalars:
                found += self._store([(k, body)], ())
            # Folds first: a store may write over what they read.
            for fold in p.columns:
                found += self._fold(fold, (1,), (0,), next(columns))
            for fold in p.wholes:
                found += self._fold(fold, (), (0, 1), next(wholes))
            found += self.along(p)
        for k, target in self.kept:
            dtype = self.kernel.streams[k].dtype
            parts = range(2 if dtype.is_complex else 1)
            body = tuple(load(k, dtype.real, part) for part in parts)
            found += self._store([(target, body)], ())
        return found

    def along(self, p: Pass) -> list[Stage]:
        """What is folded along rows in a pass, and stored."""
        found: list[Stage] = []
        for k, fold in p.folds:
            found += self._fold(fold, (0,), (1,), self.slots[k])
        return found + (self._store(p.stores, (self.length,)) if p.stores else [])

    def operands(self, bodies: Sequence[Body]) -> tuple[list[int], list[Body]]:
        """The streams that bodies read, and the bodies with these as their operands."""
        loads = (e for body in bodies for root in body for e in topological(root, {}))
        streams = list(dict.fromkeys(e.value[0] for e in loads if e.op == "load"))  # type: ignore[index]
        number = {k: n for n, k in enumerate(streams)}

        def leaf(e: Expr) -> Expr:
            k, part = e.value  # type: ignore[misc]
            return load(number[k], e.dtype, part)

        return streams, [substituted(body, leaf) for body in bodies]

    def dtypes(self, streams: Sequence[int]) -> tuple[DType, ...]:
        return tuple(self.kernel.streams[k].dtype for k in streams)

    def _store(self, stores: Sequence[tuple[int, Body]], inner: tuple[int, ...]) -> list[Stage]:
        """Maps over all rows, and over each of them if `inner` is its length."""
        streams, bodies = self.operands([body for _, body in stores])
        inputs, targets = self.dtypes(streams), [k for k, _ in stores]
        outputs = self.dtypes(targets)
        kernel = (
            Map(inputs, outputs[0], bodies[0])
            if len(bodies) == 1
            else MultiMap(inputs, outputs, tuple(bodies))
        )
        outs, ins = ([self.slots[k] for k in own] for own in (targets, streams))
        axes = 1 + len(inner)
        own, given = ([self.strides[k][:axes] for k in side] for side in (targets, streams))
        return self.target.map(kernel, (self.rows, *inner), outs, own, ins, given)

    def _fold(
        self, fold: Reduce, kept: tuple[int, ...], reduced: tuple[int, ...], out: int
    ) -> list[Stage]:
        """A reduction along some of the axes: 0 counts rows, 1 goes along one."""
        streams, (element,) = self.operands([fold.element])
        kernel = replace(fold, inputs=self.dtypes(streams), element=element)
        shape = (self.rows, self.length)
        strides: list[Strides] = [
            [self.strides[k][axis] for axis in (*kept, *reduced)] for k in streams
        ]
        return self.target.reduce(
            kernel,
            [shape[axis] for axis in kept],
            [shape[axis] for axis in reduced],
            [self.slots[k] for k in streams],
            strides,
            out,
            self.area,
        )
