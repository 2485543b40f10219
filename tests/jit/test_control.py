"""Control flow: traced against eager, derivatives to third order, carries, bad input."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import pullback as pb
from pullback.core import pytrees
from pullback.ir.control import COND, SCAN, WHILE
from pullback.ir.op import bind


def run(f, *args) -> list[Any]:
    """The results of the traced function, interpreted."""
    arrays, structure = pytrees.flatten(args)
    graph = pb.trace(lambda *xs: f(*pytrees.unflatten(structure, xs)))(*arrays)
    return graph.run(*arrays, bind=bind)


def operations(graph: pb.Graph) -> list[str]:
    return [eq.op.name for eq in graph.equations]


def agree(f, *args, rtol=1e-9):
    """The traced function gives what it gives eagerly."""
    expected = pytrees.leaves(f(*args))
    for a, b in zip(run(f, *args), expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=rtol, atol=1e-10)


def normal(seed: int, *shape: int, dtype="float64") -> pb.Tensor:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=shape)
    if dtype.startswith("complex"):
        values = values + 1j * rng.normal(size=shape)
    return pb.tensor(values * 0.6, dtype=dtype)


def squares(f):
    """The sum of squares of the gradient of `f` by all arguments."""

    def total(*args):
        found = pytrees.leaves(pb.grad(f, tuple(range(len(args))))(*args))
        return sum(((g * g.conj()).real.sum() for g in found), pb.tensor(0.0, dtype="float64"))

    return total


def all_grads(f, *args):
    return pb.grad(f, tuple(range(len(args))))(*args)


# -- functions to differentiate --------------------------------------------------------------------


def recurrent(w, h0, xs):
    """A recurrent net; `w` is closed over."""

    def step(h, x):
        h = pb.tanh(h @ w + x)
        return h, h * h

    h, ys = pb.scan(step, h0, xs)
    return (h * ys.sum(axis=0)).sum()


def backwards(w, h0, xs):
    h, ys = pb.scan(lambda h, x: (pb.sin(h * w[0] + x), pb.exp(-h * h)), h0, xs, reverse=True)
    return (h * h).sum() + (ys * xs).sum()


def carries_only(w, h0, xs):
    h, ys = pb.scan(lambda h, x: (h * pb.cos(x) + w.sum(), None), h0, xs)
    assert ys is None
    return (h**3).sum()


def without_xs(w, h0, xs):
    h, ys = pb.scan(lambda h, _: (pb.sin(h @ w), h), h0, None, length=4)
    return (h * xs[0]).sum() + (ys**3).sum()


def nested(w, h0, xs):
    """A scan in a scan; the inner one closes over the outer carry and over `w`."""

    def outer(h, x):
        def inner(s, row):
            s = pb.sin(s * row + h * 0.5)
            return s, s * x

        s, ys = pb.scan(inner, h, w)
        return s + x * 0.1, ys.sum(axis=0)

    h, ys = pb.scan(outer, h0, xs)
    return (h * h).sum() + (ys**2).sum()


def choice_in_scan(w, h0, xs):
    def step(h, x):
        h = pb.cond(x.sum() > 0, lambda h: pb.sin(h @ w), lambda h: h * h * x, h)
        return h, h

    h, ys = pb.scan(step, h0, xs)
    return (h * ys[0]).sum() + (ys * ys).sum()


def scan_in_choice(w, h0, xs):
    def loop(h):
        return pb.scan(lambda h, x: (pb.tanh(h @ w + x), None), h, xs)[0]

    return (pb.cond(h0[0] > 10.0, lambda h: h * h, loop, h0) ** 2).sum()


def counted(w, h0, xs):
    return (pb.fori_loop(1, 5, lambda i, h: pb.sin(h @ w) + h0 / i, h0) ** 2).sum() + xs.sum()


def gathering(w, h0, xs):
    return (pb.fori_loop(0, 5, lambda i, h: pb.sin(h * xs[i] + w[0]), h0) ** 2).sum()


def gradient_in_body(w, h0, xs):
    """Gradient descent as a loop: its derivative has second derivatives of the loss."""

    def loss(h, x):
        return (pb.sin(h @ w) * x).sum() + (h**4).sum() * 0.1

    return (pb.scan(lambda h, x: (h - 0.3 * pb.grad(loss)(h, x), None), h0, xs)[0] ** 2).sum()


def bounded_loop(w, h0, xs):
    h = pb.while_loop(
        lambda c: c[1] < 3, lambda c: (pb.sin(c[0] @ w) + xs[0], c[1] + 1), (h0, 0), max_steps=5
    )[0]
    return (h * h).sum()


def detached(w, h0, xs):
    """Values that the user cut off stay cut off at every order."""

    def step(h, x):
        with pb.no_grad():
            scale = pb.exp(h * 0.1)
        return pb.sin(h @ w) * h.detach() * w.detach()[0] + x * scale, None

    return (pb.scan(step, h0, xs)[0] ** 2).sum()


@pb.custom_vjp
def steep(x):
    return x * x


steep.defvjp(
    lambda x: (x * x, x), lambda x, g: (g * pb.exp(x),)
)  # not the derivative: it shows who is used


def recomputing(w, h0, xs):
    def inner(c, x):
        h, total = c
        h = pb.tanh(h @ w) * x
        return (h, total + pb.exp(h).sum()), h * w[0]

    def outer(c, x):
        (h, total), ys = pb.scan(inner, (c, x.sum()), xs, recompute=True)
        return pb.sin(h + ys.sum(axis=0)) * total, None

    return (pb.scan(outer, h0, xs[:2], recompute=True)[0] ** 2).sum()


def custom_rule(w, h0, xs):
    return (pb.scan(lambda h, x: (steep(h * w[0]) + x, None), h0, xs)[0] ** 2).sum()


FUNCTIONS = [
    recurrent, backwards, carries_only, without_xs, nested, choice_in_scan, scan_in_choice, counted,
    gathering, gradient_in_body, bounded_loop, detached, custom_rule, recomputing,
]  # fmt: skip
ARGUMENTS = (normal(1, 3, 3), normal(2, 3), normal(3, 5, 3))


@pytest.mark.parametrize("f", FUNCTIONS)
def test_values_and_derivatives_are_those_of_the_eager_loop(f):
    agree(f, *ARGUMENTS)
    agree(lambda *a: all_grads(f, *a), *ARGUMENTS)
    agree(lambda *a: pb.jvp(f, a, a), *ARGUMENTS)
    agree(lambda *a: pb.hvp(f, a, a), *ARGUMENTS)
    agree(lambda *a: pb.grad(lambda *b: pb.jvp(f, b, b)[1], (0, 1, 2))(*a), *ARGUMENTS)
    agree(lambda *a: pb.jvp(lambda *b: pb.jvp(f, b, b)[1], a, a), *ARGUMENTS)


def test_a_scan_that_recomputes_keeps_its_carries_only():
    def loss(recompute):
        def f(w, h0, xs):
            def step(total, x):
                y = pb.exp(pb.tanh(x @ w) * h0)
                return total + pb.log(y + 1.0).sum(), None

            return pb.scan(step, h0.sum(), xs, recompute=recompute)[0]

        return f

    kept = []
    for recompute in (False, True):
        graph = pb.trace(lambda *a, r=recompute: all_grads(loss(r), *a))(*ARGUMENTS)
        first = next(eq for eq in graph.equations if eq.op is SCAN)
        kept.append(len(first.outs) - first.static["carries"])
    assert kept[0] > 0
    assert kept[1] == 0


@pytest.mark.parametrize("f", FUNCTIONS)
def test_third_derivatives_are_those_of_the_eager_loop(f):
    agree(lambda *a: all_grads(squares(f), *a), *ARGUMENTS)
    agree(lambda *a: pb.grad(squares(squares(f)), 1)(*a), *ARGUMENTS, rtol=1e-7)
    agree(lambda *a: pb.jvp(lambda *b: pb.hvp(f, b, b), a, a), *ARGUMENTS, rtol=1e-7)


@pytest.mark.parametrize("f", FUNCTIONS)
def test_compiled_functions_and_their_derivatives(f):
    """Derivatives inside of a compiled function, and of a compiled function."""
    expected = (f(*ARGUMENTS), *all_grads(f, *ARGUMENTS))
    inside = pb.jit(lambda *a: (f(*a), *all_grads(f, *a)))(*ARGUMENTS)
    compiled = pb.jit(f)
    outside = (compiled(*ARGUMENTS), *all_grads(compiled, *ARGUMENTS))
    for found in (inside, outside):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("f", [recurrent, backwards, nested, choice_in_scan, bounded_loop])
def test_traced_derivatives_agree_with_finite_differences(f):
    """The equations are run on tracked arrays, and those derivatives are traced too."""
    pb.check_grad(lambda *a: run(f, *a), *ARGUMENTS, order=2)
    pb.check_grad(lambda *a: run(pb.grad(f, (0, 1)), *a), *ARGUMENTS, order=2)


def test_a_loop_and_its_gradient_are_one_equation_each():
    graph = pb.trace(pb.grad(recurrent, (0, 1, 2)))(*ARGUMENTS)
    assert operations(graph).count("scan") == 2
    forward, back = (eq for eq in graph.equations if eq.op is SCAN)
    assert (forward.static["reverse"], back.static["reverse"]) == (False, True)
    for eq in (forward, back):
        body = eq.static["body"]
        assert not body.constants
        assert len(body.inputs) == len(eq.inputs)
        assert len(body.outputs) == len(eq.outs)


def test_cheap_values_are_computed_again_and_dear_ones_are_kept():
    def f(h0, xs):
        h = pb.scan(lambda h, x: (pb.tanh((h + x) * 2.0 - x * x), None), h0, xs)[0]
        return h.sum()

    graph = pb.trace(pb.grad(f))(*ARGUMENTS[1:])
    forward = next(eq for eq in graph.equations if eq.op is SCAN)
    assert [v.aval.shape for v in forward.outs] == [(3,), (5, 3)], "only tanh itself is kept"


def test_what_nobody_asks_for_is_not_computed():
    def f(h0, xs):
        return pb.scan(lambda c, x: ((c[0] * x, pb.sin(c[1])), None), (h0, h0), xs)[0][0].sum()

    graph = pb.trace(pb.grad(f, 1))(*ARGUMENTS[1:])
    _, back = (eq for eq in graph.equations if eq.op is SCAN)
    names = [eq.op.name for eq in back.static["body"].equations]
    assert "cos" not in names


# -- containers, dtypes, lengths -------------------------------------------------------------------


class State(NamedTuple):
    position: Any
    step: Any
    key: Any


def test_trees_integers_and_random_keys_are_carried():
    def f(scale, x0):
        def step(state, x):
            noise = pb.random.normal(state.key, (3,), dtype="float64")
            position = state.position * x["a"] + noise * scale
            key = pb.random.fold_in(state.key, 7)
            return State(position, state.step + 1, key), {"y": [position, state.step]}

        xs = {"a": pb.linspace(0.5, 1.5, 4, dtype="float64")}
        return pb.scan(step, State(x0, pb.tensor(0), pb.random.key(3)), xs)

    scale, x0 = pb.tensor(0.5, dtype="float64"), normal(1, 3)
    agree(f, scale, x0)
    last, ys = f(scale, x0)
    assert last.step.item() == 4 and ys["y"][1].tolist() == [0, 1, 2, 3]

    def loss(s, x):
        last, ys = f(s, x)
        return (last.position**2).sum() + (ys["y"][0] ** 2).sum()

    agree(lambda s, x: pb.grad(loss, (0, 1))(s, x), scale, x0)
    agree(lambda s, x: pb.hvp(loss, (s, x), (s, x)), scale, x0)


@pytest.mark.parametrize("reverse", [False, True])
def test_complex_carries(reverse):
    def f(w, z0, xs):
        z, ys = pb.scan(lambda z, x: (z * w + x, z * pb.conj(z)), z0, xs, reverse=reverse)
        return pb.real(z * pb.conj(z)).sum() + pb.real(ys * ys).sum()

    args = (normal(1, 2, dtype="complex128"), normal(2, 2, dtype="complex128"),
            normal(3, 4, 2, dtype="complex128"))  # fmt: skip
    agree(f, *args)
    agree(lambda *a: all_grads(f, *a), *args)
    agree(lambda *a: all_grads(squares(f), *a), *args)
    agree(lambda *a: pb.jvp(f, a, a), *args)
    pb.check_grad(lambda *a: run(f, *a), *args, order=2)


def test_no_steps():
    def f(h0, xs):
        h, ys = pb.scan(lambda h, x: (pb.sin(h) * x, {"y": h.sum()}), h0, xs)
        return (h * h).sum() + ys["y"].sum()

    empty = pb.zeros((0, 3), dtype="float64")
    h0 = ARGUMENTS[1]
    agree(f, h0, empty)
    agree(lambda *a: all_grads(f, *a), h0, empty)
    _, ys = pb.scan(lambda h, x: (h, (h, x)), h0, empty)
    assert [y.shape for y in ys] == [(0, 3), (0, 3)]
    assert pb.fori_loop(3, 1, lambda i, c: c + 1.0, h0).tolist() == h0.tolist()


def test_one_step_and_a_constant_y():
    def f(h0, xs):
        return pb.scan(lambda h, x: (h * x, (pb.ones(2), 3)), h0, xs[:1])

    agree(f, *ARGUMENTS[1:])


def test_float32_bits_are_those_of_the_eager_loop():
    args = [a.astype("float32") for a in ARGUMENTS]
    for f in (backwards, carries_only, detached):
        for a, b in zip(run(f, *args), pytrees.leaves(f(*args)), strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes()


# -- models ----------------------------------------------------------------------------------------


def lstm(params, xs):
    """The loss of a small LSTM."""
    size = params["u"].shape[0]

    def step(state, x):
        h, c = state
        gates = x @ params["w"] + h @ params["u"] + params["b"]
        i, f, g, o = (gates[..., k * size : (k + 1) * size] for k in range(4))
        c = pb.sigmoid(f) * c + pb.sigmoid(i) * pb.tanh(g)
        h = pb.sigmoid(o) * pb.tanh(c)
        return (h, c), h

    zero = pb.zeros((xs.shape[1], size), dtype="float64")
    (h, c), ys = pb.scan(step, (zero, zero), xs)
    return (h * c).sum() + (ys * ys).mean()


def test_lstm_gradients():
    params = {"w": normal(1, 3, 16), "u": normal(2, 4, 16), "b": normal(3, 16)}
    xs = normal(4, 7, 2, 3)
    agree(lambda p, x: pb.value_and_grad(lstm)(p, x), params, xs)
    agree(lambda p, x: pb.hvp(lstm, (p, x), (p, x)), params, xs)
    pb.check_grad(lambda p, x: run(lstm, p, x), params, xs, order=1)
    graph = pb.trace(pb.grad(lstm))(params, xs)
    forward = next(eq for eq in graph.equations if eq.op is SCAN)
    assert operations(graph).count("scan") == 2
    assert len(forward.outs) <= 2 + 1 + 7, "four gates, tanh(c), and the two carries"


def three_bodies(q, v, mass, steps=20, dt=0.01):
    """The end of an orbit of three bodies by Runge and Kutta's method."""

    def acceleration(q):
        d = q[None, :, :] - q[:, None, :]
        r2 = (d * d).sum(axis=-1) + 0.01
        return (d * (mass[None, :] / (r2 * pb.sqrt(r2)))[:, :, None]).sum(axis=1)

    def slope(q, v):
        return v, acceleration(q)

    def step(state, _):
        q, v = state
        a1, b1 = slope(q, v)
        a2, b2 = slope(q + 0.5 * dt * a1, v + 0.5 * dt * b1)
        a3, b3 = slope(q + 0.5 * dt * a2, v + 0.5 * dt * b2)
        a4, b4 = slope(q + dt * a3, v + dt * b3)
        q = q + dt / 6 * (a1 + 2 * a2 + 2 * a3 + a4)
        v = v + dt / 6 * (b1 + 2 * b2 + 2 * b3 + b4)
        return (q, v), None

    (q, v), _ = pb.scan(step, (q, v), None, length=steps)
    return (q * q).sum() + (q * v).sum()


