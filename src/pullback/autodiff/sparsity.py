"""Which elements of a result depend on which elements of an argument, read off a traced function.

The answer holds for all values: it may name more dependences than there are, never fewer. Where an
operation is not known here, each of its results is taken to depend on all of its operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from pullback.core.errors import ShapeError
from pullback.ir.array import make
from pullback.ir.convert import from_numpy, to_numpy
from pullback.ir.graph import Equation, Graph, Var
from pullback.ir.lowering import Boxes, Elementwise, Fold, GatherRows, ScatterRows, View
from pullback.ir.op import REGISTRY, Op, bind

__all__ = ["Pattern", "dependences"]

MOST = 1 << 27  # dependences of one value, at 8 bytes each: more than this is no sparse matrix

Shape = tuple[int, ...]


class Pattern:
    """Pairs (row, column): element `row` of a value depends on element `column` of the argument.

    They are kept as sorted numbers `row * columns + column`.
    """

    def __init__(self, keys: np.ndarray, rows: int, columns: int):
        self.keys, self.rows, self.columns = keys, rows, columns

    @property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns."""
        return np.divmod(self.keys, max(self.columns, 1))

    def selected(self, sources: np.ndarray) -> Pattern:
        """The pattern of a value whose elements are those at `sources`; -1 is a constant."""
        start = np.searchsorted(self.keys, np.arange(self.rows + 1) * self.columns)
        counts = np.zeros(len(sources), np.int64)
        if self.rows:
            counts = np.where(sources < 0, 0, (start[1:] - start[:-1])[sources])
        total = int(counts.sum())
        _check_size(total)
        row = np.repeat(np.arange(len(sources)), counts)
        first = np.cumsum(counts) - counts
        within = np.arange(total) - first[row]
        column = self.keys[start[sources[row]] + within] % max(self.columns, 1)
        return Pattern(row * self.columns + column, len(sources), self.columns)

    def merged(self, targets: np.ndarray, rows: int) -> Pattern:
        """The pattern of a value of which element `targets[i]` depends on what element i does."""
        row, column = self.pairs
        keys = np.unique(targets[row] * self.columns + column)
        return Pattern(keys, rows, self.columns)

    def __or__(self, other: Pattern) -> Pattern:
        return Pattern(np.union1d(self.keys, other.keys), self.rows, self.columns)


def _check_size(count: int) -> None:
    if count > MOST:
        raise ShapeError(
            f"jacobian: the pattern of a value has {count} dependences, got more than {MOST}."
            " The Jacobian is not sparse, or an operation hides that it is: pass its pattern."
        )


def dependences(graph: Graph) -> Pattern:
    """The pattern of the only output by the first input."""
    x, out = graph.inputs[0], graph.outputs[0]
    n = x.aval.size
    known: dict[Var, Pattern] = {x: Pattern(np.arange(n) * n + np.arange(n), n, n)}
    for eq in graph.equations:
        given = [known.get(v) for v in eq.inputs]
        if all(p is None for p in given):
            continue
        for v in eq.outs:
            known[v] = _result(eq, given, v)
    return known.get(out) or Pattern(np.zeros(0, np.int64), out.aval.size, n)


def _result(eq: Equation, given: Sequence[Pattern | None], out: Var) -> Pattern:
    """The pattern of a result. Rules of the user's own may lead through what has no derivative, so
    all operands count.
    """
    if not isinstance(eq.op, Op):
        return _everything(given, out)
    parts = [_part(eq, i, p, out) for i, p in enumerate(given) if p is not None]
    total = parts[0]
    for p in parts[1:]:
        total = total | p
    return total


def _part(eq: Equation, i: int, p: Pattern, out: Var) -> Pattern:
    """The dependences of a result by way of operand `i`."""
    op, shape, target = eq.op, eq.inputs[i].aval.shape, out.aval.shape
    low = op.lowering
    if isinstance(low, Elementwise) and op.batch == "elementwise":
        return _spread(p, shape, target)
    if isinstance(low, (View, Boxes)):
        return p.selected(_moved(eq, i))
    if isinstance(low, Fold):
        axes = eq.static["axes"] if "axes" in eq.static else (eq.static["axis"],)
        return _spread(*_collapsed(p, shape, axes), target, low.keep or eq.static.get("keepdims"))
    if isinstance(low, (GatherRows, ScatterRows)):
        lead = len(op.names) - 1
        sources = _sources(eq, lead) if i < lead else None
        if sources is not None and isinstance(low, GatherRows):
            return p.selected(sources)
        if sources is not None:
            return p if i == 0 else p.merged(sources, out.aval.size)
    if op is REGISTRY["matmul"]:
        axis = (
            len(shape) - 1 - i
        )  # of the sum: the last one on the left, the one before on the right
        return _spread(*_collapsed(p, shape, (axis,)), target)
    return _everything([p], out)


def _everything(given: Sequence[Pattern | None], out: Var) -> Pattern:
    """All elements of a value depend on all that its operands depend on."""
    present = [p for p in given if p is not None]
    columns = np.unique(np.concatenate([p.pairs[1] for p in present]))
    n, rows = present[0].columns, out.aval.size
    _check_size(rows * len(columns))
    return Pattern((np.arange(rows)[:, None] * n + columns).reshape(-1), rows, n)


def _ids(shape: Shape) -> np.ndarray:
    return np.arange(prod(shape)).reshape(shape)


def _spread(p: Pattern, shape: Shape, target: Shape, kept: Any = True) -> Pattern:
    """The pattern of a value that is broadcast, or has lost its axes of size 1 if not `kept`."""
    ids = _ids(shape) if kept else _ids(shape).reshape(target)
    if ids.shape == target:
        return p
    return p.selected(np.broadcast_to(ids, target).reshape(-1))


def _collapsed(p: Pattern, shape: Shape, axes: Sequence[int]) -> tuple[Pattern, Shape]:
    """The pattern of what is folded over axes, which are then of size 1."""
    small = tuple([1 if d in axes else n for d, n in enumerate(shape)])
    targets = np.broadcast_to(_ids(small), shape).reshape(-1)
    return p.merged(targets, prod(small)), small


def _moved(eq: Equation, i: int) -> np.ndarray:
    """Where the elements of a rearrangement come from: the place in operand `i`, or -1."""
    dev = eq.inputs[i].aval.device
    operands = []
    for k, v in enumerate(eq.inputs):
        ids = _ids(v.aval.shape) if k == i else np.full(v.aval.shape, -1)
        operands.append(from_numpy(ids, dev))
    return to_numpy(bind(eq.op, *operands, **eq.static)).reshape(-1)


def _sources(eq: Equation, lead: int) -> np.ndarray | None:
    """The place in the first operand that each index of a gather or scatter points at, if these
    are known.
    """
    indices = [v.constant for v in eq.inputs[lead:]]
    if any(c is None or c[1].is_symbolic for c in indices):
        return None
    x = eq.inputs[0].aval
    arrays = [make(buf, av) for buf, av, _ in indices]
    places = bind(REGISTRY["primitive.gather"], from_numpy(_ids(x.shape), x.device), *arrays)
    return to_numpy(places).reshape(-1)
