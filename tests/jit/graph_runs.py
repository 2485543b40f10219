"""Running a graph in two ways: compiled, and equation by equation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import pullback as pb
from pullback.compile.program.executable import Executable
from pullback.core import pytrees
from pullback.core.avals import aval
from pullback.ir.array import make
from pullback.ir.graph import Graph
from pullback.ir.op import bind
from pullback.runtime.cpu.target import TARGET


def arrays_of(tree: Any) -> list[Any]:
    return [x for x in pytrees.leaves(tree) if isinstance(x, pb.Tensor)]


def compiled_run(graph: Graph, arrays: list[Any]) -> list[np.ndarray]:
    """The outputs of the compiled graph."""
    buffers = Executable(graph, TARGET)([a._buf for a in arrays], [a._aval for a in arrays])
    dense = [aval(v.aval.shape, v.aval.dtype, v.aval.device) for v in graph.outputs]
    return [np.asarray(make(b, av)) for b, av in zip(buffers, dense, strict=True)]


def eager_run(graph: Graph, arrays: list[Any]) -> list[np.ndarray]:
    with pb.no_grad():  # captured arrays may belong to a trace that has ended
        return [np.asarray(x) for x in graph.run(*arrays, bind=bind)]


def assert_same_bits(got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        same = a == b
        if a.dtype.kind not in "biu":
            same |= (a != a) & (b != b)
        assert np.all(same), f"{a} differs from {b}"


def check(f: Callable[..., Any], *args: Any) -> None:
    """The traced function gives the same bits compiled and equation by equation."""
    graph = pb.trace(f)(*args)
    assert_same_bits(compiled_run(graph, arrays_of(args)), eager_run(graph, arrays_of(args)))
