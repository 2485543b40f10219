"""Jacobians, Hessians, Laplacians, linear functions and estimates: values, trees, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb


def normal(*shape: int, seed: int = 0) -> Any:
    return pb.tensor(np.random.default_rng(seed).normal(size=shape))


def near(found: Any, expected: Any, tolerance: float = 1e-10) -> None:
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)


def differences(f: Callable[[Any], Any], x: Any, h: float = 1e-5) -> np.ndarray:
    """The Jacobian of `f` by central differences."""
    columns = []
    for k in range(x.size):
        step = np.zeros(x.size)
        step[k] = h
        up, down = (f(pb.tensor(x.numpy() + s * step.reshape(x.shape))).numpy() for s in (1, -1))
        columns.append((up - down) / (2 * h))
    return np.stack(columns, axis=-1).reshape(columns[0].shape + x.shape)


WEIGHT = normal(3, 4, seed=9)


def model(x: Any) -> Any:
    """From shape (2, 3) to shape (2, 4), not linear, with control flow."""
    y = pb.tanh(x @ WEIGHT) * x.sum()
    return pb.scan(lambda c, r: (c * 0.5 + r, pb.sin(c * r)), y[0] * 0.0, y)[1] + y


def scalar(x: Any) -> Any:
    return (model(x) ** 2).sum() + pb.cond(x[0, 0] > 0, pb.exp, pb.cos, x[0, 1])


MODES: dict[str, Callable[..., Any]] = {
    "auto": pb.jacobian,
    "forward": pb.jacfwd,
    "reverse": pb.jacrev,
}


@pytest.mark.parametrize("mode", MODES)
def test_jacobians_are_those_of_differences_and_of_the_compiled_function(mode: str):
    x = normal(2, 3)
    jacobian = MODES[mode](model)
    near(jacobian(x), differences(model, x), 1e-8)
    near(pb.jit(jacobian)(x), jacobian(x).numpy(), 1e-13)
    near(jacobian(x), pb.jacobian(pb.jit(model), mode="reverse")(x).numpy(), 1e-12)
    assert not jacobian(x).requires_grad


def test_jacobians_do_not_loop_over_rows_or_columns():
    calls = []

    def f(x: Any) -> Any:
        calls.append(1)
        return pb.sin(x) * x[::-1]

    for jacobian in MODES.values():
        calls.clear()
        assert jacobian(f)(normal(50)).shape == (50, 50)
        assert len(calls) == 1


def test_trees_in_and_out():
    params = {"w": normal(3, 2), "b": (normal(2, seed=1), normal(seed=2))}

    def f(p: Any, x: Any) -> Any:
        y = pb.sin(x @ p["w"] + p["b"][0]) * p["b"][1]
        return {"y": y, "n": [y.sum()]}

    x = normal(4, 3, seed=3)
    for jacobian in MODES.values():
        found = jacobian(f)(params, x)
        assert found["y"]["w"].shape == (4, 2, 3, 2)
        assert found["n"][0]["b"][1].shape == ()
        near(found["n"][0]["w"], found["y"]["w"].numpy().sum((0, 1)))
        swapped = lambda w: f({"w": w, "b": params["b"]}, x)["y"]  # noqa: E731
        near(found["y"]["w"], differences(swapped, params["w"]), 1e-8)
        both = jacobian(f, argnums=(0, -1))(params, x)
        near(both["y"][0]["b"][0], found["y"]["b"][0].numpy())
        assert both["y"][1].shape == (4, 2, 4, 3)


def test_results_and_arguments_of_no_and_of_one_element():
    for jacobian in MODES.values():
        assert jacobian(lambda x: x * 2.0)(pb.zeros((0,))).shape == (0, 0)
        assert jacobian(lambda x: pb.zeros(3) * x.sum())(pb.zeros((0,))).shape == (3, 0)
        assert jacobian(pb.sin)(pb.tensor(0.0)).item() == 1.0
        near(jacobian(lambda x: pb.ones(2))(pb.tensor([1.0, 2.0])), np.zeros((2, 2)))


def test_auxiliary_results_come_along():
    found, aux = pb.jacobian(lambda x: (x * x, {"x": x, "n": 3}), has_aux=True)(pb.ones(2))
    near(found, 2 * np.eye(2))
    assert aux["n"] == 3
    assert not aux["x"].requires_grad


def test_holomorphic_functions_and_complex_results_of_real_arguments():
    z = pb.tensor([0.3 + 0.2j, -0.4 + 1.0j])
    expected = np.diag(2 * z.numpy() * np.exp(z.numpy() ** 2))
    for jacobian in MODES.values():
        near(jacobian(lambda z: pb.exp(z * z))(z), expected, 1e-5)
    x = normal(2)
    wave = lambda x: pb.exp(x * 1j)  # noqa: E731
    for jacobian in (pb.jacobian, pb.jacfwd):
        near(jacobian(wave)(x), np.diag(1j * np.exp(1j * x.numpy())))
    with pytest.raises(pb.DTypeError, match="Use forward mode"):
        pb.jacrev(wave)(x)


def test_jacobians_are_differentiable_and_map():
    x = normal(2, 3)
    total = lambda x: (pb.jacobian(model)(x) ** 2).sum()  # noqa: E731
    near(pb.grad(total)(x), differences(total, x).reshape(2, 3), 1e-6)
    near(pb.jit(pb.grad(total))(x), pb.grad(total)(x).numpy())
    batch = normal(4, 2, 3, seed=5)
    found = pb.vmap(pb.jacobian(model))(batch)
    near(found, np.stack([pb.jacobian(model)(pb.tensor(b)).numpy() for b in batch.numpy()]))
    w = pb.tensor([1.0, 2.0], requires_grad=True)
    pb.jacobian(lambda x: x * x * w)(pb.tensor([3.0, 4.0])).sum().backward()
    near(w.grad.detach(), [6.0, 8.0])


def test_hessians_and_products_with_them():
    x = normal(2, 3)
    expected = differences(pb.grad(scalar), x)
    near(pb.hessian(scalar)(x), expected, 1e-6)
    near(pb.jit(pb.hessian(scalar))(x), pb.hessian(scalar)(x).numpy(), 1e-12)
    v = normal(2, 3, seed=4)
    product = np.einsum("ijkl,kl->ij", pb.hessian(scalar)(x).numpy(), v.numpy())
    near(pb.hvp(scalar, (x,), (v,)), product)
    near(pb.jit(lambda x, v: pb.hvp(scalar, (x,), (v,)))(x, v), product)
    batch = normal(3, 2, 3, seed=6)
    found = pb.jit(pb.vmap(pb.hessian(scalar)))(batch)
    near(found, np.stack([pb.hessian(scalar)(pb.tensor(b)).numpy() for b in batch.numpy()]))


def test_a_hessian_by_a_tree_is_a_tree_of_trees():
    f = lambda p, q: (p["a"] ** 2 * q).sum() * p["b"]  # noqa: E731
    p, q = {"a": normal(2), "b": normal(seed=1)}, normal(2, seed=2)
    found = pb.hessian(f)(p, q)
    near(found["a"]["a"], np.diag(2 * (q * p["b"]).numpy()))
    near(found["a"]["b"], 2 * (p["a"] * q).numpy())
    near(found["b"]["b"], 0.0)
    mixed = pb.hessian(f, argnums=(0, 1))(p, q)
    near(mixed[0]["a"][1], np.diag(2 * (p["a"] * p["b"]).numpy()))


def test_laplacians_and_divergences():
    x = normal(2, 3)
    matrix = pb.hessian(scalar)(x).numpy().reshape(6, 6)
    near(pb.laplacian(scalar)(x), np.trace(matrix))
    near(pb.jit(pb.laplacian(scalar))(x), np.trace(matrix))
    near(pb.laplacian(model)(x), np.einsum("abijij->ab", pb.jacfwd(pb.jacfwd(model))(x).numpy()))
    near(pb.divergence(pb.grad(scalar))(x), np.trace(matrix))
    tree = {"a": normal(2), "b": normal(3, seed=1)}
    g = lambda t: (t["a"] ** 3).sum() * (t["b"] ** 2).sum()  # noqa: E731
    a, b = tree["a"].numpy(), tree["b"].numpy()
    expected = 6 * a.sum() * (b**2).sum() + 6 * (a**3).sum()
    near(pb.laplacian(g)(tree), expected)
    near(pb.divergence(pb.grad(g))(tree), expected)
    near(pb.divergence(lambda x: pb.zeros(3) + 1.0)(normal(3)), 0.0)
    points = normal(5, 2, 3, seed=7)
    found = pb.jit(pb.vmap(pb.laplacian(scalar)))(points)
    near(found, [pb.laplacian(scalar)(pb.tensor(p)).item() for p in points.numpy()])
    slope = pb.grad(pb.laplacian(scalar))
    near(slope(x), differences(pb.laplacian(scalar), x).reshape(2, 3), 1e-5)


def test_gauss_newton_products():
    x, v = normal(2, 3), normal(2, 3, seed=1)
    loss = lambda z: (pb.exp(z) + z * z).sum()  # noqa: E731
    j = pb.jacobian(model)(x).numpy().reshape(8, 6)
    h = pb.hessian(loss)(model(x)).numpy().reshape(8, 8)
    found = pb.gnvp(model, loss, (x,), (v,))
    near(found, (j.T @ h @ j @ v.numpy().reshape(6)).reshape(2, 3))
    near(pb.jit(lambda x, v: pb.gnvp(model, loss, (x,), (v,)))(x, v), found.numpy())
    pair = pb.gnvp(lambda a, b: a * b, lambda z: (z * z).sum(), (v, x), (x, v))
    assert len(pair) == 2


def test_linearized_functions_and_transposes():
    x, v, g = normal(2, 3), normal(2, 3, seed=1), normal(2, 4, seed=2)
    calls = []

    def counted(x: Any) -> Any:
        calls.append(1)
        return model(x)

    y, along = pb.linearize(counted, x)
    near(y, model(x).numpy())
    near(along(v), pb.jvp(model, (x,), (v,))[1].numpy())
    near(pb.vmap(along)(pb.stack([v, v * 2.0]))[1], 2 * along(v).numpy())
    assert len(calls) == 1
    (back,) = pb.linear_transpose(along, x)(g)
    near(back, pb.vjp(model, x)[1](g)[0].numpy())
    f = lambda a, b: {"u": a @ WEIGHT - b, "s": b[::-1]}  # noqa: E731
    to = pb.linear_transpose(
        f, pb.zeros((2, 3), dtype="float64"), pb.zeros((2, 4), dtype="float64")
    )
    first, second = to({"u": g, "s": g})
    near(first, g.numpy() @ WEIGHT.numpy().T)
    near(second, g.numpy()[::-1] - g.numpy())


def test_estimates_are_exact_on_average():
    m = normal(6, 6)
    product = lambda v: m @ v  # noqa: E731
    key, like = pb.random.key(1), pb.zeros(6, dtype="float64")
    one = pb.hutchinson_trace(product, like, key)
    near(pb.hutchinson_trace(product, like, key), one.numpy())  # the same key, the same vectors
    samples = 20000
    trace = pb.hutchinson_trace(product, like, key, samples=samples)
    off = m.numpy() + m.numpy().T
    spread = np.sqrt((np.tril(off, -1) ** 2).sum() / samples)
    assert abs(trace.item() - np.trace(m.numpy())) < 4 * spread
    diagonal = pb.jit(lambda k: pb.hutchinson_diagonal(product, like, k, samples=samples))(key)
    assert np.abs(diagonal.numpy() - np.diag(m.numpy())).max() < 4 * np.sqrt(30 / samples)
    tree = {"a": normal(2), "b": normal(3, seed=1)}
    halves = pb.map_tree(lambda x: x * 0.5, tree)
    found = pb.hutchinson_diagonal(lambda v: pb.map_tree(lambda x: x * 3.0, v), tree, key)
    near(found["b"], np.full(3, 3.0))
    assert pb.hutchinson_trace(lambda v: v, halves, key).item() == 5.0


X = pb.ones((2, 3))
BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: pb.hessian(lambda x: x * x)(X), pb.GradientError, "hessian: the function must return"),
    (lambda: pb.hessian(lambda x: 3.0)(X), pb.GradientError, "got float"),
    (lambda: pb.jacobian(pb.sin, mode="sideways")(X), pb.DTypeError, "got 'sideways'"),
    (lambda: pb.jacobian(pb.sin, argnums=1)(X), pb.GradientError, "jacobian: argnums names"),
    (lambda: pb.jacobian(pb.sin)(pb.tensor([1, 2])), pb.DTypeError, "array of dtype int64"),
    (lambda: pb.jacobian(lambda x: x > 0)(X), pb.DTypeError, "must return floating or complex"),
    (lambda: pb.jacobian(lambda x: x, has_aux=True)(X), pb.DTypeError, "(result, anything)"),
    (lambda: pb.jacrev(pb.abs)(pb.tensor([1j])), pb.DTypeError, "no complex derivative"),
    (lambda: pb.divergence(lambda x: x.sum())(X), pb.ShapeError, "the shape of the argument"),
    (lambda: pb.divergence(lambda x: (x, x))(X), pb.ShapeError, "must look like the argument"),
    (lambda: pb.laplacian(pb.sin)(pb.tensor([1, 2])), pb.DTypeError, "dtype int64"),
    (lambda: pb.gnvp(pb.sin, pb.sin, (X,), (X,)), pb.GradientError, "gnvp: the function must"),
    (
        lambda: pb.linearize(pb.sin, X)[1](pb.ones(3)),
        pb.ShapeError,
        "directions[0] must have the shape",
    ),
    (lambda: pb.linear_transpose(pb.sin, X), pb.GradientError, "is not linear"),
    (lambda: pb.linear_transpose(pb.negative, X)(pb.ones(3)), pb.ShapeError, "cotangent must"),
    (
        lambda: pb.hutchinson_trace(lambda v: v, X, pb.random.key(0), samples=0),
        pb.DTypeError,
        "got 0",
    ),
    (
        lambda: pb.hutchinson_trace(lambda v: v.sum(), X, pb.random.key(0)),
        pb.ShapeError,
        "must look like the vector",
    ),
]


@pytest.mark.parametrize("position", range(len(BAD)))
def test_bad_calls(position: int):
    call, error, text = BAD[position]
    with pytest.raises(error) as info:
        call()
    assert text in str(info.value)


class Scaled:
    """A container whose second leaf is data."""

    def __init__(self, weight: Any, data: Any):
        self.weight, self.data = weight, data


pb.register_pytree(
    Scaled,
    lambda s: ([s.weight, s.data], None),
    lambda info, leaves: Scaled(*leaves),
    fixed=lambda info: (False, True),
)


def test_what_a_container_calls_fixed_has_zero_derivatives():
    given = Scaled(normal(2), pb.tensor([3, 4]))
    f = lambda s: s.weight**3 * s.data  # noqa: E731
    expected = np.diag(3 * given.weight.numpy() ** 2 * [3, 4])
    for jacobian in MODES.values():
        found = jacobian(f)(given)
        near(found.weight, expected)
        near(found.data, np.zeros((2, 2)))
    near(pb.laplacian(lambda s: f(s).sum())(given), (6 * given.weight.numpy() * [3, 4]).sum())
    near(pb.hessian(lambda s: f(s).sum())(given).weight.weight, 2 * expected / given.weight.numpy())
