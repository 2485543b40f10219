"""Functions with loops and branches, to be differentiated and compared with eager loops."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import pullback as pb
from pullback.core import pytrees
from pullback.ir.op import bind


class State(NamedTuple):
    position: Any
    step: Any
    key: Any


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