def test_gradient_of_an_orbit_of_three_bodies():
    args = (normal(1, 3, 2), normal(2, 3, 2), pb.tensor([1.0, 0.7, 0.4], dtype="float64"))
    agree(lambda *a: all_grads(three_bodies, *a), *args)
    agree(lambda *a: pb.hvp(three_bodies, a, a), *args)
    pb.check_grad(lambda *a: run(three_bodies, *a), *args, order=1)


# -- cond ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [0.4, -0.7])
def test_cond_goes_through_the_chosen_branch_only(x):
    def f(x, w):
        big = lambda x: (pb.sin(x * w), {"n": 1})  # noqa: E731
        small = lambda x: (pb.sqrt(-x) * 2.0, {"n": 2})  # noqa: E731  (nan on the other side)
        return pb.cond(x > 0, big, small, x)

    args = (pb.tensor(x, dtype="float64"), pb.tensor(1.3, dtype="float64"))
    agree(f, *args)
    value = lambda *a: f(*a)[0]  # noqa: E731
    agree(lambda *a: all_grads(value, *a), *args)
    agree(lambda *a: all_grads(squares(value), *a), *args)
    agree(lambda *a: all_grads(squares(squares(value)), *a), *args, rtol=1e-8)
    agree(lambda *a: pb.jvp(value, a, a), *args)
    graph = pb.trace(f)(*args)
    assert operations(graph) == ["greater", "cond"]


