"""The derivative engine: sweeps, modes, hooks, memory, functional transforms, custom rules."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import pullback as pb
from pullback.ir.op import REGISTRY
from pullback.ir.rules import Rule
from pullback.runtime.cpu import native


def leaf(values, dtype="float64"):
    return pb.tensor(values, dtype=dtype, requires_grad=True)


# -- backward --------------------------------------------------------------------------------------


def test_backward_with_a_cotangent_of_any_shape():
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    w = pb.tensor([[1.0, 10.0], [100.0, 1000.0]], dtype="float64")
    (x * x).backward(w)
    assert x.grad.tolist() == [[2.0, 40.0], [600.0, 8000.0]]


@pytest.mark.parametrize(
    ("gradient", "error", "match"),
    [
        (None, pb.GradientError, r"backward: .*needs a cotangent.*\(2,\)"),
        (
            pb.tensor([1.0]),
            pb.ShapeError,
            r"backward: the cotangent must have the shape.*\(2,\).*\(1,\)",
        ),
        ([1.0, 2.0], pb.GradientError, "backward: a cotangent must be a tensor"),
        (pb.tensor([1j, 1j]), pb.GradientError, "backward: the output is real"),
    ],
)
def test_bad_cotangents(gradient, error, match):
    y = leaf([1.0, 2.0]) * 2.0
    with pytest.raises(error, match=match):
        y.backward(gradient)


def test_backward_of_an_untracked_tensor_says_why():
    with pytest.raises(
        pb.GradientError, match="does not depend on any tensor that requires a gradient"
    ):
        pb.tensor([1.0]).backward()


def test_create_graph_makes_gradients_differentiable():
    x = leaf(2.0)
    y = x**4
    y.backward(create_graph=True)
    first = x.grad
    x.grad = None
    first.backward()
    assert x.grad.item() == 48.0


def test_a_second_backward_needs_retain_graph():
    x = leaf(2.0)
    y = x * x
    y.backward()
    with pytest.raises(
        pb.GradientError, match=r"multiply: the saved values.*released.*retain_graph=True"
    ):
        y.backward()
    y = x * x
    y.backward(retain_graph=True)
    y.backward()


def test_retain_grad_and_hooks():
    x = leaf([1.0, 2.0])
    h = x * 3.0
    h.retain_grad()
    seen = []
    h.register_hook(lambda g: seen.append(g.tolist()))
    halve = x.register_hook(lambda g: g * 0.5)
    (h * h).sum().backward()
    assert h.grad.tolist() == [6.0, 12.0]
    assert seen == [[6.0, 12.0]]
    assert x.grad.tolist() == [9.0, 18.0]
    halve.remove()
    x.grad = None
    (x * 2.0).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_a_hook_sees_the_total_once():
    x = leaf(1.0)
    seen = []
    h = x * 1.0
    h.register_hook(lambda g: seen.append(g.item()))
    (h * 2.0 + h * 3.0).backward()
    assert seen == [5.0]


def test_a_hook_of_the_wrong_shape_is_refused():
    x = leaf([1.0, 2.0])
    x.register_hook(lambda g: g.sum())
    with pytest.raises(pb.ShapeError, match="a hook must return"):
        (x * 2.0).sum().backward()


def test_no_grad_detach_and_enable_grad():
    x = leaf(2.0)
    with pb.no_grad():
        assert not (x * x).requires_grad
        with pb.enable_grad():
            assert (x * x).requires_grad
    y = x.detach()
    assert not y.requires_grad
    (x * y).backward()
    assert x.grad.item() == 2.0


def test_no_grad_is_per_thread():
    seen = []
    with pb.no_grad():
        t = threading.Thread(target=lambda: seen.append((leaf(1.0) * 2.0).requires_grad))
        t.start()
        t.join()
    assert seen == [True]


def test_grad_fn_shows_the_graph():
    x = leaf([1.0, 2.0])
    y = (x * pb.exp(x)).sum()
    node = y.grad_fn
    assert node.name == "sum"
    assert [str(a) for a in node.inputs] == ["float64[2]"]
    product = node.input_grad_fns[0]
    assert product.name == "multiply"
    assert [t.tolist() for t in product.saved_tensors] == [[1.0, 2.0], pb.exp(x).tolist()]
    assert product.input_grad_fns[0].name == "leaf"
    drawn = node.tree()
    assert "multiply float64[2]" in drawn and "├─ leaf float64[2]" in drawn


def test_saved_values_stay_right_when_a_handle_is_rebound():
    x = leaf([1.0, 2.0])
    h = x * 2.0
    y = h * h
    h[0] = 100.0
    y.sum().backward()
    assert x.grad.tolist() == [8.0, 16.0]


def test_assignment_is_differentiable_and_never_touches_another_tensor():
    x, v = leaf([1.0, 2.0, 3.0]), leaf(10.0)
    y = x * 1.0
    alias = y.detach()
    y[1] = v * v
    assert alias.tolist() == [1.0, 2.0, 3.0]
    (y * y).sum().backward()
    assert x.grad.tolist() == [2.0, 0.0, 6.0]
    assert v.grad.item() == 4000.0


def test_a_leaf_is_updated_in_place_only_without_recording():
    w = leaf([1.0, 2.0])
    with pytest.raises(pb.GradientError, match="can't be updated in place"):
        w -= 1.0
    (w * w).sum().backward()
    with pb.no_grad():
        w -= w.grad * 0.5
    assert w.is_leaf and w.requires_grad and w.tolist() == [0.0, 0.0]


def test_memory_of_a_long_chain_stays_near_what_is_saved():
    """The peak of backward over 1000 elementwise layers is within 1.1x of the saved values."""
    n, layers = 20_000, 1000
    x = pb.tensor(np.full(n, 0.5, np.float32), requires_grad=True)
    gc.collect()
    before = native.memory()["live"]
    y = x
    for _ in range(layers):
        y = pb.sin(y)
    saved = native.memory()["live"] - before
    total = y.sum()
    del y
    native.reset_peak()
    total.backward()
    peak = native.memory()["peak"] - before
    assert saved >= layers * n * 4
    assert peak <= 1.1 * saved
    del total
    gc.collect()
    assert native.memory()["live"] - before < 10 * n * 4, "the sweep frees what it has used"


def test_saved_values_are_released_as_the_sweep_goes():
    x = pb.tensor(np.full(100_000, 0.5, np.float32), requires_grad=True)
    y = x
    for _ in range(20):
        y = pb.sin(y)
    live = []
    x_hooked = x.register_hook(lambda g: live.append(native.memory()["live"]))
    del x_hooked
    total = y.sum()
    del y
    start = native.memory()["live"]
    total.backward()
    assert live[0] < start - 15 * 400_000


# -- functional transforms -------------------------------------------------------------------------


def test_grad_over_trees_and_argnums():
    def loss(params, x):
        return ((params["w"] * x + params["b"][0]) ** 2).sum()

    params = {"w": pb.tensor([1.0, 2.0]), "b": [pb.tensor(0.5)]}
    g = pb.grad(loss)(params, pb.tensor([3.0, 4.0]))
    assert set(g) == {"w", "b"} and g["w"].tolist() == [21.0, 68.0] and g["b"][0].item() == 24.0
    both = pb.grad(loss, argnums=(0, 1))(params, pb.tensor([3.0, 4.0]))
    assert len(both) == 2 and both[1].tolist() == [7.0, 34.0]


def test_value_and_grad_with_aux():
    f = lambda x: (x.sum(), {"twice": x * 2.0, "n": 3})  # noqa: E731
    (value, aux), g = pb.value_and_grad(f, has_aux=True)(pb.tensor([1.0, 2.0]))
    assert value.item() == 3.0 and aux["n"] == 3 and aux["twice"].tolist() == [2.0, 4.0]
    assert g.tolist() == [1.0, 1.0]
    assert not value.requires_grad and not aux["twice"].requires_grad and not g.requires_grad


def test_nested_derivatives_do_not_confuse_their_perturbations():
    """d/dx [x * d/dy (x + y)] at 1 is 1, and the same with every mix of modes."""

    def deriv(f, how):
        one = pb.tensor(1.0, dtype="float64")
        return pb.grad(f) if how == "r" else lambda t: pb.jvp(f, (t,), (one,))[1]

    x = pb.tensor(1.0, dtype="float64")
    for outer in "rf":
        for inner in "rf":
            f = lambda x: x * deriv(lambda y: x + y, inner)(pb.tensor(1.0, dtype="float64"))  # noqa: B023, E731
            assert deriv(f, outer)(x).item() == 1.0, (outer, inner)
            g = lambda x: x * deriv(lambda y: x * y, inner)(pb.tensor(2.0, dtype="float64"))  # noqa: B023, E731
            assert deriv(g, outer)(pb.tensor(3.0, dtype="float64")).item() == 6.0, (outer, inner)


@pytest.mark.parametrize("modes", ["rrrr", "ffff", "rfrf", "frfr", "rrff"])
def test_fourth_derivatives_in_any_mix_of_modes(modes):
    f = lambda x: pb.sin(x) * pb.exp(x)  # noqa: E731
    one = pb.tensor(1.0, dtype="float64")
    for m in modes:
        f = pb.grad(f) if m == "r" else (lambda t, f=f: pb.jvp(f, (t,), (one,))[1])
    x = pb.tensor(0.4, dtype="float64")
    assert f(x).item() == pytest.approx(-4 * np.sin(0.4) * np.exp(0.4), rel=1e-12)


def test_grad_inside_backward_and_backward_through_grad():
    w = leaf(3.0)
    inner = pb.grad(lambda x: w * x**3)(pb.tensor(2.0, dtype="float64"))
    assert inner.requires_grad
    inner.backward()
    assert w.grad.item() == 12.0


def test_nested_transforms_leave_nothing_tracked_behind():
    """Variables of transforms that have ended do not keep the graph of an outer one alive."""

    def curved(x):
        one = pb.ones(x.shape, dtype=x.dtype)
        slope = lambda t: pb.jvp(lambda u: pb.tanh(u) * u, (t,), (one,))[1]  # noqa: E731
        bend = pb.jvp(slope, (x,), (one,))[1]
        _, pull = pb.vjp(pb.prod, x)
        return (bend * bend).sum() + pull(pb.tensor(1.0, dtype="float64"))[0].sum()

    x = pb.tensor([0.3, 0.8], dtype="float64")
    value, g = pb.value_and_grad(curved)(x)
    assert not value.requires_grad and not g.requires_grad
    assert pb.check_grad(curved, x, order=2).passed
    tracked = pb.tensor([0.3, 0.8], dtype="float64", requires_grad=True)
    curved(tracked).backward()
    np.testing.assert_allclose(tracked.grad.numpy(), g.numpy(), rtol=1e-14)


def test_vjp_may_be_pulled_many_times():
    y, pull = pb.vjp(lambda a, b: (a * b, a + b), pb.tensor([1.0, 2.0]), pb.tensor([3.0, 4.0]))
    assert [t.tolist() for t in y] == [[3.0, 8.0], [4.0, 6.0]]
    ones, zeros = pb.ones((2,)), pb.zeros((2,))
    for _ in range(2):
        assert [t.tolist() for t in pull((ones, zeros))] == [[3.0, 4.0], [1.0, 2.0]]
        assert [t.tolist() for t in pull((zeros, ones))] == [[1.0, 1.0], [1.0, 1.0]]


def test_constant_functions_have_zero_derivatives():
    x = pb.tensor([1.0, 2.0])
    assert pb.grad(lambda x: pb.tensor(3.0))(x).tolist() == [0.0, 0.0]
    assert pb.jvp(lambda x: pb.tensor(3.0), (x,), (x,))[1].item() == 0.0


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda: pb.grad(lambda x: x * x)(pb.tensor([1.0, 2.0])),
            pb.GradientError,
            "grad: .*real scalar",
        ),
        (lambda: pb.grad(lambda x: x.sum())(pb.tensor([1, 2])), pb.DTypeError, "grad: .*int64"),
        (lambda: pb.grad(lambda x: 3.0)(pb.tensor(1.0)), pb.GradientError, "grad: .*float"),
        (lambda: pb.grad(lambda x: x, argnums=2)(pb.tensor(1.0)), pb.GradientError, "argnums"),
        (lambda: pb.grad(lambda x: x)(()), pb.GradientError, "hold no arrays"),
        (
            lambda: pb.jvp(pb.sin, (pb.tensor([1.0, 2.0]),), (pb.tensor(1.0),)),
            pb.ShapeError,
            r"jvp: directions\[0\]",
        ),
        (
            lambda: pb.jvp(pb.sin, (pb.tensor(1.0),), (pb.tensor(1.0, dtype="float64"),)),
            pb.DTypeError,
            r"jvp: directions\[0\]",
        ),
        (
            lambda: pb.vjp(pb.sin, pb.tensor([1.0, 2.0]))[1](pb.tensor(1.0)),
            pb.ShapeError,
            "vjp: the cotangent must have the shape",
        ),
    ],
)
def test_bad_requests(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_complex_gradients_follow_the_conjugate_wirtinger_convention():
    z = pb.tensor([1 + 2j, -3 + 0.5j], dtype="complex128", requires_grad=True)
    pb.real(z * pb.conj(z)).sum().backward()
    np.testing.assert_allclose(z.grad.numpy(), 2 * z.detach().numpy())
    z.grad = None
    pb.real(z * z).sum().backward()
    np.testing.assert_allclose(z.grad.numpy(), 2 * np.conj(z.detach().numpy()))


def test_a_gradient_that_cannot_be_unbroadcast_is_refused():
    op = REGISTRY["sin"]
    right = op.pull_rules["x"]
    try:
        op.pull_rules = {"x": Rule(op, "x", lambda g, x: pb.ones((5,)), "g")}
        op.__dict__.pop("pull", None)
        with pytest.raises(pb.ShapeError, match=r"a gradient of shape \(5,\) can't be summed to"):
            pb.grad(lambda x: pb.sin(x).sum())(pb.tensor([1.0, 2.0]))
    finally:
        op.pull_rules = {"x": right}
        op.__dict__.pop("pull", None)


# -- custom rules ----------------------------------------------------------------------------------


def make_softplus():
    @pb.custom_vjp
    def softplus(x):
        return pb.log1p(pb.exp(x))

    softplus.defvjp(lambda x: (softplus(x), x), lambda x, g: (g * pb.sigmoid(x),))
    return softplus


def test_custom_rules_are_used_and_differentiable():
    softplus = make_softplus()
    assert pb.grad(softplus)(pb.tensor(1000.0)).item() == 1.0
    x = pb.tensor(0.3, dtype="float64")
    s = 1 / (1 + np.exp(-0.3))
    assert pb.grad(pb.grad(softplus))(x).item() == pytest.approx(s * (1 - s), rel=1e-13)
    third = s * (1 - s) * (1 - 2 * s)
    assert pb.grad(pb.grad(pb.grad(softplus)))(x).item() == pytest.approx(third, rel=1e-12)
    assert pb.jvp(softplus, (x,), (x * 0 + 1.0,))[1].item() == pytest.approx(s, rel=1e-13)
    assert pb.hvp(softplus, (x,), (x * 0 + 1.0,)).item() == pytest.approx(s * (1 - s), rel=1e-13)


def test_custom_residuals_are_connected():
    """A residual computed in the forward rule is not a constant at second order."""

    @pb.custom_vjp
    def cube(x):
        return x**3

    cube.defvjp(lambda x: (cube(x), x * x), lambda xx, g: (g * xx * 3.0,))
    assert pb.grad(pb.grad(cube))(pb.tensor(2.0)).item() == 12.0


def test_a_residual_that_is_a_result_is_differentiated_by_the_rule():
    """Forward leaves no tape here, so only the rule knows how its results depend on x."""

    @pb.custom_vjp
    def both(x):
        return pb.exp(x), pb.exp(-x)

    def forward(x):
        with pb.no_grad():
            up, down = both(x)
        return (up, down), (up, down)

    both.defvjp(forward, lambda res, g: (g[0] * res[0] - g[1] * res[1],))
    for f in (lambda x: both(x)[0] - both(x)[1], pb.jit(lambda x: both(x)[0] - both(x)[1])):
        x = pb.tensor(0.3, dtype="float64")
        for value in (np.cosh, np.sinh, np.cosh, np.sinh):
            f = pb.grad(f)
            assert f(x).item() == pytest.approx(2 * value(0.3), rel=1e-13)
    f = lambda x: both(x)[0] - both(x)[1]  # noqa: E731
    assert pb.hvp(f, (x,), (x * 0 + 1.0,)).item() == pytest.approx(2 * np.sinh(0.3), rel=1e-13)


def test_a_residual_that_is_an_argument_stays_one_though_it_is_returned():
    @pb.custom_vjp
    def same(x):
        return x

    same.defvjp(lambda x: (x, x), lambda x, g: (g * x,))
    assert pb.grad(pb.grad(same))(pb.tensor(3.0)).item() == 1.0


def test_custom_rule_with_trees_and_several_outputs():
    @pb.custom_vjp
    def both(p, x):
        return p["a"] * x, p["b"] + x

    both.defvjp(
        lambda p, x: (both(p, x), (p["a"], x)),
        lambda res, g: ({"a": g[0] * res[1], "b": g[1]}, g[0] * res[0] + g[1]),
    )
    p = {"a": pb.tensor(2.0), "b": pb.tensor(1.0)}

    def f(p, x):
        u, v = both(p, x)
        return u * v

    g, gx = pb.grad(f, argnums=(0, 1))(p, pb.tensor(3.0))
    assert (g["a"].item(), g["b"].item(), gx.item()) == (12.0, 6.0, 14.0)


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        (
            lambda x, g: (g.sum(),),
            r"square_: the custom rule must return a cotangent of shape \(2,\)",
        ),
        (lambda x, g: g, "must return a tuple of 1 cotangents"),
        (lambda x, g: (g, g), "must return a tuple of 1 cotangents"),
    ],
)
def test_custom_rules_of_the_wrong_shape(rule, match):
    @pb.custom_vjp
    def square_(x):
        return x * x

    square_.defvjp(lambda x: (x * x, x), rule)
    with pytest.raises(pb.ShapeError, match=match):
        pb.grad(lambda x: square_(x).sum())(pb.tensor([1.0, 2.0]))


# -- the checker -----------------------------------------------------------------------------------


def test_check_grad_names_the_wrong_operation():
    op = REGISTRY["sin"]
    right = op.pull_rules["x"]
    try:
        op.pull_rules = {"x": Rule(op, "x", lambda g, x: g * pb.cos(x) * 1.01, "g")}
        op.__dict__.pop("pull", None)
        with pytest.raises(
            pb.GradientError, match=r"order 1 by argument 0\[\d\].*The rule of 'sin' is wrong"
        ):
            pb.check_grad(
                lambda x: (pb.exp(pb.sin(x)) * x).sum(), pb.tensor([0.3, 1.2], dtype="float64")
            )
    finally:
        op.pull_rules = {"x": right}
        op.__dict__.pop("pull", None)


def test_check_grad_finds_a_detached_value_at_second_order():
    def f(x):
        return (x * x.detach() * 0.5 + x * x * 0.25).sum()

    with pytest.raises(pb.GradientError, match="order"):
        pb.check_grad(f, pb.tensor([0.3, 1.2], dtype="float64"))


def test_check_grad_needs_double_precision():
    with pytest.raises(pb.DTypeError, match="check_grad: finite differences need float64"):
        pb.check_grad(lambda x: x.sum(), pb.tensor([1.0]))
