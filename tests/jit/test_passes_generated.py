"""Passes on random graphs and on every operation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pullback as pb
from generated import matrix
from jit.pass_checks import SPECIAL, bits, run
from pullback.compile.graph import passes
from pullback.core import pytrees
from pullback.core.errors import TraceError
from pullback.ir.graph import Graph

# -- random graphs ---------------------------------------------------------------------------------

UNARY = [
    pb.negative,
    pb.abs,
    pb.square,
    pb.exp,
    lambda x: x * 1.0,
    lambda x: x + 0.0,
    lambda x: x * 2.0,
    lambda x: x * 0.0,
    lambda x: x / 4.0,
    lambda x: x - x,
    lambda x: x.T,
    lambda x: x.reshape(-1, 2),
    lambda x: x.reshape(1, *x.shape)[0],
    lambda x: x[::-1],
    lambda x: x[:, 1:],
    lambda x: x.sum(axis=0, keepdims=True),
    lambda x: x.sum(axis=1)[:, None],
    lambda x: pb.max(x, axis=1),
    lambda x: pb.broadcast_to(x.sum(axis=0), x.shape),
    lambda x: pb.concat([x, -x]),
    lambda x: pb.concat([x[:1], x[1:]], axis=0),
    lambda x: pb.where(x > 0, x, 0.0),
    lambda x: pb.astype(pb.astype(x, pb.float64), pb.float32),
    lambda x: pb.zeros(x.shape) + x,
    lambda x: pb.ones(x.shape) * x,
    lambda x: x @ pb.ones((x.shape[1], 2)),
]
BINARY = [
    lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / y, pb.maximum,
    lambda x, y: pb.where(x > y, x, y), lambda x, y: -x + y, lambda x, y: x + x * y,
]  # fmt: skip


def matrices(x: Any) -> Any:
    """Any array as a matrix of at least 2 x 2 elements, an even number of them."""
    x = x if x.ndim == 2 else pb.broadcast_to(x.reshape(x.shape[-1] if x.ndim else 1), (2, x.size))
    return pb.broadcast_to(x[:1, :1], (2, 2)) if min(x.shape) < 2 else x


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)),
        max_size=12,
    ),
    st.integers(0, 3),
)
def test_random_graphs(steps, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(4, 6)).astype(np.float32)
    x.flat[rng.integers(0, 24, 4)] = SPECIAL[rng.integers(0, len(SPECIAL), 4)]

    def f(x):
        values = [x]
        for unary, which, a, b in steps:
            p, q = matrices(values[a % len(values)]), matrices(values[b % len(values)])
            if unary:
                values.append(UNARY[which % len(UNARY)](p))
            else:
                q = q if q.shape == p.shape else pb.broadcast_to(q[:1, :1], p.shape)
                values.append(BINARY[which % len(BINARY)](p, q))
        return values[-1], values[len(values) // 2]

    tensor = pb.tensor(x)
    graph = pb.trace(f)(tensor)
    exact = passes.optimise(graph, exact=True)
    assert [bits(a) for a in run(exact, tensor)] == [bits(a) for a in run(graph, tensor)]
    result = passes.optimise(graph)
    with np.errstate(all="ignore"):
        for wanted, found in zip(run(graph, tensor), run(result, tensor), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=3e-5, atol=1e-6)


# -- every operation -------------------------------------------------------------------------------

CASES = matrix.cases(matrix.FLOATS, compiled=True)


def check_equal(graph: Graph, arrays: list[Any], tolerance: float) -> None:
    exact = run(passes.optimise(graph, exact=True), *arrays)
    assert [bits(a) for a in exact] == [bits(a) for a in run(graph, *arrays)]
    result = passes.optimise(graph)
    for wanted, found in zip(run(graph, *arrays), run(result, *arrays), strict=True):
        assert found.dtype == wanted.dtype
        if found.dtype.kind in "biu":
            np.testing.assert_array_equal(found, wanted)
        else:
            wide = np.complex128 if found.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(
                found.astype(wide), wanted.astype(wide), rtol=tolerance, atol=tolerance
            )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_operation(case):
    sample = case.sample
    leaves, structure = pytrees.flatten((sample.args, sample.kwargs))
    arrays = [pb.tensor(a) for a in leaves if isinstance(a, np.ndarray)]
    if not arrays:
        pytest.skip("takes no arrays")

    def f(*xs):
        rest = iter(xs)
        full = [next(rest) if isinstance(a, np.ndarray) else a for a in leaves]
        args, kwargs = pytrees.unflatten(structure, full)
        return matrix.arrays_of(case.entry.function(*args, **kwargs))

    try:
        graph = pb.trace(f)(*arrays)
    except (pb.DTypeError, TraceError):
        pytest.skip("needs values, or does not take the dtype")
    check_equal(graph, arrays, 1e-2 if case.dtype.itemsize == 2 else 1e-5)


@pytest.mark.parametrize(
    "case", matrix.cases((pb.float64,), derivative=True, compiled=True), ids=str
)
def test_derivatives_of_every_operation(case):
    sample = case.sample
    f = matrix.function_of(case.entry, sample)
    arrays = [pb.tensor(a) for a in matrix.differentiable_leaves(sample)]
    if not arrays:
        pytest.skip("has nothing to differentiate by")

    def loss(*xs):
        outs = [pb.real(o) if o.dtype.is_complex else o for o in f(*xs)]
        return sum(((o * o).sum() for o in outs), pb.zeros((), dtype=pb.float64))

    def first(*xs):
        return pb.grad(loss, argnums=tuple(range(len(xs))))(*xs)

    def second(*xs):
        grads = [pb.real(g) if g.dtype.is_complex else g for g in first(*xs)]
        return sum(((g * g).sum() for g in grads), pb.zeros((), dtype=pb.float64))

    order = min(sample.order, 2)
    if order == 0:
        return
    try:
        graph = pb.trace(first if order == 1 else pb.grad(second))(*arrays)
    except (pb.DTypeError, pb.GradientError, TraceError):
        pytest.skip("needs values")
    check_equal(graph, arrays, 1e-9)
