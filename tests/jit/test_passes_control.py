"""Passes on the bodies of loops and branches."""

from __future__ import annotations

import numpy as np

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
            x.sum() > 0, lambda x: (x * 1.0, pb.exp(x)), lambda x: (pb.negative(-x), x), x
        )[0]

    graph = optimised(f, random(3))
    assert not names(inner(graph, "then")) and not names(inner(graph, "otherwise"))


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