def test_cond_on_a_known_predicate_is_not_staged():
    graph = pb.trace(lambda x: pb.cond(True, pb.sin, pb.cos, x))(ARGUMENTS[1])
    assert operations(graph) == ["sin"]


def test_cond_without_operands_closes_over_everything():
    f = lambda x, y: pb.cond(x.sum() > y.sum(), lambda: x * y, lambda: pb.exp(y))  # noqa: E731
    args = (ARGUMENTS[1], normal(5, 3))
    agree(f, *args)
    agree(f, *args[::-1])
    agree(lambda *a: all_grads(lambda *b: (f(*b) ** 2).sum(), *a), *args)


def test_the_branch_that_is_not_chosen_stays_away():
    """With closures alone, too: computed outside, the other branch would give 0 * inf."""
    f = lambda x: pb.cond(x > 0, lambda: x * x, lambda: pb.sqrt(-x) + pb.log(-x))  # noqa: E731
    x = pb.tensor(0.0, dtype="float64") + 2.0
    assert operations(pb.trace(f)(x)) == ["greater", "cond"]
    assert set(operations(pb.trace(pb.grad(f))(x))) <= {"positive", "greater", "cond"}
    assert run(pb.grad(f), x)[0].item() == 4.0
    assert run(pb.grad(pb.grad(f)), x)[0].item() == 2.0
    assert run(lambda x: pb.jvp(f, (x,), (x,))[1], x)[0].item() == 8.0


