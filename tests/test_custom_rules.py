"""`custom_jvp`, `stop_gradient`, solutions of equations: any order and mode, mapped, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb


def f64(*values: float) -> Any:
    return pb.tensor(list(values), dtype="float64")


def near(found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)


def slope(f: Callable[[Any], Any], x: Any, h: float = 1e-4) -> np.ndarray:
    """The derivative of a scalar function by each element, by differences of fourth order."""
    found = np.zeros(x.shape)
    for at in np.ndindex(x.shape):
        step = np.zeros(x.shape)
        step[at] = h
        for n, c in ((1, 8.0), (2, -1.0)):
            up, down = (f(pb.tensor(x.numpy() + s * n * step)).item() for s in (1, -1))
            found[at] += c * (up - down) / (12 * h)
    return found


def check_orders(f: Callable[[Any], Any], x: Any, tolerance: float = 1e-7) -> None:
    """Orders 1 to 3 of a scalar function against differences; both modes; compiled."""
    v = pb.cos(x * 3.0)
    along = lambda f: lambda x: pb.jvp(f, (x,), (v,))[1]  # noqa: E731
    back = lambda f: lambda x: (pb.grad(f)(x) * v).sum()  # noqa: E731
    before = f
    for order in (1, 2, 3):
        near(pb.grad(before)(x), slope(before, x), tolerance)
        expected = back(before)(x).numpy()
        near(along(before)(x), expected, tolerance)
        near(pb.jit(along(before))(x), expected, tolerance)
        near(pb.jit(back(before))(x), expected, tolerance)
        before = along(before) if order == 1 else back(before)


# -- custom_jvp ------------------------------------------------------------------------------------


@pb.custom_jvp
def pair(x: Any, y: Any) -> Any:
    return {"a": pb.sin(x) * y, "b": y * 2.0}


pair.defjvp(
    lambda xs, ts: (
        pair(*xs),
        {"a": pb.cos(xs[0]) * xs[1] * ts[0] + pb.sin(xs[0]) * ts[1], "b": ts[1] * 20.0},
    )
)


def test_a_forward_rule_serves_all_orders_and_both_modes():
    check_orders(lambda x: (pair(x, x * x)["a"] ** 2).sum(), f64(0.3, -0.8, 1.4))
    x, y = f64(0.3, -0.8), f64(2.0, 3.0)
    near(pb.grad(lambda y: pair(x, y)["b"].sum())(y), [20.0, 20.0])
    near(pb.jvp(lambda y: pair(x, y)["b"], (y,), (y,))[1], [40.0, 60.0])


def test_a_forward_rule_inside_and_outside_of_maps():
    x, y = f64(0.3, -0.8, 1.4), f64(2.0, 3.0, 4.0)
    both = pb.grad(lambda x, y: pair(x, y)["a"] + pair(x, y)["b"], (0, 1))
    first, second = pb.vmap(both)(x, y)
    near(first, np.cos(x.numpy()) * y.numpy())
    near(second, np.sin(x.numpy()) + 20.0)
    total = pb.grad(lambda y: pb.vmap(lambda x, y: pair(x, y)["b"])(x, y).sum())
    near(total(y), np.full(3, 20.0))
    near(pb.jit(total)(y), np.full(3, 20.0))


@pb.custom_jvp
def picked(x: Any, i: Any) -> Any:
    return x[i] * 1.0, i + 1


picked.defjvp(lambda xs, ts: (picked(*xs), (ts[0][xs[1]] * 5.0, ts[1])))


def test_a_forward_rule_with_integers():
    x, i = f64(1.0, 2.0, 3.0), pb.tensor([2, 0])
    near(pb.grad(lambda x: picked(x, i)[0].sum())(x), [5.0, 0.0, 5.0])
    assert not picked(pb.tensor(x, requires_grad=True), i)[1].requires_grad


def test_bad_forward_rules():
    one = pb.tensor(1.0, requires_grad=True)
    none = pb.custom_jvp(lambda x: x)
    with pytest.raises(pb.GradientError, match="no rule was given"):
        none(one)
    none.defjvp(lambda xs, ts: ts[0])
    with pytest.raises(pb.ShapeError, match=r"must return \(result, tangent\)"):
        pb.grad(none)(one)
    none.defjvp(lambda xs, ts: (xs[0], (ts[0],)))
    with pytest.raises(pb.ShapeError, match="must look like the result"):
        pb.grad(none)(one)
    none.defjvp(lambda xs, ts: (xs[0], pb.zeros(2)))
    with pytest.raises(pb.ShapeError, match=r"must be float32\[\] like the result"):
        pb.grad(none)(one)
    lost = pb.custom_jvp(lambda x: x * one)
    lost.defjvp(lambda xs, ts: (xs[0], ts[0]))
    with pytest.raises(pb.GradientError, match="captures a tensor"):
        pb.grad(lost)(pb.tensor(2.0))
    with pytest.raises(pb.DTypeError, match="must be a tensor or a tree"):
        pb.grad(lambda x: none({"x": x, "n": 3}))(one)


# -- stop_gradient ---------------------------------------------------------------------------------


def test_nothing_flows_through_stop_gradient():
    f = lambda x: (pb.stop_gradient({"a": x, "n": 3})["a"] * x * x).sum()  # noqa: E731
    x = f64(1.0, 2.0)
    for wrap in (lambda f: f, pb.jit):
        near(wrap(pb.grad(f))(x), 2 * x.numpy() ** 2)
        near(wrap(pb.hessian(f))(x), np.diag(2 * x.numpy()))
        near(wrap(lambda x: pb.jvp(f, (x,), (x,))[1])(x), 2 * (x.numpy() ** 3).sum())
        near(wrap(pb.vmap(pb.grad(f)))(x), 2 * x.numpy() ** 2)


# -- equations -------------------------------------------------------------------------------------


def newton(f: Callable[[Any], Any], x: Any) -> Any:
    """Zeros of each component for itself."""
    for _ in range(30):
        y, t = pb.jvp(f, (x,), (pb.ones(x.shape, dtype=x.dtype),))
        x = x - y / t
    return x


def cube_root(a: Any) -> Any:
    return pb.custom_root(lambda x: x**3 - a, pb.ones(a.shape, dtype=a.dtype), newton)


def test_roots_have_derivatives_of_all_orders():
    a = f64(2.0, 8.0, 0.5)
    near(cube_root(a), np.cbrt(a.numpy()))
    check_orders(lambda a: (cube_root(a) ** 2).sum(), a)
    near(pb.vmap(pb.grad(cube_root))(a), a.numpy() ** (-2 / 3) / 3)
    near(pb.grad(lambda a: pb.vmap(cube_root)(a).sum())(a), a.numpy() ** (-2 / 3) / 3)
    near(
        pb.jit(pb.hessian(lambda a: cube_root(a).sum()))(a), np.diag(-2 / 9 * a.numpy() ** (-5 / 3))
    )


def test_roots_of_trees_and_of_what_is_captured():
    w = pb.tensor([[2.0, 1.0], [0.5, 3.0]], dtype="float64", requires_grad=True)

    def f(x: Any) -> Any:
        return {"u": w @ x["u"] - x["v"], "v": x["v"] ** 3 - w[0]}

    def solve(f: Any, x: Any) -> Any:
        v = pb.cbrt(w.detach()[0])
        return {"u": pb.linalg.solve(w.detach(), v), "v": v}

    init = {"u": pb.zeros(2, dtype="float64"), "v": pb.ones(2, dtype="float64")}
    found = pb.custom_root(f, init, solve)
    found["u"].sum().backward()

    def direct(w: Any) -> Any:
        return pb.linalg.solve(w, pb.cbrt(w[0])).sum()

    near(w.grad, pb.grad(direct)(w.detach()).numpy())


def conjugate_gradients(product: Callable[[Any], Any], b: Any) -> Any:
    def step(state: Any) -> Any:
        x, r, p, rr = state
        q = product(p)
        alpha = rr / (p * q).sum()
        r = r - alpha * q
        new = (r * r).sum()
        return x + alpha * p, r, r + (new / rr) * p, new

    start = (b * 0.0, b, b, (b * b).sum())
    return pb.while_loop(lambda s: s[3] > 1e-26, step, start)[0]


MATRIX = np.asarray([[4.0, 1.0, 0.0], [1.0, 3.0, -1.0], [0.0, -1.0, 2.0]])


def test_linear_solutions_are_differentiable_by_matrix_and_right_side():
    b = f64(1.0, -2.0, 0.5)

    def solved(t: Any) -> Any:
        m = pb.tensor(MATRIX) + pb.reshape(t, (3, 1)) * pb.reshape(t, (1, 3))
        x = pb.custom_linear_solve(
            lambda v: m @ v, b * pb.exp(t), conjugate_gradients, symmetric=True
        )
        return (x * x).sum()

    t = f64(0.3, -0.2, 0.9)
    check_orders(solved, t)
    batch = pb.stack([t, t * 2.0])
    each = np.stack([pb.grad(solved)(t).numpy(), pb.grad(solved)(t * 2.0).numpy()])
    near(pb.vmap(pb.grad(solved))(batch), each)


def test_a_transposed_solver_is_used_in_reverse_mode():
    seen = []
    m = pb.tensor([[2.0, 1.0], [0.0, 4.0]], dtype="float64")

    def forward(product: Any, b: Any) -> Any:
        seen.append("forward")
        return pb.linalg.solve(m, b)

    def transposed(product: Any, b: Any) -> Any:
        seen.append("transposed")
        near(product(b).detach(), m.numpy().T @ b.detach().numpy())
        return pb.linalg.solve(m.mT, b)

    def f(b: Any) -> Any:
        return pb.custom_linear_solve(lambda v: m @ v, b, forward, transposed)[0]

    near(pb.grad(f)(f64(1.0, 2.0)), np.linalg.inv(m.numpy())[0])
    assert seen == ["forward", "transposed"]


def test_fixed_points_have_derivatives_of_all_orders():
    def f(a: Any) -> Any:
        step = lambda x: {"u": pb.cos(a * x["u"] + 0.1 * x["v"]), "v": 0.3 * x["u"]}  # noqa: E731
        init = {"u": pb.ones(2, dtype="float64"), "v": pb.zeros(2, dtype="float64")}
        return (pb.fixed_point(step, init)["u"] ** 2).sum()

    a = f64(0.5, 0.9)
    check_orders(f, a, 1e-6)
    batch = pb.stack([a, a * 0.5])
    each = np.stack([pb.grad(f)(a).numpy(), pb.grad(f)(a * 0.5).numpy()])
    near(pb.vmap(pb.grad(f))(batch), each)


def test_what_is_changed_in_between_is_noticed():
    a = pb.tensor([2.0, 8.0], requires_grad=True)
    root = pb.custom_root(lambda x: x**3 - a, pb.ones(2), newton)
    with pb.no_grad():
        a += 1.0
    with pytest.raises(pb.GradientError, match="custom_root: something that the function captures"):
        root.sum().backward()


def test_steps_that_do_not_end():
    with pytest.raises(pb.PullbackError, match="changes still after 7"):
        pb.fixed_point(lambda x: x + 1.0, pb.tensor(0.0), max_steps=7)
    found = pb.jit(lambda x: pb.fixed_point(lambda x: x + 1.0, x, max_steps=7))(pb.tensor(0.0))
    assert np.isnan(found.numpy())
    some = pb.vmap(lambda a: pb.fixed_point(lambda x: a * x, a * 0 + 1.0, max_steps=200))
    found = some(f64(0.1, 2.0)).numpy()
    assert np.isfinite(found[0])
    assert np.isnan(found[1])


BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: pb.fixed_point(lambda x: (x, x), pb.zeros(2)), pb.ShapeError, "f(x) must be an array"),
    (lambda: pb.fixed_point(lambda x: x[0], pb.zeros(2)), pb.ShapeError, "f(x) must be float32[2]"),
    (lambda: pb.fixed_point(pb.sin, pb.tensor(1)), pb.DTypeError, "must be floating or complex"),
    (lambda: pb.fixed_point(pb.sin, pb.zeros(2), max_steps=0), pb.DTypeError, "got 0"),
    (
        lambda: pb.custom_root(pb.sin, pb.zeros(2), lambda f, x: x[0]),
        pb.ShapeError,
        "the solution must be float32[2]",
    ),
    (
        lambda: pb.custom_linear_solve(pb.sin, pb.zeros(2), lambda p, b: (b, b)),
        pb.ShapeError,
        "the solution must be an array",
    ),
]


@pytest.mark.parametrize("position", range(len(BAD)))
def test_bad_equations(position: int):
    call, error, text = BAD[position]
    with pytest.raises(error) as info:
        call()
    assert text in str(info.value)
