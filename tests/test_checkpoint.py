"""`checkpoint`: derivatives run the function again, and are the same as without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.runtime.cpu import native


def normal(*shape: int, seed: int = 0) -> Any:
    return pb.tensor(np.random.default_rng(seed).normal(size=shape))


def same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(found.numpy(), expected.numpy())


def near(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-11, atol=1e-11)


WEIGHT = normal(3, 3, seed=7)


def block(x: Any) -> Any:
    y = pb.tanh(x @ WEIGHT)
    return pb.sin(y * y) * pb.exp(x)


TRANSFORMS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "grad": pb.grad,
    "grad of grad": lambda f: pb.grad(lambda x: (pb.grad(f)(x) ** 2).sum()),
    "three times": lambda f: pb.grad(
        lambda x: (pb.grad(lambda x: (pb.grad(f)(x) ** 2).sum())(x)).sum()
    ),
    "jvp": lambda f: lambda x: pb.jvp(f, (x,), (x * 0.5,))[1],
    "hvp": lambda f: lambda x: pb.hvp(f, (x,), (pb.cos(x),)),
    "grad of jvp": lambda f: pb.grad(lambda x: pb.jvp(f, (x,), (x * x,))[1]),
    "hessian": pb.hessian,
    "reverse over reverse": lambda f: pb.jacrev(pb.jacrev(f)),
    "vmap of grad": lambda f: lambda x: pb.vmap(pb.grad(f))(pb.stack([x, x * 0.5])),
    "grad of vmap": lambda f: pb.grad(lambda x: pb.vmap(f)(pb.stack([x, x * 0.5])).sum()),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_derivatives_are_those_without_it(name: str, compiled: bool):
    kept = pb.checkpoint(block)
    f = lambda b: lambda x: (b(b(x)) * x).sum()  # noqa: E731
    x = normal(3, seed=1)
    transform = TRANSFORMS[name]
    found = pb.jit(transform(f(kept)))(x) if compiled else transform(f(kept))(x)
    near(found, transform(f(block))(x))


def test_the_function_runs_again_for_each_derivative():
    calls = []

    def counted(x: Any) -> Any:
        calls.append(1)
        return pb.exp(pb.sin(x))

    x = pb.tensor(0.5, requires_grad=True)
    y = pb.checkpoint(counted)(x)
    assert len(calls) == 1
    y.backward()
    assert len(calls) == 2
    f = pb.checkpoint(counted)
    pb.jvp(f, (x.detach(),), (x.detach(),))
    assert len(calls) == 4
    assert pb.checkpoint(counted)(x.detach()).requires_grad is False
    assert len(calls) == 5


def test_masks_are_the_same_again():
    def noisy(x: Any, key: Any) -> Any:
        return pb.nn.dropout(pb.exp(x), 0.5, key=key) + pb.random.normal(key, x.shape) * x

    x, key = pb.ones(50), pb.random.key(4)
    f = lambda g: lambda x: (g(x, key) ** 2).sum()  # noqa: E731
    same(pb.grad(f(pb.checkpoint(noisy)))(x), pb.grad(f(noisy))(x))
    near(pb.jit(pb.grad(f(pb.checkpoint(noisy))))(x), pb.grad(f(noisy))(x))


def test_captured_parameters_and_repeated_inputs_get_their_gradients():
    w = pb.tensor([1.0, 2.0], requires_grad=True)
    bias = pb.tensor([3.0, 4.0], requires_grad=True)
    product = pb.checkpoint(lambda a, b, p: {"y": [a * b * w * p["bias"]], "n": 3})
    x = pb.tensor([5.0, 6.0], requires_grad=True)
    out = product(x, x, {"bias": bias})
    assert out["n"] == 3
    out["y"][0].sum().backward()
    x_, w_, b_ = (t.detach() for t in (x, w, bias))
    same(x.grad, 2 * x_ * w_ * b_)
    same(w.grad, x_ * x_ * b_)
    same(bias.grad, x_ * x_ * w_)
    twice = pb.checkpoint(lambda v: (v * w).sum())
    found = pb.grad(lambda v: twice(v) * twice(v) + twice(v * 2.0))(x_)
    same(found.detach(), 2 * (x_ * w_).sum() * w_ + 2 * w_)


def test_it_nests_and_takes_control_flow_and_custom_rules():
    @pb.custom_vjp
    def tripled(x: Any) -> Any:
        return x * 1.0

    tripled.defvjp(lambda x: (tripled(x), x), lambda x, g: (g * 3.0,))

    def body(c: Any, x: Any) -> Any:
        c = pb.checkpoint(lambda c, x: pb.sin(c * x) + tripled(c))(c, x)
        return c, c * x

    def f(step: Any) -> Any:
        outer = pb.checkpoint(
            lambda x: pb.scan(step, x[0], x)[1].sum() + pb.checkpoint(block)(x).sum()
        )
        return lambda x: pb.cond(x[0] > 0, outer, pb.sum, x)

    def plain(c: Any, x: Any) -> Any:
        c = pb.sin(c * x) + tripled(c)
        return c, c * x

    x = pb.abs(normal(3, seed=2))
    expected = pb.grad(lambda x: pb.scan(plain, x[0], x)[1].sum() + block(x).sum())(x)
    near(pb.grad(f(body))(x), expected)
    near(pb.jit(pb.grad(f(body)))(x), expected)


def test_what_is_changed_in_between_is_noticed():
    w = pb.tensor([1.0, 2.0], requires_grad=True)
    x = pb.tensor([5.0, 6.0], requires_grad=True)
    out = pb.checkpoint(lambda x: (x * w * w).sum())(x)
    with pb.no_grad():
        w -= 0.5
    with pytest.raises(pb.GradientError, match="captures was changed"):
        out.backward()


def test_an_update_of_an_argument_stays_inside():
    def f(x: Any) -> Any:
        x *= 2.0
        x[0] = x[1]
        return x * x

    x = pb.tensor([1.0, 2.0])
    same(pb.grad(lambda x: pb.checkpoint(f)(x).sum())(x), pb.grad(lambda x: f(x * 1.0).sum())(x))
    same(x, pb.tensor([1.0, 2.0]))


LAYERS, WIDE = 24, 1 << 16


def chain(wrap: Callable[..., Any]) -> Callable[[Any], Any]:
    """Many layers, each with several values that its derivative reads."""
    layer = wrap(lambda x: pb.sin(pb.exp(pb.cos(pb.tanh(x * 1.1) * 0.9))))

    def f(x: Any) -> Any:
        for _ in range(LAYERS):
            x = layer(x)
        return x.sum()

    return f


def test_less_memory_is_held():
    x = pb.tensor(np.linspace(-1, 1, WIDE))
    peaks, slopes = [], []
    for wrap in (lambda f: f, pb.checkpoint):
        native.reset_peak()
        before = native.memory()["live"]
        slopes.append(pb.grad(chain(wrap))(x))
        peaks.append(native.memory()["peak"] - before)
    same(slopes[0], slopes[1])
    assert peaks[1] < 0.45 * peaks[0]


def test_less_memory_is_planned_by_the_compiler():
    x = pb.tensor(np.linspace(-1, 1, WIDE))
    units = [pb.jit(pb.grad(chain(wrap))).lower(x) for wrap in (lambda f: f, pb.checkpoint)]
    peaks = [u.executable.peak_bytes for u in units]
    assert peaks[1] < 0.6 * peaks[0]


def test_only_a_function_can_be_checkpointed():
    number: Any = 3
    with pytest.raises(pb.DTypeError, match="expected a function, got int"):
        pb.checkpoint(number)