# -- while -----------------------------------------------------------------------------------------


def newton(a, x0):
    """The square root of `a` by Newton's method, until it is good enough."""
    return pb.while_loop(lambda x: abs(x * x - a) > 1e-12, lambda x: 0.5 * (x + a / x), x0)


def test_while_has_forward_derivatives_of_any_order():
    args = (pb.tensor(2.0, dtype="float64"), pb.tensor(1.0, dtype="float64"))
    agree(newton, *args)
    graph = pb.trace(newton)(*args)
    assert [eq.op for eq in graph.equations] == [WHILE]
    one, zero = pb.tensor(1.0, dtype="float64"), pb.tensor(0.0, dtype="float64")
    f = newton
    for order in range(1, 4):
        f = lambda a, x, f=f: pb.jvp(f, (a, x), (one, zero))[1]  # noqa: E731
        agree(f, *args)
        expected = [0.5 * 2**-0.5, -0.25 * 2**-1.5, 0.375 * 2**-2.5][order - 1]
        np.testing.assert_allclose(run(f, *args)[0].numpy(), expected, rtol=1e-6)


def test_while_without_a_bound_refuses_reverse_mode():
    args = (pb.tensor(2.0, dtype="float64"), pb.tensor(1.0, dtype="float64"))
    with pytest.raises(
        pb.GradientError, match=r"while_loop: reverse mode needs a bound.*max_steps"
    ):
        pb.trace(pb.grad(newton))(*args)
    assert pb.grad(newton)(*args).item() == pytest.approx(0.5 / 2**0.5, rel=1e-6)


