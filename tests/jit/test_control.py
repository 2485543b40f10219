"""Control flow: traced against eager, derivatives to third order, carries, bad input."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from jit.control_functions import (
    ARGUMENTS,
    FUNCTIONS,
    State,
    agree,
    all_grads,
    backwards,
    bounded_loop,
    carries_only,
    choice_in_scan,
    detached,
    nested,
    normal,
    operations,
    recurrent,
    run,
    squares,
)
from pullback.core import pytrees
from pullback.ir.control import SCAN


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
