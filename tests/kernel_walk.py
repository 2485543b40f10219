"""The kernels that operations come to: all of the registry on their samples, over dtypes."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

import pullback as pb
import pullback.nn
from pullback.compile.kernel.forms import Map, Reduce
from pullback.compile.kernel.lower import fold_kernel, map_kernel
from pullback.compile.program.frame import inner_graphs
from pullback.core import dtypes as dt
from pullback.core import pytrees
from pullback.core.avals import Aval
from pullback.core.dtypes import DType
from pullback.core.errors import PullbackError
from pullback.ir.array import mode
from pullback.ir.control import Control
from pullback.ir.graph import trace
from pullback.ir.lowering import Elementwise, Fold
from pullback.ir.op import REGISTRY, Op, Public
from pullback.ir.samples import Draw, Sample

FLOATING = tuple(d for d in dt.ALL if d.is_inexact)


class Use(NamedTuple):
    """A primitive as some sample uses it, and its kernel."""

    op: Op
    avals: tuple[Aval, ...]
    static: dict[str, Any]
    kernel: Map | Reduce


def kernel_uses(dtypes: Iterable[DType]) -> dict[tuple[str, str], Use]:
    """One use of each Map, Reduce and Accumulate kernel of each operation, by name and text."""
    found: dict[tuple[str, str], Use] = {}
    for _, entry in sorted(REGISTRY.items()):
        for dtype in dtypes:
            if entry.namespace == "nn" and not dtype.is_inexact:  # their samples are of floats
                continue
            for use in _uses(entry, dtype):
                found.setdefault((use.op.name, use.kernel.text), use)
    return found


def _uses(entry: Public, dtype: DType) -> Iterator[Use]:
    with np.errstate(all="ignore"):
        try:
            samples = entry.samples(Draw(zlib.crc32(entry.name.encode()), dtype.numpy))
        except OverflowError:  # of floats and signed integers, which this one can't hold
            return
    for sample in samples:
        try:
            bound = _bound(entry, sample)
        except PullbackError:  # a dtype that the operation does not take
            continue
        for op, avals, static, out in bound:
            if isinstance(op.lowering, Elementwise):
                yield Use(
                    op,
                    avals,
                    static,
                    map_kernel(op.lowering, [a.dtype for a in avals], static, out),
                )
            elif isinstance(op.lowering, Fold):
                yield Use(op, avals, static, fold_kernel(op.lowering, avals[0], static, out))


def _bound(entry: Public, sample: Sample) -> list[tuple[Op, tuple[Aval, ...], dict, DType]]:
    """The primitives that a call comes to; those that create arrays run, the others are traced."""
    leaves, structure = pytrees.flatten((sample.args, sample.kwargs))
    places = [i for i, a in enumerate(leaves) if isinstance(a, np.ndarray)]

    def f(*xs: Any) -> Any:
        full = list(leaves)
        for i, x in zip(places, xs, strict=True):
            full[i] = x
        args, kwargs = pytrees.unflatten(structure, full)
        return entry.function(*args, **kwargs)

    before, mode.binds = mode.binds, []
    try:
        graph = trace(f)(*[pb.tensor(leaves[i]) for i in places])
        ran = mode.binds
    finally:
        mode.binds = before
    found = [
        (eq.op, tuple(v.aval for v in eq.inputs), eq.static, eq.out.aval.dtype)
        for g in (graph, *inner_graphs(graph))
        for eq in g.equations
        if len(eq.outs) == 1 and not isinstance(eq.op, Control)
    ]
    return found + [
        (op, tuple(a._aval for a in arrays), static, plan.aval.dtype)
        for op, arrays, static, plan, _ in ran
        if plan is not None
    ]
