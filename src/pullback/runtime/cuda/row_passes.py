"""Long rows, pass by pass: what a pass folds along rows and what it stores is one launch."""

from __future__ import annotations

from dataclasses import replace

from pullback.compile.program.rows import RowPasses
from pullback.compile.program.stages import Stage
from pullback.compile.schedule.row_kernel import Pass
from pullback.runtime.cuda.fold_kernels import folds_of
from pullback.runtime.cuda.loops import fold_steps
from pullback.runtime.cuda.stages import At, stage

__all__ = ["LongRows"]


class LongRows(RowPasses):
    """The stages of rows that do not fit into shared memory."""

    def along(self, p: Pass) -> list[Stage]:
        """See `RowPasses`; a thread has read all of an element before it stores anything there."""
        if len(p.folds) + len(p.stores) < 2 or not p.folds:
            return super().along(p)
        bodies = [*(fold.element for _, fold in p.folds), *(body for _, body in p.stores)]
        streams, bodies = self.operands(bodies)
        folds = [
            replace(fold, element=body) for (_, fold), body in zip(p.folds, bodies, strict=False)
        ]
        targets = [k for k, _ in p.stores]
        stores = zip(self.dtypes(targets), bodies[len(folds) :], strict=True)
        kernel = folds_of(self.dtypes(streams), folds, tuple(stores))
        strides = [self.strides[k] for k in (*streams, *targets)]
        outs, ins, stored = (
            [At(self.slots[k]) for k in own] for own in ([k for k, _ in p.folds], streams, targets)
        )
        shape = (self.rows,), (self.length,)
        return stage(*fold_steps(kernel, *shape, ins, strides, outs, self.area, stored))
