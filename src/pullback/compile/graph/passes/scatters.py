"""Looking up few elements: what a loss picks out of each row of logits, and its gradient.

A scatter-add of one update for each row, into zeros, is a choice: as a map it is fused with what it
is added to, and nobody writes the zeros. And what is computed element by element is computed of the
few elements that are read, so that nobody writes the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pullback.compile.graph.passes.constants import contents, is_known, is_pointwise
from pullback.compile.graph.passes.rewriter import Rewriter, Rules
from pullback.core import dtypes as dt
from pullback.core.avals import Aval, aval
from pullback.ir.graph import Var
from pullback.ops.arithmetic import add, negative
from pullback.ops.gather_scatter import gather, scatter_add
from pullback.ops.logic import equal, less
from pullback.ops.parts import astype
from pullback.ops.ranges import ramp
from pullback.ops.reductions import sum as sum_
from pullback.ops.selection import where

__all__ = ["rules"]

FEW = 8  # elements for each one that is read, from which on only those read are computed


def _counts(rw: Rewriter, x: Var) -> bool:
    """Whether the elements are 0, 1, 2 and so on."""
    if is_known(x):
        return bool(np.array_equal(contents(x), np.arange(x.aval.size)))
    eq = rw.maker(x, ramp.op)
    if eq is None:
        return False
    start, step = (rw.value(v) for v in eq.inputs)
    return start is not None and start == 0 and step is not None and step == 1


def _one_for_each_row(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    x, updates, *indices = inputs
    zero = rw.value(x)
    if zero is None or zero != 0 or np.signbit(np.real(zero)) or np.signbit(np.imag(zero)):
        return None
    if av.ndim != 2 or len(indices) != 2 or updates.aval.shape != av.shape[:1]:
        return None
    rows, columns = indices
    if rows.aval.shape != columns.aval.shape or not _counts(rw, rows):
        return None
    rw.append(gather.op, (x, rows, columns), {}, [updates.aval])  # what is left of it is the check
    rw.is_cut_short = True
    (count, size), index = av.shape, columns.aval
    if index.dtype.kind == "i":  # negative ones count from the end
        before = rw.emit(less.op, (columns, rw.number(0, index)))
        wrapped = rw.emit(add.op, (columns, rw.number(size, index)))
        columns = rw.emit(where.op, (before, wrapped, columns))
    columns = rw.emit(astype.op, (columns,), {"dtype": dt.int32})
    here = rw.emit(equal.op, (_numbers(rw, size, av), rw.reshape(columns, (count, 1))))
    given = rw.emit(add.op, (updates, rw.number(0, av)))  # a sum from 0.0 is never -0.0
    chosen = rw.emit(where.op, (here, rw.reshape(given, (count, 1)), rw.number(0, av)))
    rw.chosen[chosen] = given
    return chosen


def _numbers(rw: Rewriter, size: int, like: Aval) -> Var:
    """The constant 0, 1, ... size - 1: an array, which takes part in row kernels."""
    dev = like.device
    key = ("numbers", size, dev)
    buffer = dev.runtime.from_numpy(np.arange(size, dtype=np.int32), True)
    return rw.constant(buffer, aval((size,), dt.int32, dev), key)


def _sum_of_choice(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    """The sum of each row is what it was given: it has one place for it, which was checked."""
    (x,) = inputs
    eq = rw.maker(x, negative.op)
    given = rw.chosen.get(x if eq is None else eq.inputs[0])
    if given is None or static["axes"] != (1,):
        return None
    if eq is not None:
        given = rw.emit(add.op, (rw.emit(negative.op, (given,)), rw.number(0, av)))
    return rw.reshape(given, av.shape)


def _read_before(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    """`f(x, y)[i]` as `f(x[i], y[i])`."""
    x, *indices = inputs
    eq = rw.made.get(x)
    if eq is None or len(indices) != x.aval.ndim or av.size * FEW > x.aval.size:
        return None
    if not is_pointwise(eq.op) or not any(v.aval.shape == x.aval.shape for v in eq.inputs):
        return None
    if any(i.aval.shape != av.shape for i in indices):
        return None
    read = [_read(rw, v, x.aval.shape, indices, av) for v in eq.inputs]
    return rw.emit(eq.op, tuple(read), eq.static)


def _read(rw: Rewriter, x: Var, shape: tuple[int, ...], indices: Sequence[Var], av: Aval) -> Var:
    """`x`, which is broadcast to `shape`, at these indices."""
    first = len(shape) - x.aval.ndim
    wide = [d for d, n in enumerate(x.aval.shape) if n == shape[first + d]]
    if not wide:
        return rw.broadcast(rw.reshape(x, ()), av.shape)
    own = rw.reshape(x, tuple([x.aval.shape[d] for d in wide]))
    return rw.emit(gather.op, (own, *[indices[first + d] for d in wide]))


def _every_element(rw: Rewriter, op: Any, inputs: tuple, static: dict, av: Aval) -> Var | None:
    """Reading every element in its turn."""
    x, *indices = inputs
    same = x.aval.shape == av.shape and av.ndim == 1 and len(indices) == 1
    return x if same and _counts(rw, indices[0]) else None


def rules() -> Rules:
    """The rules of gathers and scatters."""
    return {
        scatter_add.op: [_one_for_each_row],
        sum_.op: [_sum_of_choice],
        gather.op: [_every_element, _read_before],
    }