def test_while_with_a_bound_ends_early_unless_it_is_differentiated():
    def f(x):
        return pb.while_loop(lambda c: c < 100.0, lambda c: c * x, x, max_steps=20)

    x = pb.tensor(3.0, dtype="float64")
    assert "while" in operations(pb.trace(f)(x))
    agree(f, x)
    assert run(pb.grad(f), x)[0].item() == 5 * 3.0**4
    assert "scan" in operations(pb.trace(pb.grad(f))(x))
    agree(lambda x: pb.grad(pb.grad(pb.grad(f)))(x), x)

    def cut_short(x):
        return pb.while_loop(lambda c: c < 100.0, lambda c: c * x, x, max_steps=2)

    agree(cut_short, x)
    assert run(cut_short, x)[0].item() == 27.0


def test_fori_loop_with_traced_bounds():
    f = lambda n, x: pb.fori_loop(0, n, lambda i, c: c * x + i, x)  # noqa: E731
    n, x = pb.tensor(4), pb.tensor(1.5, dtype="float64")
    agree(f, n, x)
    agree(lambda n, x: pb.jvp(lambda x: f(n, x), (x,), (x,)), n, x)
    with pytest.raises(pb.GradientError, match="reverse mode"):
        pb.trace(lambda n, x: pb.grad(lambda x: f(n, x))(x))(n, x)


