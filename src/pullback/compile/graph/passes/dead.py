"""Dead code: equations that no output needs; what is left of those that check indices is the check.

An index out of range is an error whether or not somebody needs the result, or whether it has any
elements. The check is a read of one repeated byte at these indices.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pullback.compile.graph.passes.constants import contents, is_known
from pullback.core.avals import aval, symbolic
from pullback.core.dtypes import bool_
from pullback.ir.control import CONTROL, may_raise
from pullback.ir.graph import Equation, Graph, Var
from pullback.ir.lowering import GatherRows, ScatterRows, View
from pullback.ir.op import Op
from pullback.ops.extrema import argmax, argmin
from pullback.ops.families import broadcast_shapes
from pullback.ops.gather_scatter import gather
from pullback.ops.movement import broadcast_to
from pullback.ops.sorting import argsort
from pullback.ops.windows import pick, place, window_argmax

__all__ = ["live", "without_dead"]


def live(graph: Graph, outputs: Iterable[Var], given: Iterable[Var] = ()) -> set[Var]:
    """The variables that these outputs, and checks, are computed from; the `given` ones come from
    nowhere.
    """
    needed = set(outputs)
    known = set(given)
    for eq in reversed(graph.equations):
        if any(v in needed and v not in known for v in eq.outs) or may_raise(eq):
            needed.update(eq.inputs)
    return needed


class _Check(NamedTuple):
    """What is asked of indices: that they are inside of axes of these sizes."""

    indices: tuple[Var, ...]
    sizes: tuple[int, ...]


def _check(eq: Equation) -> _Check | None:
    """What an equation asks of its indices; None if it asks nothing, or something else."""
    lowering = getattr(eq.op, "lowering", None)
    if not isinstance(lowering, (GatherRows, ScatterRows)):
        return None
    indices = eq.inputs[1 if isinstance(lowering, GatherRows) else 2 :]
    return _Check(indices, eq.inputs[0].aval.shape[: len(indices)])


def without_dead(graph: Graph) -> Graph:
    """The graph without equations and constants that no output needs; its inputs all stay."""
    return _Living(graph).graph()


class _Living:
    """Finds out which equations of a graph stay, and which as a check."""

    def __init__(self, graph: Graph):
        self.source = graph
        needed = set(graph.outputs)
        done: set[_Check] = set()
        kept: list[Equation] = []
        self.checks = False
        for eq in reversed(graph.equations):
            if type(eq.op) is Op and not eq.op.raises:
                if not needed.isdisjoint(eq.outs):
                    kept.append(eq)
                    needed.update(eq.inputs)
                continue
            check = _check(eq)
            self.checks = self.checks or check is not None
            if self._is_needed(eq, needed):
                kept.append(eq)
                needed.update(eq.inputs)
                if check is not None and eq.outs[0].aval.size:
                    done.add(check)
        self.done, self.kept, self.needed = done, kept, needed

    @cached_property
    def made(self) -> dict[Var, Equation]:
        """The equation of each variable."""
        return {v: eq for eq in self.source.equations for v in eq.outs}

    def _is_needed(self, eq: Equation, needed: set[Var]) -> bool:
        """Whether an equation stays as it is."""
        for v in eq.outs:
            if v in needed:
                return True
        return may_raise(eq) and _check(eq) is None and not self._has_its_places(eq)

    def _has_its_places(self, eq: Equation) -> bool:
        """Whether an equation reads or writes where windows over just that image have found their
        largest elements.
        """
        if eq.op not in (pick.op, place.op):
            return False
        found = self.made.get(eq.inputs[1])
        if found is None or found.op is not window_argmax.op:
            return False
        window, image = found.static["window"], found.inputs[0].aval.shape
        whole = (eq.inputs[0] if eq.op is pick.op else eq.out).aval.shape
        return eq.static["last"] == window.last and window.spatial(whole) == window.spatial(image)

    def graph(self) -> Graph:
        source = self.source
        result = source.shell()
        if not self.checks:
            return self._with(result, self.kept, self.needed)
        needed = set(source.outputs)
        kept: list[Equation] = []
        for eq in reversed(source.equations):
            needs = self._is_needed(eq, needed)
            check = _check(eq)
            if needs:
                kept.append(eq)
                needed.update(eq.inputs)
            if check is not None and check not in self.done and not self._is_sure(check):
                self.done.add(check)
                more = [eq] if self._is_plain(eq) else self._checking(result, check)
                kept += more[::-1]
                needed.update(v for e in more for v in e.inputs)
        return self._with(result, kept, needed)

    def _with(self, result: Graph, kept: list[Equation], needed: set[Var]) -> Graph:
        """The graph of these equations, the last one first; the source if these are all."""
        source = self.source
        if kept == source.equations[::-1] and all(v in needed for v in source.constants):
            return source
        result.inputs, result.outputs, result.equations = source.inputs, source.outputs, kept[::-1]
        result.constants += [v for v in source.constants if v in needed]
        return result

    def _is_plain(self, eq: Equation) -> bool:
        """Whether an equation is a check already."""
        table = self.made.get(eq.inputs[0])
        repeated = table is not None and table.op is broadcast_to.op
        return repeated and eq.op is gather.op and eq.inputs[0].aval.dtype is bool_

    def _checking(self, result: Graph, check: _Check) -> list[Equation]:
        """The equations of a check: a table of one byte, and the read."""
        device = check.indices[0].aval.device
        shape = broadcast_shapes("gather", *[i.aval.shape for i in check.indices])
        byte = device.runtime.from_numpy(np.zeros((), np.bool_), True)
        one = result.new_var(symbolic((), bool_, device), (byte, aval((), bool_, device), None))
        result.constants.append(one)
        table = result.new_var(symbolic(check.sizes, bool_, device))
        read = result.new_var(symbolic(shape, bool_, device))
        return [
            Equation(broadcast_to.op, (one,), {"shape": table.aval.shape}, (table,)),
            Equation(gather.op, (table, *check.indices), {}, (read,)),
        ]

    def _is_sure(self, check: _Check) -> bool:
        """Whether the indices are known to be inside."""
        pairs = zip(check.indices, check.sizes, strict=True)
        return all([self._is_inside(i, n) for i, n in pairs])

    def _is_inside(self, index: Var, size: int) -> bool:
        if is_known(index):
            found = contents(index)
            return not found.size or (-size <= found.min() and found.max() < size)
        if not index.aval.size:
            return True
        eq = self.made.get(index)
        if eq is None or eq.op in CONTROL:
            return False
        if eq.op is argsort.op:
            return eq.inputs[0].aval.shape[-1] <= size
        if eq.op in (argmax.op, argmin.op):
            return eq.inputs[0].aval.size // max(1, index.aval.size) <= size
        return isinstance(eq.op.lowering, View) and self._is_inside(eq.inputs[0], size)
