"""What tests of passes share: graphs optimised and compared with what they were."""

from __future__ import annotations

from typing import Any

import numpy as np

import pullback as pb
from generated import matrix
from pullback.compile.graph import passes
from pullback.core import pytrees
from pullback.ir.graph import Graph
from pullback.ir.op import bind

SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1e-45, 3e38], np.float32)


def run(graph: Graph, *arrays: Any) -> list[np.ndarray]:
    return [r.numpy() for r in graph.run(*arrays, bind=bind)]


def names(graph: Graph) -> list[str]:
    return [eq.op.name for eq in graph.equations]


def bits(x: np.ndarray) -> bytes:
    """The contents with all NaN alike."""
    if x.dtype.kind in "fc" or x.dtype.name == "bfloat16":
        x = np.where(np.isnan(x), np.full_like(x, np.nan), x)
    return np.ascontiguousarray(x).tobytes()


def optimised(f: Any, *args: Any, exact: bool = True, tolerance: float = 2e-6) -> Graph:
    """The optimised graph of `f`, whose results were compared with those of the graph as traced."""
    args = matrix.tensors(args)
    graph = pb.trace(f)(*args)
    before = repr(graph)
    result = passes.optimise(graph)
    passes.optimise(graph, exact=True).verify()
    assert repr(graph) == before, "a pass changed its input"
    result.verify()
    leaves = [x for x in pytrees.leaves(args) if isinstance(x, pb.Tensor)]
    for wanted, found in zip(run(graph, *leaves), run(result, *leaves), strict=True):
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        if exact:
            assert bits(found) == bits(wanted)
        else:
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
    return result


def special(*shape: int) -> np.ndarray:
    return np.resize(SPECIAL, shape)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)