# -- closures --------------------------------------------------------------------------------------


def test_a_closure_alone_makes_a_loop_traced():
    h0, xs = ARGUMENTS[1:]

    def f(w):
        h, ys = pb.scan(lambda h, x: (pb.sin(h @ w), x), h0, xs)
        return (h * h).sum() + ys.sum()

    w = ARGUMENTS[0]
    agree(f, w)
    agree(pb.grad(f), w)
    assert operations(pb.trace(f)(w)).count("scan") == 1
    g = lambda n: pb.while_loop(lambda c: c < n, lambda c: c * 2.0, pb.tensor(1.0))  # noqa: E731
    agree(g, pb.tensor(9.0))
    assert operations(pb.trace(g)(pb.tensor(9.0))).count("while") == 1


def test_a_loop_over_constants_is_done_while_tracing():
    graph = pb.trace(
        lambda x: x * pb.scan(lambda c, t: (c + t, None), pb.tensor(0.0), pb.ones(4))[0]
    )(pb.tensor(2.0))
    assert operations(graph) == ["multiply"]


def test_a_body_that_uses_nothing_traced():
    f = lambda xs: pb.scan(lambda c, x: (c * 2.0, c), pb.tensor(1.0), xs)  # noqa: E731
    agree(f, ARGUMENTS[2])
    agree(lambda xs: pb.grad(lambda xs: f(xs)[0] + xs.sum())(xs), ARGUMENTS[2])


