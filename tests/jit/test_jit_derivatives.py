"""Derivatives inside of jitted functions, and of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from jit.jit_checks import close, equal, tensor, wave
from pullback.core import pytrees

# -- derivatives -----------------------------------------------------------------------------------


def loss(params: Any, x: Any) -> Any:
    y = pb.tanh(x @ params["w"] + params["b"])
    return (y * y).sum() + pb.exp(params["b"]).sum()


PARAMS = {"w": tensor(4, 3), "b": tensor(3, seed=1)}
X = tensor(5, 4, seed=2)


def test_derivatives_inside():
    both = pb.value_and_grad(loss)
    for a, b in zip(leaves(pb.jit(both)(PARAMS, X)), leaves(both(PARAMS, X)), strict=True):
        close(a, b)


def leaves(tree: Any) -> list[Any]:
    return pytrees.leaves(tree)


def test_value_and_grad_with_aux():
    def f(x):
        y = pb.sin(x)
        return y.sum(), {"y": y, "n": 3}

    x = tensor(3)
    both = pb.value_and_grad(f, has_aux=True)
    equal(pb.jit(both)(x), both(x))
    equal(pb.value_and_grad(pb.jit(f), has_aux=True)(x), both(x))


def test_a_training_step():
    def step(params, x):
        value, gradient = pb.value_and_grad(loss)(params, x)
        return value, pb.map_tree(lambda p, g: p - 0.1 * g, params, gradient)

    jitted = pb.jit(step)
    a = b = PARAMS
    for _ in range(5):
        va, a = jitted(a, X)
        vb, b = step(b, X)
        close(va, vb)
    assert jitted.cache_info().misses == 1


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, j: pb.grad(j(f)),
        lambda f, j: j(pb.grad(f)),
        lambda f, j: pb.grad(j(pb.grad(j(f)))),
        lambda f, j: j(pb.grad(j(pb.grad(j(f))))),
        lambda f, j: pb.grad(pb.grad(j(f))),
        lambda f, j: pb.grad(pb.grad(pb.grad(j(f)))),
        lambda f, j: pb.grad(j(pb.grad(pb.grad(j(f))))),
        lambda f, j: pb.grad(pb.grad(pb.grad(pb.grad(j(f))))),
        lambda f, j: lambda x: pb.jvp(j(f), (x,), (x,))[1],
        lambda f, j: lambda x: pb.hvp(j(f), (x,), (x,)),
        lambda f, j: pb.grad(lambda x: pb.jvp(j(f), (x,), (x,))[1]),
        lambda f, j: lambda x: pb.jvp(pb.grad(pb.grad(j(f))), (x,), (x,))[1],
        lambda f, j: lambda x: pb.jvp(lambda y: pb.jvp(j(f), (y,), (x,))[1], (x,), (x,))[1],
    ],
)
def test_derivatives_of_any_order_and_kind(transform):
    x = pb.tensor(0.7, dtype="float64")
    expected = transform(wave, lambda f: f)(x)
    for _ in range(2):
        close(transform(wave, pb.jit)(x), expected)


def test_derivatives_of_several_outputs_and_arguments():
    def f(x, y, i):
        s = pb.sin(x) * y
        return s, s.sum(), i, x, {"z": pb.exp(y), "z2": s}

    jitted = pb.jit(f)
    for chosen in ([0], [1], [0, 1, 3], [4], [3, 5]):
        grads = []
        for g in (f, jitted):
            x = pb.tensor(tensor(3), requires_grad=True)
            y = pb.tensor(tensor(3, seed=1), requires_grad=True)
            outs = [o for o in leaves(g(x, y, pb.tensor(3))) if o.dtype.is_inexact]
            total: Any = sum((outs[k % len(outs)] * (k + 1)).sum() for k in chosen)
            total.backward()
            grads.append([x.grad, y.grad])
        for a, b in zip(*grads, strict=True):
            close(b, a)
    outs = jitted(pb.tensor(tensor(3), requires_grad=True), tensor(3), pb.tensor(3))
    assert [o.requires_grad for o in leaves(outs)] == [True, True, False, True, False, True]


def test_only_some_arguments_are_tracked():
    f = pb.jit(lambda x, y: (pb.sin(x) * y * y).sum())
    x, y = tensor(3), tensor(3, seed=1)
    close(pb.grad(f, 0)(x, y), pb.cos(x) * y * y)
    close(pb.grad(f, 1)(x, y), 2 * pb.sin(x) * y)
    a, b = pb.grad(f, (0, 1))(x, y)
    close(a, pb.cos(x) * y * y)
    close(b, 2 * pb.sin(x) * y)
    assert f.cache_info().misses == 1


def test_the_same_array_twice():
    x = tensor(3)
    f = pb.jit(lambda x, y: (x * y).sum())
    close(pb.grad(lambda x: f(x, x))(x), 2 * x)


def test_backward_releases_what_was_saved():
    x = pb.tensor(tensor(3), requires_grad=True)
    y = pb.jit(lambda x: pb.exp(pb.sin(x)).sum())(x)
    y.backward(retain_graph=True)
    first = x.grad
    x.grad = None
    y.backward()
    close(x.grad, first)
    with pytest.raises(pb.GradientError, match="released"):
        y.backward()


def test_jit_inside_jit_and_recursion():
    @pb.jit
    def power(x, n):
        return x if n == 1 else x * power(x, n - 1)

    x = tensor(3)
    equal(power(x, 4), x * (x * (x * x)))
    inner = pb.jit(lambda x: pb.sin(x))
    outer = pb.jit(lambda x: inner(x) + inner(x * 2))
    equal(outer(x), pb.sin(x) + pb.sin(x * 2))
    assert inner.cache_info().misses == 0
    equal(pb.jit(lambda x: x + inner(pb.ones(3)))(x), x + pb.sin(pb.ones(3)))


def test_jit_that_captures_the_values_of_an_outer_trace():
    def outer(x):
        inner = pb.jit(lambda y: y * x)
        return inner(pb.ones(3)).sum() + inner(x).sum()

    x = tensor(3)
    close(pb.jit(outer)(x), outer(x))
    close(pb.grad(outer)(x), pb.grad(lambda x: x.sum() + (x * x).sum())(x))
    graph = pb.trace(outer)(x)
    assert len(graph.inputs) == 1


def test_under_no_grad_nothing_is_recorded():
    f = pb.jit(lambda x: pb.sin(x).sum())
    x = pb.tensor(tensor(3), requires_grad=True)
    with pb.no_grad():
        assert not f(x).requires_grad
    assert f(x).requires_grad


def test_custom_rules_inside():
    @pb.custom_vjp
    def double(x):
        return x * 2

    double.defvjp(lambda x: (double(x), None), lambda _, g: (g * 10,))
    x = tensor(3)
    for g in (
        pb.grad(pb.jit(lambda x: double(x).sum())),
        pb.jit(pb.grad(lambda x: double(x).sum())),
    ):
        np.testing.assert_array_equal(g(x).numpy(), 10.0)
