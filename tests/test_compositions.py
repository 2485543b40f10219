"""Transforms inside transforms, drawn at random, against finite differences and loops."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import pullback as pb

DEPTH = 4
COUNT = 300 if os.environ.get("PULLBACK_FULL") == "1" else 40

Vector = Callable[[Any], Any]  # from vectors of SIZE elements to a number
SIZE = 3


class Step(NamedTuple):
    """A transform, and what it should come to: both make a scalar function of one."""

    name: str
    apply: Callable[[Vector, Any], Vector]
    expected: Callable[[Callable[[np.ndarray], float], np.ndarray], Callable[[np.ndarray], float]]
    order: int  # of differentiation


H = 2e-2  # of differences of eighth order, which then err by less than 1e-9


def along(f: Callable[[np.ndarray], float], v: np.ndarray) -> Callable[[np.ndarray], float]:
    """The derivative of `f` along v, by differences."""
    weights = {1: 4 / 5, 2: -1 / 5, 3: 4 / 105, 4: -1 / 280}
    return lambda x: sum(w * (f(x + k * H * v) - f(x - k * H * v)) for k, w in weights.items()) / H


def rows_of(x: Any) -> Any:
    return pb.stack([x, x * 0.5, x[::-1]])


def mean_of_rows(f: Callable[[np.ndarray], float], x: np.ndarray) -> float:
    return float(np.mean([f(x), f(x * 0.5), f(x[::-1])]))


def laplace(f: Callable[[np.ndarray], float]) -> Callable[[np.ndarray], float]:
    unit = np.eye(SIZE)
    return lambda x: sum(along(along(f, e), e)(x) for e in unit)


def second(f: Callable[[np.ndarray], float], v: np.ndarray) -> Callable[[np.ndarray], float]:
    return along(along(f, v), v)


def scanned(f: Vector) -> Vector:
    step = lambda c, r: (c + f(r), None)  # noqa: E731
    return lambda x: pb.scan(step, pb.zeros((), dtype="float64"), rows_of(x))[0] / 3.0


def branched(f: Vector) -> Vector:
    return lambda x: pb.cond(x[0] > -9.0, f, lambda x: x.sum(), x)


def looped(f: Vector) -> Vector:
    """Three steps of a loop with a bound, each of which adds a third."""

    def g(x: Any) -> Any:
        step = lambda s: (s[0] + 1, s[1] + f(x) / 3.0)  # noqa: E731
        start = (pb.tensor(0), pb.zeros((), dtype="float64"))
        return pb.while_loop(lambda s: s[0] < 3, step, start, max_steps=4)[1]

    return g


def counted(f: Vector) -> Vector:
    step = lambda i, c: c + f(rows_of(x_of[-1])[i])  # noqa: E731
    x_of: list[Any] = []

    def g(x: Any) -> Any:
        x_of.append(x)
        try:
            return pb.fori_loop(0, 3, step, pb.zeros((), dtype="float64")) / 3.0
        finally:
            x_of.pop()

    return g


def ruled_forward(f: Vector) -> Vector:
    """With a rule of its own, which is that of forward mode."""
    g = pb.custom_jvp(lambda x: f(x))
    g.defjvp(lambda xs, ts: pb.jvp(f, xs, ts))
    return g


def ruled_reverse(f: Vector) -> Vector:
    """With a rule of its own, which is that of reverse mode."""
    g = pb.custom_vjp(lambda x: f(x))
    g.defvjp(lambda x: (f(x), x), lambda x, ct: (pb.grad(f)(x) * ct,))
    return g


def taylor(order: int) -> Callable[[Vector, Any], Vector]:
    return lambda f, v: lambda x: pb.jet(f, x, order=order, direction=v)[order]


def curved(f: Vector, v: Any) -> Vector:
    """The second derivative along a curve."""
    return lambda x: pb.jet(f, x, series=[v, v * v])[2]


def curved_differences(
    f: Callable[[np.ndarray], float], v: np.ndarray
) -> Callable[[np.ndarray], float]:
    return lambda x: along(along(f, v), v)(x) + along(f, v * v)(x)


def third(f: Callable[[np.ndarray], float], v: np.ndarray) -> Callable[[np.ndarray], float]:
    return along(along(along(f, v), v), v)


STEPS = [
    Step("jit", lambda f, v: pb.jit(f), lambda f, v: f, 0),
    Step("checkpoint", lambda f, v: pb.checkpoint(f), lambda f, v: f, 0),
    Step("cond", lambda f, v: branched(f), lambda f, v: f, 0),
    Step(
        "vmap",
        lambda f, v: lambda x: pb.vmap(f)(rows_of(x)).mean(),
        lambda f, v: lambda x: mean_of_rows(f, x),
        0,
    ),
    Step("scan", lambda f, v: scanned(f), lambda f, v: lambda x: mean_of_rows(f, x), 0),
    Step("while_loop", lambda f, v: looped(f), lambda f, v: f, 0),
    Step(
        "fori_loop",
        lambda f, v: counted(f),
        lambda f, v: lambda x: mean_of_rows(f, x),
        0,
    ),
    Step("custom_jvp", lambda f, v: ruled_forward(f), lambda f, v: f, 0),
    Step("custom_vjp", lambda f, v: ruled_reverse(f), lambda f, v: f, 0),
    Step("jet", taylor(1), along, 1),
    Step("second jet", taylor(2), second, 2),
    Step("jet of a curve", curved, curved_differences, 2),
    Step("third jet", taylor(3), third, 3),
    Step(
        "sparse jacobian",
        lambda f, v: lambda x: (pb.jacobian(f, sparsity=True)(x) @ v)[0],
        along,
        1,
    ),
    Step("grad", lambda f, v: lambda x: (pb.grad(f)(x) * v).sum(), along, 1),
    Step("jvp", lambda f, v: lambda x: pb.jvp(f, (x,), (v,))[1], along, 1),
    Step("vjp", lambda f, v: lambda x: (pb.vjp(f, x)[1](x.sum() * 0 + 1.0)[0] * v).sum(), along, 1),
    Step("jacfwd", lambda f, v: lambda x: pb.jacfwd(f)(x) @ v, along, 1),
    Step("jacrev", lambda f, v: lambda x: pb.jacrev(f)(x) @ v, along, 1),
    Step("linearize", lambda f, v: lambda x: pb.linearize(f, x)[1](v), along, 1),
    Step("sparse", lambda f, v: lambda x: (pb.sparse_jacobian(f)(x) @ v)[0], along, 1),
    Step("hvp", lambda f, v: lambda x: (pb.hvp(f, (x,), (v,)) * v).sum(), second, 2),
    Step("hessian", lambda f, v: lambda x: v @ pb.hessian(f)(x) @ v, second, 2),
    Step("laplacian", lambda f, v: pb.laplacian(f), lambda f, v: laplace(f), 2),
]


def base(x: Any) -> Any:
    """Smooth, with a product, a sum, an update, an index and a function of several variables."""
    y = pb.sin(x) * pb.exp(x[::-1] * 0.3)
    y[1] = y[0] * x[2]
    m = pb.outer(y, x) + pb.tensor(np.eye(3) * 2.0)
    return pb.tanh(m @ y).sum() + (y * pb.tensor([2.0, 0.0, 1.0], dtype="float64"))[[2, 0]].sum()


def drawn(seed: int) -> tuple[list[Step], list[np.ndarray]]:
    """Transforms, at most three of them derivatives, and a direction for each."""
    rng = np.random.default_rng(seed)
    chosen: list[Step] = []
    while len(chosen) < DEPTH:
        step = STEPS[rng.integers(len(STEPS))]
        if step.order + sum(s.order for s in chosen) <= 3:
            chosen.append(step)
    return chosen, [rng.uniform(-1, 1, SIZE) for _ in chosen]


@pytest.mark.parametrize("seed", range(COUNT))
def test_compositions_agree_with_differences_and_loops(seed: int):
    steps, directions = drawn(seed)
    names = " of ".join(s.name for s in reversed(steps))
    f: Vector = base
    expected: Callable[[np.ndarray], float] = lambda x: base(pb.tensor(x)).item()  # noqa: E731
    for step, v in zip(steps, directions, strict=True):
        f = step.apply(f, pb.tensor(v))
        expected = step.expected(expected, v)
    x = np.random.default_rng(seed + 1000).uniform(-0.7, 0.7, SIZE)
    found = f(pb.tensor(x))
    assert not found.requires_grad, names
    np.testing.assert_allclose(found.item(), expected(x), rtol=1e-5, atol=1e-5, err_msg=names)