def test_functions_are_read_once():
    """A later change of what the body closes over does not reach derivatives."""
    factors = [2.0, 3.0]

    def f(x):
        k = 0
        y = pb.scan(lambda c, _: (pb.sin(c * factors[k]), None), x, None, length=3)[0]
        k = 1
        return y.sum()

    agree(pb.grad(lambda x: pb.grad(lambda x: f(x))(x).sum()), ARGUMENTS[1])
    once = pb.tensor(0.3, dtype="float64")
    inner = lambda c: pb.sin(c * 2.0)  # noqa: E731
    expected = pb.grad(pb.grad(lambda x: inner(inner(inner(x)))))(once)
    np.testing.assert_allclose(
        run(pb.grad(pb.grad(f)), once)[0].numpy(), expected.numpy(), rtol=1e-12
    )


def test_hooks_see_the_whole_gradient_of_a_closed_over_tensor():
    seen = []

    def f(x):
        w = x * 1.0
        w.register_hook(lambda g: seen.append(g))
        return pb.scan(lambda c, _: (c * w, None), x, None, length=3)[0].sum()

    agree(pb.grad(f), ARGUMENTS[1])
    assert len(seen) == 2


def test_a_traced_graph_with_loops_can_be_traced_again():
    """Equations of a graph that is run on traced arrays become equations, with derivatives."""
    graph = pb.trace(choice_in_scan)(*ARGUMENTS)
    again = lambda *a: graph.run(*a, bind=bind)[0]  # noqa: E731
    expected = all_grads(choice_in_scan, *ARGUMENTS)
    for a, b in zip(run(lambda *x: all_grads(again, *x), *ARGUMENTS), expected, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10)


def test_vjp_functions_may_be_pulled_many_times():
    def f(h0, xs):
        y, pull = pb.vjp(lambda h: pb.scan(lambda h, x: (pb.sin(h * x), h), h, xs), h0)
        ones, zeros = pb.ones((3,), dtype="float64"), pb.zeros((5, 3), dtype="float64")
        return y[0], pull((ones, zeros)), pull((ones, zeros + 1.0)), pull((ones * 2.0, xs))

    agree(f, *ARGUMENTS[1:])


def test_pulling_inside_another_loop():
    def f(h0, xs):
        _, pull = pb.vjp(lambda h: pb.scan(lambda h, x: (pb.sin(h * x), None), h, xs)[0], h0)
        return pb.scan(lambda c, x: (pull(c * x)[0], None), h0, xs)[0].sum()

    agree(f, *ARGUMENTS[1:])
    agree(lambda *a: all_grads(f, *a), *ARGUMENTS[1:])


# -- graphs ----------------------------------------------------------------------------------------


def test_graphs_show_their_bodies():
    graph = pb.trace(lambda x: pb.cond(x > 0, pb.sin, pb.cos, x))(pb.tensor(1.0))
    shown = repr(graph)
    assert "cond %" in shown and "where then(" in shown and "where otherwise(" in shown


def test_verify_looks_into_bodies():
    graph = pb.trace(lambda h, xs: pb.scan(lambda h, x: (h * x, None), h, xs)[0])(*ARGUMENTS[1:])
    eq = graph.equations[0]
    body = eq.static["body"]
    graph.verify()
    eq.static = {**eq.static, "length": 4}
    with pytest.raises(pb.PullbackError, match="scan: xs must have 4 rows"):
        graph.verify()
    eq.static = {**eq.static, "length": 5}
    kept, body.equations = body.equations, []
    with pytest.raises(pb.PullbackError, match="never defined"):
        graph.verify()
    body.equations = kept
    graph.verify()
    assert repr(COND) == "<op cond>"


# -- bad input -------------------------------------------------------------------------------------

