"""Passes on the bodies of loops and branches."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from jit.pass_checks import names, optimised, random
from pullback.compile.graph import passes
from pullback.ir.graph import Graph

# -- control flow ----------------------------------------------------------------------------------


def inner(graph: Graph, name: str = "body") -> Graph:
    """The graph inside the only equation that has one."""
    (found,) = [eq.static[name] for eq in graph.equations if name in eq.static]
    return found


def test_scan_body_is_optimised_and_keeps_no_constants():
    def f(x, xs):
        return pb.scan(lambda c, x: (c * 1.0 + -x * 3.0, pb.square(c) - c * c), x, xs)

    graph = optimised(f, random(3), random(5, 3))
    body = inner(graph)
    assert "negative" not in names(body) and names(body).count("multiply") == 2
    assert not body.constants


def test_scan_loses_what_nobody_uses():
    def f(x, xs, ys):
        def step(c, row):
            a, b, same, dead = c
            x, y = row
            return (a + x * same, b, same, dead * 2.0 + a), (pb.exp(y), pb.sin(a), x)

        (a, _, same, _), (_, sines, rows) = pb.scan(step, (x, x + 1.0, x + 2.0, x + 3.0), (xs, ys))
        return a, same, sines, rows

    graph = optimised(f, random(3), random(5, 3), random(5, 3) + 1)
    (scan,) = [eq for eq in graph.equations if eq.op.name == "scan"]
    assert scan.static["carries"] == 1 and len(scan.outs) == 2
    assert "exp" not in names(inner(graph))
    assert graph.inputs[2] not in scan.inputs


def test_scan_knows_uniform_inputs():
    def f(x, xs):
        one, rows = pb.ones(3), pb.ones((5, 3))
        return pb.scan(lambda c, r: (c * one * r[1] + r[0], None), x, (xs, rows))[0]

    assert names(inner(optimised(f, random(3), random(5, 3)))) == ["add"]


def test_scan_takes_a_constant_once():
    def f(x, y):
        def step(c, _):
            return (y[:, None] * c[0] + y[:, None], y[:, None] * c[1]), None

        return pb.scan(step, (x, x + 1.0), None, length=4)[0]

    graph = optimised(f, random(3, 2), random(3))
    (scan,) = [eq for eq in graph.equations if eq.op.name == "scan"]
    assert scan.static["constants"] == 1


def test_while_body_and_test():
    def f(x):
        def body(c):
            n, x, same, dead = c
            return n + 1, x * 1.0 * same + 0.5, same, dead + x

        init = (pb.tensor(0), x, x + 1.0, x)
        return pb.while_loop(lambda c: c[0] * 1 < 5, body, init)[1]

    graph = optimised(f, random(3))
    (loop,) = [eq for eq in graph.equations if eq.op.name == "while"]
    assert loop.static["carries"] == 2
    assert "multiply" not in names(inner(graph, "test"))


def test_cond_branches():
    def f(x):
        return pb.cond(
            x.sum() > 0,
            lambda x: (pb.exp(x * 1.0), pb.cos(x)),
            lambda x: (pb.sin(pb.negative(-x)), x),
            x,
        )[0]

    graph = optimised(f, random(3))
    assert names(inner(graph, "then")) == ["exp"]
    assert names(inner(graph, "otherwise")) == ["sin"]


@pytest.mark.parametrize("size", [4, 5])
def test_both_sides_of_slight_choices_are_computed(size: int):
    def f(p, q, x):
        inside = lambda x: pb.cond(q, lambda x: x * 2.0, lambda x: -x, x)  # noqa: E731
        return pb.cond(p, inside, lambda x: x + 1.0, x)

    x = random(size)
    graph = optimised(f, pb.tensor(True), pb.tensor(True), x)
    assert ("cond" in names(graph)) == (size > 4)
    for p, q in ((True, True), (True, False), (False, True)):
        args = pb.tensor(p), pb.tensor(q), x
        assert pb.jit(f)(*args).numpy().tolist() == f(*args).numpy().tolist()


def test_a_side_that_is_not_chosen_leaves_no_trace():
    f = lambda x: pb.cond(x > 0, lambda x: 1.0 / x, lambda x: x * 0.0, x)  # noqa: E731
    x = pb.tensor(0.0)
    assert pb.jit(f)(x).item() == 0.0
    assert pb.jit(pb.grad(f))(x).item() == 0.0
    assert pb.jit(pb.grad(pb.grad(f)))(x).item() == 0.0


def loops(graph: Graph) -> int:
    """How many loops there are, also inside of others."""
    inside = [g for eq in graph.equations for g in eq.static.values() if isinstance(g, Graph)]
    return names(graph).count("while") + sum(map(loops, inside))


def collatz(x, n):
    """Loops in a loop, with a choice."""

    def inner(s):
        step = lambda t: (t[0] + 1, pb.cond(t[1] > 1.0, lambda a: a * 0.5 * x, pb.sin, t[1]))  # noqa: E731
        return pb.while_loop(lambda t: t[0] < 3, step, (0, s))[1]

    return pb.while_loop(lambda t: t[0] < n, lambda t: (t[0] + 1, inner(t[1]), t[2] * x), (0, x, x))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_values_and_tangents_of_a_loop_are_one_loop(order: int):
    def f(x, n):
        g = lambda x: collatz(x, n)[1]  # noqa: E731
        for _ in range(order):
            g = lambda x, g=g: pb.jvp(g, (x,), (pb.ones_like(x),))[1]  # noqa: E731
        return collatz(x, n)[1], g(x)

    x, n = pb.tensor(1.25, dtype="float64"), pb.tensor(4)
    graph = passes.optimise(pb.trace(f)(x, n))
    assert loops(graph) == 2
    for found, expected in zip(pb.jit(f)(x, n), f(x, n), strict=True):
        assert found.item() == pytest.approx(expected.item(), rel=1e-13)


def test_loops_that_differ_stay_two():
    def f(x):
        one = pb.while_loop(lambda c: c < 100.0, lambda c: c * x, x)
        return one, pb.while_loop(lambda c: c < 100.0, lambda c: c * x + 1.0, x)

    def g(x):
        one = pb.while_loop(lambda c: c[0] < 100.0, lambda c: (c[0] * x, c[1]), (x, x))
        return one[0], pb.while_loop(lambda c: c < 90.0, lambda c: c * x, x)

    def h(x):  # what the second one starts from depends on the first one
        one = pb.while_loop(lambda c: c < 100.0, lambda c: c * x, x)
        step = lambda c: (c[0] * x, c[1] + c[0])  # noqa: E731
        return one, pb.while_loop(lambda c: c[0] < 100.0, step, (x, one))

    x = pb.tensor(1.5, dtype="float64")
    for function in (f, g, h):
        assert loops(passes.optimise(pb.trace(function)(x))) == 2
        for found, expected in zip(pb.jit(function)(x), function(x), strict=True):
            first, second = (y[0] if isinstance(y, tuple) else y for y in (found, expected))
            assert first.item() == second.item()


def test_a_loop_that_checks_something_stays():
    rows = pb.tensor([1.0, 2.0, 3.0], dtype="float64")

    def f(i, x):
        step = lambda c: (c[0] + 1, c[1] * x + rows[c[0]])  # noqa: E731
        return pb.while_loop(lambda c: c[1] < 50.0, step, (i, x))[1]

    both = lambda i, x: pb.jvp(lambda x: f(i, x), (x,), (pb.ones_like(x),))  # noqa: E731
    x = pb.tensor(1.5, dtype="float64")
    with pytest.raises(IndexError):
        pb.jit(both)(pb.tensor(0), x)


def test_choices_by_one_predicate_are_one():
    def f(x, y):
        return [
            pb.cond(x.sum() > 0, lambda a: pb.exp(a) * y, pb.sin, x),
            pb.cond(x.sum() > 0, pb.exp, lambda a: a * y, x),
        ]

    x, y = random(7), random(7)
    graph = optimised(f, x, y)
    assert names(graph).count("cond") == 1
    assert names(inner(graph, "then")).count("exp") == 1
    for signs in (1.0, -1.0):
        for found, expected in zip(pb.jit(f)(x * signs, y), f(x * signs, y), strict=True):
            np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_cond_with_a_known_predicate_is_inlined():
    graph = pb.trace(lambda p, x: pb.cond(p, pb.sin, pb.exp, x))(pb.tensor(True), pb.ones(3))
    predicate = graph.inputs.pop(0)
    array = pb.tensor(True)
    predicate.constant = (array._buf, array._aval, None)
    graph.constants.append(predicate)
    assert names(passes.optimise(graph)) == ["sin"]


def recurrent(weights, bias, h, xs):
    def step(h, x):
        h = pb.tanh(x @ weights[0] + h @ weights[1] + bias)
        return h, h

    return (pb.scan(step, h, xs)[1] ** 2).sum()


def test_products_leave_the_loop():
    weights = (random(4, 8), random(8, 8))
    args = (weights, random(8), random(3, 8), random(6, 3, 4))
    f = pb.value_and_grad(recurrent, argnums=(0, 1))
    graph = optimised(f, *args, exact=False, tolerance=1e-4)
    scans = [eq for eq in graph.equations if eq.op.name == "scan"]
    assert [names(eq.static["body"]).count("matmul") for eq in scans] == [1, 1]
    assert names(graph).count("matmul") == 3


def test_sums_of_products_with_a_carry_leave_the_loop():
    """The product reads the carry as it comes into each step: its rows are then kept."""

    def f(h, xs):
        def step(c, x):
            h, total = c
            return (pb.tanh(h + x), total + x.T @ h), None

        return pb.scan(step, (h, pb.zeros((4, 4))), xs)[0]

    drawn = np.random.default_rng(0)
    h, xs = (drawn.normal(size=s).astype("float32") for s in ((3, 4), (5, 3, 4)))
    g = optimised(f, h, xs, exact=False)
    (scan,) = [eq for eq in g.equations if eq.op.name == "scan"]
    assert "matmul" not in names(scan.static["body"])
    assert names(g).count("matmul") == 1


def test_sums_of_outer_products_leave_the_loop():
    """The gradients of a matrix that meets one vector in each step, and of what is added to it."""

    def f(w, bias, h, xs):
        def step(h, x):
            h = pb.tanh(w @ h + bias) + x
            return h, None

        return (pb.scan(step, h, xs)[0] ** 2).sum()

    args = (random(6, 6), random(6), random(6), random(5, 6))
    g = optimised(pb.grad(f, (0, 1)), *args, exact=False, tolerance=1e-5)
    _, back = (eq.static["body"] for eq in g.equations if eq.op.name == "scan")
    assert all(v.aval.shape != (6, 6) for eq in back.equations for v in eq.outs)
    assert len(back.outputs) == 2  # the carry, and the rows that are multiplied and added up
    assert names(g).count("matmul") == 1


def test_sums_that_a_step_reads_stay_in_the_loop():
    def f(h, xs):
        def step(c, x):
            h, total = c
            return (pb.tanh(h + x) + (h @ total) * 0.1, total + x.T @ h), None

        return pb.scan(step, (h, pb.zeros((4, 4))), xs)[0]

    drawn = np.random.default_rng(0)
    h, xs = (drawn.normal(size=s).astype("float32") for s in ((3, 4), (5, 3, 4)))
    g = optimised(f, h, xs, exact=False)
    (scan,) = [eq for eq in g.equations if eq.op.name == "scan"]
    assert names(scan.static["body"]).count("matmul") == 2


def test_derivatives_of_loops_of_second_order():
    weights = (random(4, 8), random(8, 8))
    args = (weights, random(8), random(3, 8), random(6, 3, 4))

    def second(w, *rest):
        grads = pb.grad(recurrent)(w, *rest)
        return sum((g * g).sum() for g in grads)

    optimised(pb.grad(second), *args, exact=False, tolerance=1e-3)


def test_loops_in_loops():
    def f(x, xs):
        def outer(c, x):
            return pb.scan(lambda c, _: (c * 1.0 + pb.sin(x) * 0.5, None), c, None, length=3)[0], c

        return pb.scan(outer, x, xs)

    optimised(f, random(3), random(5, 3), exact=False)
    optimised(
        pb.grad(lambda x, xs: f(x, xs)[0].sum(), argnums=(0, 1)),
        random(3),
        random(5, 3),
        exact=False,
    )
