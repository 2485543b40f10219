"""`cond`, `while_loop`, closures of loops, their graphs, and bad requests."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from jit.control_functions import (
    ARGUMENTS,
    State,
    agree,
    all_grads,
    choice_in_scan,
    normal,
    operations,
    run,
    squares,
)
from pullback.ir.control import COND, WHILE
from pullback.ir.op import bind

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


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 5])
@pytest.mark.parametrize("order", [0, 1, 2])
def test_while_that_needs_more_steps_than_its_bound_raises(steps: int, order: int):
    def f(x):
        return pb.while_loop(lambda c: c < 100.0, lambda c: c * x, x, max_steps=steps)

    for _ in range(order):
        f = pb.grad(f)
    x = pb.tensor(3.0, dtype="float64")
    for form in (f, pb.jit(f), lambda x: pb.jvp(f, (x,), (x,))[1]):
        if steps >= 4:
            assert np.isfinite(form(x).item())
            continue
        with pytest.raises(pb.PullbackError, match=rf"not ended after max_steps={steps} steps"):
            form(x).item()
    rows = pb.tensor([200.0, 3.0, 300.0], dtype="float64")
    if steps < 4:
        with pytest.raises(pb.PullbackError, match="while_loop: the loop at 1 of the batch"):
            pb.vmap(f)(rows)
    else:
        assert np.isfinite(pb.vmap(f)(rows).numpy()).all()


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
    eq.become(eq.inputs, {**eq.static, "length": 4}, eq.outs)
    with pytest.raises(pb.PullbackError, match="scan: xs must have 4 rows"):
        graph.verify()
    eq.become(eq.inputs, {**eq.static, "length": 5}, eq.outs)
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
