"""Taylor mode: curves, trees, control flow, rules of one's own, other transforms, bad input."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb


def nested(f: Callable[[Any], Any], x: Any, v: Any, order: int) -> list[Any]:
    """The derivatives of orders 0 to `order` by forward mode of forward mode."""
    found = [f(x)]
    for _ in range(order):
        before = f
        f = lambda x, before=before: pb.jvp(before, (x,), (v,))[1]  # noqa: E731
        found.append(f(x))
    return found


def agree(found: list[Any], expected: list[Any]) -> None:
    for x, y in zip(found, expected, strict=True):
        scale = float(np.max(np.abs(y.numpy()), initial=1.0))
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=0, atol=1e-10 * scale)


X = pb.tensor([0.3, 0.7, 1.2], dtype="float64")
V = pb.tensor([0.5, -1.0, 2.0], dtype="float64")
M = pb.tensor(np.random.default_rng(0).normal(size=(3, 3)))


def newton(f: Callable[[Any], Any], y: Any) -> Any:
    for _ in range(30):
        value, slope = pb.jvp(f, (y,), (pb.ones_like(y),))
        y = y - value / slope
    return y


def own_vjp() -> Callable[[Any], Any]:
    f = pb.custom_vjp(lambda x: pb.exp(x) * x)
    f.defvjp(lambda x: (f(x), x), lambda x, g: (g * (pb.exp(x) * x + pb.exp(x)),))
    return f


def own_jvp() -> Callable[[Any], Any]:
    f = pb.custom_jvp(lambda x: pb.exp(x) * x)
    f.defjvp(lambda xs, ts: (f(*xs), ts[0] * (f(*xs) + pb.exp(xs[0]))))
    return f


def counted(x: Any) -> Any:
    step = lambda s: (s[0] + 1, pb.sin(s[1]) * x)  # noqa: E731
    return pb.while_loop(lambda s: s[0] < 3, step, (pb.tensor(0), x * x))[1]


def updated(x: Any) -> Any:
    y = pb.exp(x)
    y[1] = y[0] * x[2]
    return y * y


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "network": lambda x: pb.tanh(M @ pb.tanh(M @ x)),
    "quotient": lambda x: pb.sin(x) / (x * x + 1.0) + pb.cos(x),
    "roots": lambda x: pb.sqrt(x) * x**2.5 + pb.log(x) + x**3 + x**x,
    "gamma": lambda x: pb.lgamma(x) * pb.erf(x),
    "solve": lambda x: pb.linalg.solve(M + pb.outer(x, x), x * x),
    "cholesky": lambda x: pb.linalg.cholesky(
        pb.outer(x, x) + 2.0 * pb.tensor(np.eye(3), dtype="float64")
    ),
    "sort": lambda x: pb.sort(x * x)[::-1],
    "update": updated,
    "scan": lambda x: pb.scan(lambda c, r: (pb.sin(c) * r + x, c * r), x, pb.stack([x, x + 1]))[1],
    "while": counted,
    "cond": lambda x: pb.cond(x.sum() > 0, lambda x: pb.sin(x) * x, lambda x: x, x),
    "vmap": lambda x: pb.vmap(lambda a: pb.sin(a) * pb.exp(x))(pb.stack([x, x * x])),
    "checkpoint": lambda x: pb.checkpoint(lambda a: pb.sin(a) * pb.exp(x))(x * x),
    "custom_vjp": lambda x: own_vjp()(x * x),
    "custom_jvp": lambda x: own_jvp()(x * x),
    "root": lambda x: pb.custom_root(
        lambda y: y**3 + y - x, pb.ones_like(x), newton, lambda g, y: y / g(pb.ones_like(y))
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_orders_agree_with_nested_forward_mode(name: str):
    f = FUNCTIONS[name]
    expected = nested(f, X, V, 4)
    for order in (1, 2, 4):
        agree(pb.jet(f, X, order=order, direction=V), expected[: order + 1])
    agree(pb.jit(lambda x: pb.jet(f, x, order=4, direction=V))(X), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_of_taylor_mode(name: str):
    f = FUNCTIONS[name]
    third = lambda x: (pb.jet(f, x, order=3, direction=V)[3] * 0.5).sum()  # noqa: E731
    other = lambda x: (nested(f, x, V, 3)[3] * 0.5).sum()  # noqa: E731
    if name != "while":  # which has forward mode only
        agree([pb.grad(third)(X)], [pb.grad(other)(X)])
        agree([pb.jit(pb.grad(third))(X)], [pb.grad(other)(X)])
    agree([pb.jvp(third, (X,), (V,))[1]], [pb.jvp(other, (X,), (V,))[1]])


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "while"])
def test_of_compiled_functions(name: str):
    f = FUNCTIONS[name]
    agree(pb.jet(pb.jit(f), X, order=3, direction=V), nested(f, X, V, 3))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_inside_vmap(name: str):
    f = FUNCTIONS[name]
    rows = pb.stack([X, X + 0.1])
    found = pb.vmap(lambda x: pb.jet(f, x, order=3, direction=V)[3])(rows)
    agree([found[0], found[1]], [nested(f, row, V, 3)[3] for row in (rows[0], rows[1])])


def test_every_element_moves_at_speed_one():
    found = pb.jet(lambda x: pb.sin(x) * pb.exp(x), X, order=5)
    one = pb.tensor(1.0, dtype="float64")
    for i in range(3):
        alone = nested(lambda x: pb.sin(x) * pb.exp(x), X[i], one, 5)
        agree([y[i] for y in found], alone)


def test_a_series_is_a_curve():
    curve = lambda t: X + V * t + M[0] * t**2 / 2 + M[1] * t**3 / 6  # noqa: E731
    f = FUNCTIONS["network"]
    zero, one = pb.tensor(0.0, dtype="float64"), pb.tensor(1.0, dtype="float64")
    expected = nested(lambda t: f(curve(t)), zero, one, 4)
    agree(pb.jet(f, X, series=[V, M[0], M[1]]), expected[:4])
    agree(pb.jet(f, X, order=4, series=[V, M[0], M[1]]), expected)


def test_a_series_may_begin_with_zero():
    f = FUNCTIONS["scan"]
    still = pb.zeros_like(X)
    zero, one = pb.tensor(0.0, dtype="float64"), pb.tensor(1.0, dtype="float64")
    expected = nested(lambda t: f(X + V * t * t), zero, one, 4)
    agree(pb.jet(f, X, order=4, series=[still, 2.0 * V]), expected)


def test_trees():
    tree = {"a": X, "b": (V,)}
    f = lambda t: {"y": pb.sin(t["a"]) * t["b"][0], "z": [t["b"][0] ** 3]}  # noqa: E731
    found = pb.jet(f, tree, order=2, direction={"a": V, "b": (X,)})
    assert [sorted(y) for y in found] == [["y", "z"]] * 3
    line = lambda t: f({"a": X + t * V, "b": (V + t * X,)})["y"]  # noqa: E731
    zero, one = pb.tensor(0.0, dtype="float64"), pb.tensor(1.0, dtype="float64")
    agree([y["y"] for y in found], nested(line, zero, one, 2))
    agree([found[2]["z"][0]], [6.0 * V * X * X])


def test_results_that_do_not_move_are_zero_and_untracked():
    found = pb.jet(lambda x: (x * 2.0, pb.floor(x), V), X, order=3)
    agree([y[0] for y in found], [X * 2.0, pb.ones_like(X) * 2.0, *[pb.zeros_like(X)] * 2])
    for y in found[1:]:
        assert not y[1].numpy().any() and not y[2].numpy().any()
    assert not any(z.requires_grad for y in found for z in y)


def test_captured_variables_get_gradients():
    w = pb.tensor(M.numpy(), requires_grad=True)
    pb.jet(lambda x: pb.tanh(w @ x), X, order=2)[2].sum().backward()
    loss = lambda w: nested(lambda x: pb.tanh(w @ x), X, pb.ones_like(X), 2)[2].sum()  # noqa: E731
    agree([w.grad], [pb.grad(loss)(M)])


def test_complex_arguments():
    z = pb.tensor([0.3 + 0.2j, 1.0 - 0.5j], dtype="complex128")
    f = lambda z: pb.exp(z) * z / (z + 2.0)  # noqa: E731
    agree(pb.jet(f, z, order=4), nested(f, z, pb.ones_like(z), 4))


def equations(order: int) -> int:
    f = lambda x: pb.tanh(pb.sin(x) / pb.exp(x))  # noqa: E731
    return len(pb.trace(lambda x: pb.jet(f, x, order=order)[order])(X).nodes)


def test_work_grows_with_the_square_of_the_order():
    few, more, most = equations(4), equations(8), equations(16)
    assert more < 4.5 * few
    assert most < 4.5 * more


def test_long_chains_do_not_overflow_the_stack():
    def chain(x: Any) -> Any:
        for _ in range(3000):
            x = pb.sin(x)
        return x

    began = time.perf_counter()
    assert np.isfinite(pb.jet(chain, pb.tensor(0.5, dtype="float64"), order=3)[3].item())
    assert time.perf_counter() - began < 30


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, pb.DTypeError, "jet: order is a positive number of derivatives, got None"),
        ({"order": 0}, pb.DTypeError, "got 0"),
        ({"order": True}, pb.DTypeError, "got True"),
        ({"order": 2.0}, pb.DTypeError, "got 2.0"),
        ({"order": 2, "direction": V, "series": [V]}, pb.DTypeError, "got both"),
        ({"series": []}, pb.DTypeError, "list of derivatives"),
        ({"series": V}, pb.DTypeError, "list of derivatives"),
        ({"order": 1, "series": [V, V]}, pb.ShapeError, "has 2 terms, got order 1"),
        ({"order": 2, "direction": V[:2]}, pb.ShapeError, "the shape of its primal"),
        ({"series": [V, V[:2]]}, pb.ShapeError, "the shape of its primal"),
        ({"order": 2, "direction": (V,)}, pb.ShapeError, "look like the primals"),
    ],
)
def test_bad_input(arguments: dict[str, Any], error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        pb.jet(pb.sin, X, **arguments)


def test_integers_have_no_derivative():
    with pytest.raises(pb.DTypeError, match="jet: can't differentiate by an array of dtype int64"):
        pb.jet(lambda x: x * 2, pb.tensor([1, 2]), order=2)
