"""Sparse Jacobians: patterns, colours, entries, derivatives of entries, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import sparse_jacobians


def normal(*shape: int, seed: int = 0) -> Any:
    return pb.tensor(np.random.default_rng(seed).normal(size=shape))


def tridiagonal(x: Any) -> Any:
    inner = x[2:] - 2.0 * x[1:-1] ** 3 + x[:-2] * pb.sin(x[1:-1])
    return pb.concat([x[:1] * x[1:2], inner, x[-1:]])


def stencil(x: Any) -> Any:
    """The five-point stencil on a grid, with padding."""
    p = pb.pad(x, 1)
    return pb.exp(x) * 4.0 - p[2:, 1:-1] - p[:-2, 1:-1] - p[1:-1, 2:] - p[1:-1, :-2]


EDGES = pb.tensor([[0, 1], [1, 3], [3, 4], [4, 0], [2, 2]])


def on_edges(x: Any) -> Any:
    """Differences along the edges of a graph, added at their ends."""
    flow = pb.sin(x[EDGES[:, 0]] - x[EDGES[:, 1]])
    return pb.primitive.scatter_add(pb.zeros(5, dtype="float64"), flow, EDGES[:, 1])


def blocks(x: Any) -> Any:
    m = pb.reshape(x, (4, 3))
    return (m @ pb.tensor(np.arange(9.0).reshape(3, 3))) * m.sum(axis=1, keepdims=True)


FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Any, int]] = {  # and how many entries there are
    "tridiagonal": (tridiagonal, normal(11), 30),
    "stencil": (stencil, normal(4, 5), 20 + 2 * (4 * 4 + 3 * 5)),
    "graph": (on_edges, normal(5), 9),
    "blocks": (blocks, normal(12), 36),
    "one row": (lambda x: (x**3).sum(), normal(6), 6),
    "one column": (lambda x: x * pb.exp(normal(6)), normal(), 6),
    "running": (lambda x: pb.cumsum(x, axis=1), normal(2, 3), 18),
    "nothing": (lambda x: normal(3), normal(4), 0),
    "empty": (lambda x: x * 2.0, pb.zeros((0,), dtype="float64"), 0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_entries_are_those_of_the_whole_jacobian(name: str):
    f, x, count = FUNCTIONS[name]
    found = pb.sparse_jacobian(f)(x)
    m, n = f(x).size, x.size
    assert (found.shape, len(found.rows)) == ((m, n), count)
    dense = pb.jacobian(f)(x).numpy().reshape(m, n)
    np.testing.assert_allclose(found.dense().numpy(), dense, rtol=1e-13, atol=1e-13)
    compiled = pb.jit(pb.sparse_jacobian(f))(x)
    np.testing.assert_allclose(compiled.dense().numpy(), dense, rtol=1e-13, atol=1e-13)
    v = normal(n, seed=5)
    np.testing.assert_allclose((found @ v).numpy(), dense @ v.numpy(), rtol=1e-12, atol=1e-12)


def test_few_products_are_enough(monkeypatch: pytest.MonkeyPatch):
    counts = []
    original = sparse_jacobians._swept

    def counted(sweep: Any, start: Any, end: Any, colouring: Any) -> Any:
        counts.append(colouring.number)
        return original(sweep, start, end, colouring)

    monkeypatch.setattr(sparse_jacobians, "_swept", counted)
    pb.sparse_jacobian(tridiagonal)(normal(2000))
    pb.sparse_jacobian(blocks)(normal(12))
    pb.sparse_jacobian(lambda x: (x * x).sum())(normal(500))  # one row: by reverse mode
    assert counts == [3, 3, 1]


def test_a_pattern_may_be_given():
    x = normal(11)
    expected = pb.sparse_jacobian(tridiagonal)(x)
    rows, columns = pb.jacobian_sparsity(tridiagonal)(x)
    shuffled = np.random.default_rng(1).permutation(len(rows))
    mask = np.zeros((11, 11), bool)
    mask[rows, columns] = True
    for sparsity in ((rows[shuffled], columns[shuffled]), mask):
        found = pb.sparse_jacobian(tridiagonal, sparsity=sparsity)(x)
        np.testing.assert_array_equal(found.values.numpy(), expected.values.numpy())
        np.testing.assert_array_equal(found.rows, expected.rows)


def test_entries_are_differentiable_and_map():
    x = normal(7)
    whole = lambda x: (pb.jacobian(tridiagonal)(x) ** 2).sum()  # noqa: E731
    few = lambda x: (pb.sparse_jacobian(tridiagonal)(x).values ** 2).sum()  # noqa: E731
    np.testing.assert_allclose(pb.grad(few)(x).numpy(), pb.grad(whole)(x).numpy(), rtol=1e-12)
    batch = pb.stack([x, x * 2.0])
    found = pb.vmap(pb.sparse_jacobian(tridiagonal))(batch)
    assert found.values.shape == (2, 18)
    alone = pb.sparse_jacobian(tridiagonal)(x * 2.0).values
    np.testing.assert_array_equal(found.values[1].numpy(), alone.numpy())


def test_rules_of_the_users_own_find_their_places():
    @pb.custom_vjp
    def straight(x: Any) -> Any:
        return pb.astype(x > 0, x.dtype)

    straight.defvjp(lambda x: (straight(x), x), lambda x, g: (g * 2.0,))
    found = pb.sparse_jacobian(straight)(normal(3))
    np.testing.assert_array_equal(found.dense().numpy(), 2 * np.eye(3))


BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: pb.sparse_jacobian(lambda x: (x, x))(normal(2)),
        pb.DTypeError,
        "one array, got tuple",
    ),
    (lambda: pb.sparse_jacobian(pb.sin)([normal(2)]), pb.DTypeError, "must be one array, got list"),
    (lambda: pb.sparse_jacobian(pb.sin, sparsity=np.eye(2)), pb.DTypeError, "matrix of booleans"),
    (lambda: pb.sparse_jacobian(pb.sin, sparsity=([0], [0.5])), pb.DTypeError, "are integers"),
    (
        lambda: pb.sparse_jacobian(pb.sin, sparsity=([0], [2]))(normal(2)),
        pb.ShapeError,
        "does not fit a Jacobian of 2 x 2",
    ),
    (lambda: pb.sparse_jacobian(pb.abs)(pb.tensor([1j])), pb.DTypeError, "one floating dtype"),
    (
        lambda: pb.sparse_jacobian(pb.sin)(normal(2)) @ normal(3),
        pb.ShapeError,
        "takes vectors of 2",
    ),
    (lambda: pb.sparse_jacobian(pb.cumsum)(pb.zeros(1 << 14)), pb.ShapeError, "is not sparse"),
]


@pytest.mark.parametrize("position", range(len(BAD)))
def test_bad_calls(position: int):
    call, error, text = BAD[position]
    with pytest.raises(error) as info:
        call()
    assert text in str(info.value)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("mode", ["auto", "forward", "reverse"])
def test_a_jacobian_with_a_pattern_is_sparse(name: str, mode: str):
    f, x, count = FUNCTIONS[name]
    expected = pb.sparse_jacobian(f)(x).dense().numpy()
    places = pb.jacobian_sparsity(f)(x)
    mask = np.zeros(expected.shape, bool)
    mask[places] = True
    for sparsity in (True, places, mask):
        found, aux = pb.jacobian(
            lambda x: (f(x), x.shape), mode=mode, has_aux=True, sparsity=sparsity
        )(x)
        assert isinstance(found, pb.SparseMatrix)
        assert (len(found.rows), aux) == (count, x.shape)
        np.testing.assert_allclose(found.dense().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_bad_patterns_of_jacobians():
    x = normal(4)
    with pytest.raises(pb.DTypeError, match="jacobian: a sparse Jacobian is by one argument"):
        pb.jacobian(lambda x, y: x * y, (0, 1), sparsity=True)
    with pytest.raises(pb.DTypeError, match="jacobian: the function must return one array"):
        pb.jacobian(lambda x: (x, x), sparsity=True)(x)
    with pytest.raises(pb.ShapeError, match="jacobian: the pattern does not fit"):
        pb.jacobian(lambda x: x, sparsity=(np.array([5]), np.array([0])))(x)
    with pytest.raises(pb.DTypeError, match="jacobian: sparsity is"):
        pb.jacobian(lambda x: x, sparsity=np.ones(3))
    with pytest.raises(pb.DTypeError, match="jacobian: mode is one of"):
        pb.jacobian(lambda x: x, mode="backward", sparsity=True)
    assert isinstance(pb.jacobian(lambda x: x, sparsity=False)(x), pb.Tensor)
