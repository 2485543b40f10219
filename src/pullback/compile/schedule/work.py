"""What running a group takes, by the cost model of `ir.cost`."""

from __future__ import annotations

import math

from pullback.compile.schedule.groups import CallGroup, FoldGroup, Group, MapGroup
from pullback.compile.schedule.traffic import least_bytes
from pullback.ir import cost
from pullback.ir.lowering import Intrinsic

__all__ = ["is_product", "product_work", "running_work", "work_of"]


def is_product(g: Group) -> bool:
    """Whether a group is a product of matrices."""
    low = getattr(g.equation.op, "lowering", None) if isinstance(g, CallGroup) else None
    return isinstance(low, Intrinsic) and low.name == "matmul"


def product_work(g: CallGroup) -> int:
    """Multiplications and additions of a product."""
    return cost.product_work([r.aval for r in g.operands], g.results[0].aval)


def work_of(g: MapGroup | FoldGroup | CallGroup) -> int:
    """Operations of a call, or of a loop nest without what it takes to read and write."""
    if isinstance(g, CallGroup):
        return cost.equation_work(g.equation)
    return cost.WIDE * _instructions(g)


def _instructions(g: MapGroup | FoldGroup) -> int:
    """Instructions of a loop nest on all its elements, of which each read is one."""
    if isinstance(g, MapGroup):
        roots, size = [e for body in g.bodies for e in body], math.prod(g.shape)
    else:
        roots, size = list(g.kernel.element), math.prod(g.kept) * math.prod(g.folded)
    return size * (len(g.reads) + cost.instructions(roots))


def running_work(g: Group) -> int:
    """What a group takes, memory and start included."""
    members = [g] if isinstance(g, (MapGroup, FoldGroup, CallGroup)) else g.members
    work = sum(
        cost.equation_work(m.equation)
        if isinstance(m, CallGroup)
        else cost.ELEMENT * _instructions(m)
        for m in members
    )
    return cost.LAUNCH + max(work, cost.BYTE * least_bytes(g))