H, XS = ARGUMENTS[1:]


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("f", "error", "match"),
    [
        (
            lambda h, xs: pb.scan(lambda c, x: ({"a": [c["a"][0].sum()]}, None), {"a": [h]}, xs),
            pb.ShapeError,
            r"scan: carry\['a'\]\[0\] must keep its shape, \(3,\), got \(\)",
        ),
        (
            lambda h, xs: pb.scan(
                lambda c, x: (State(h.astype("float32"), 1, 2), None), State(h, 1, 2), xs
            ),
            pb.DTypeError,
            r"scan: carry\.position must keep its dtype, float64, got float32",
        ),
        (
            lambda h, xs: pb.scan(lambda c, x: ((c, c), None), h, xs),
            pb.ShapeError,
            "keep its structure",
        ),
        (
            lambda h, xs: pb.scan(lambda c, x: c, h, xs),
            pb.DTypeError,
            r"scan: f must return \(carry, y\)",
        ),
        (lambda h, xs: pb.scan(lambda c, x: (c, None), h, None), pb.ShapeError, "Pass length"),
        (
            lambda h, xs: pb.scan(lambda c, x: (c, None), h, xs, length=3),
            pb.ShapeError,
            "must have 3 rows",
        ),
        (
            lambda h, xs: pb.scan(lambda c, x: (c, None), h, {"a": xs, "b": h}),
            pb.ShapeError,
            r"xs\['b'\] must have 5 rows like the rest, got 3",
        ),
        (lambda h, xs: pb.scan(lambda c, x: (c, None), h, h.sum()), pb.ShapeError, "no rows"),
        (
            lambda h, xs: pb.scan(lambda c, x: (c, None), h, None, length=-1),
            pb.ShapeError,
            "negative",
        ),
        (
            lambda h, xs: pb.scan(lambda c, x: (c, None), h, None, length=2.5),  # pyright: ignore
            pb.DTypeError,
            "must be an int",
        ),
        (
            lambda h, xs: pb.fori_loop(0, 3, lambda i, c: c.sum(), h),
            pb.ShapeError,
            "fori_loop: carry must",
        ),
        (
            lambda h, xs: pb.fori_loop(0, 2.5, lambda i, c: c, h),
            pb.DTypeError,
            "bounds must be integers",
        ),
        (
            lambda h, xs: pb.while_loop(lambda c: c > 0, lambda c: c, h),
            pb.ShapeError,
            "must be 0-d",
        ),
        (
            lambda h, xs: pb.while_loop(lambda c: c.sum(), lambda c: c, h),
            pb.DTypeError,
            "must be a bool",
        ),
        (
            lambda h, xs: pb.while_loop(lambda c: c.sum() < 1e3, lambda c: c.sum(), h),
            pb.ShapeError,
            "while_loop: carry must keep its shape",
        ),
        (
            lambda h, xs: pb.cond(h, pb.sin, pb.cos, h),
            pb.ShapeError,
            "cond: the predicate must be 0-d",
        ),
        (
            lambda h, xs: pb.cond(h.sum(), pb.sin, pb.cos, h),
            pb.DTypeError,
            "cond: the predicate must be a bool",
        ),
    ],
)
def test_bad_requests(f, error, match, traced):
    with pytest.raises(error, match=match):
        run(f, H, XS) if traced else f(H, XS)


@pytest.mark.parametrize(
    ("then", "otherwise", "error", "match"),
    [
        (lambda h: h, lambda h: (h,), pb.ShapeError, "same structure"),
        (
            lambda h: {"a": h},
            lambda h: {"a": h.sum()},
            pb.ShapeError,
            r"one shape at result\['a'\], got \(3,\) and \(\)",
        ),
        (lambda h: h, lambda h: h > 0, pb.DTypeError, "one dtype at result, got float64 and bool"),
    ],
)
def test_branches_that_differ(then, otherwise, error, match):
    with pytest.raises(error, match=match):
        run(lambda h: pb.cond(h.sum() > 0, then, otherwise, h), H)
