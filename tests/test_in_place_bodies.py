"""Functions that loops and transforms call may update their arguments in place: the result is that
of a function which does not, and whatever was given stays as it was.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.core import pytrees

Body = Callable[..., Any]


def in_place(c, x):
    c += x
    return c, c


def functional(c, x):
    c = c + x
    return c, c


def fill(i, c):
    c[i] = c[i] + i
    return c


def filled(i, c):
    c = c + 0
    c[i] = c[i] + i
    return c


def grow(c):
    c *= 2
    return c


def grown(c):
    return c * 2


def shifted(x, y):
    x += y
    y += 1
    return x * y


def shift(x, y):
    return (x + y) * (y + 1)


def scaled_and_squared(x):
    x *= 0.5
    x *= x
    x[0] = x[1] * x[2]
    return x


def squared_half(x):
    y = (x * 0.5) * (x * 0.5)
    return pb.concat([y[1:2] * y[2:], y[1:]])


def halved(x):
    x *= 0.5
    x[...] = x + x * x * 0.1
    return x


def half(x):
    y = x * 0.5
    return y + y * y * 0.1


def tripled(x):
    x *= 3
    x += x[::-1] * 0.5
    return x


def triple(x):
    return 3 * x + 1.5 * x[::-1]


def total(f: Body) -> Body:
    return lambda *xs: pb.sum(f(*xs) ** 2)


def with_rule(custom: Any, f: Body, rule: str, *given: Body) -> Body:
    made = custom(f)
    getattr(made, rule)(*given)
    return made


def updating_pull(r, g):
    """Twice the cotangent, times what was saved."""
    g *= 2
    r *= g
    return (r,)


def updating_push(xs, ts):
    (x,), (t,) = xs, ts
    t *= 2
    x *= t
    return x * x, x


def newton(f: Body, x: Any) -> Any:
    for _ in range(30):
        x -= f(x) / 2.6
    return x


def root_of(f: Body) -> Body:
    return lambda a: pb.custom_root(lambda x: f(x) - a, pb.ones(3, dtype="float64"), newton)


def minus_in_place(f: Body) -> Body:
    def g(x):
        x[...] = f(x)
        x -= 1.0
        return x

    return g


def minus(f: Body) -> Body:
    return lambda x: f(x) - 1.0


def by_steps(product: Body, b: Any) -> Any:
    x = b * 0.0
    for _ in range(60):
        x -= (product(x) - b) * 0.25
    b *= 100.0
    return x


def vector(n: int) -> Any:
    return pb.tensor(np.linspace(0.3, 1.1, n))


def pairs(call: Callable[[Body], Body], *bodies: Body) -> tuple[Body, Body]:
    """The same use of a function that updates its arguments, and of one that does not."""
    return call(bodies[0]), call(bodies[1])


KEY = pb.random.key(0)
SQUARE = (scaled_and_squared, squared_half)
LINEAR = (tripled, triple)
TWO = (shifted, shift)
# By name of the loop or transform, each a function of one vector.
USES: dict[str, tuple[Body, Body]] = {
    "scan": pairs(lambda f: lambda x: pb.scan(f, x[0], x), in_place, functional),
    "scan of init": pairs(lambda f: lambda x: pb.scan(f, x, x[:, None])[1], in_place, functional),
    "scan, recomputed": pairs(
        lambda f: lambda x: pb.scan(f, x[0], x, recompute=True), in_place, functional
    ),
    "fori_loop": pairs(lambda f: lambda x: pb.fori_loop(0, 3, f, x), fill, filled),
    "while_loop": pairs(
        lambda f: lambda x: pb.while_loop(lambda c: c.sum() < 50, f, x, max_steps=9), grow, grown
    ),
    "while_loop, its test": pairs(
        lambda f: lambda x: pb.while_loop(lambda c: pb.sum(f(c)) < 50, grown, x, max_steps=9),
        grow, grown,
    ),
    "cond": pairs(
        lambda f: lambda x: pb.cond(x[0] > 0, f, lambda a, b: a - b, x, x[::-1]), *TWO
    ),
    "grad": pairs(lambda f: lambda x: pb.grad(lambda a: f(a, a * a).sum())(x), *TWO),
    "jet": pairs(lambda f: lambda x: pb.jet(lambda a: f(a, a * a), x, order=2)[2], *TWO),
    "grad by one of two": pairs(lambda f: lambda x: pb.grad(total(f))(x, x), *TWO),
    "grad by both": pairs(lambda f: lambda x: pb.grad(total(f), (0, 1))(x, x), *TWO),
    "value_and_grad": pairs(lambda f: pb.value_and_grad(total(f)), *SQUARE),
    "vjp": pairs(lambda f: lambda x: pb.vjp(f, x, x)[1](x), *TWO),
    "jvp": pairs(lambda f: lambda x: pb.jvp(f, (x, x), (x, x)), *TWO),
    "hvp": pairs(lambda f: lambda x: pb.hvp(total(f), (x,), (x,)), *SQUARE),
    "linearize": pairs(lambda f: lambda x: linearized(f, x), *SQUARE),
    "linear_transpose": pairs(lambda f: lambda x: pb.linear_transpose(f, x)(x), *LINEAR),
    "vmap": pairs(lambda f: lambda x: pb.vmap(f)(pb.stack([x, -x])), *SQUARE),
    "vmap, shared": pairs(
        lambda f: lambda x: pb.vmap(f, in_axes=(0, None))(pb.stack([x, -x]), x), *TWO
    ),
    "jacobian": pairs(pb.jacobian, *SQUARE),
    "jacfwd": pairs(pb.jacfwd, *SQUARE),
    "jacrev": pairs(pb.jacrev, *SQUARE),
    "hessian": pairs(lambda f: pb.hessian(total(f)), *SQUARE),
    "laplacian": pairs(lambda f: pb.laplacian(total(f)), *SQUARE),
    "laplacian of a tree": pairs(
        lambda f: lambda x: pb.laplacian(lambda p, y: pb.sum(f(p[0], y) ** 2 * p[1]))((x, x), x),
        *TWO,
    ),
    "divergence": pairs(pb.divergence, *SQUARE),
    "gnvp": pairs(lambda f: lambda x: pb.gnvp(f, total(f), (x,), (x,)), *SQUARE),
    "hutchinson_trace": pairs(
        lambda f: lambda x: pb.hutchinson_trace(f, x, KEY, 3) * pb.sum(x), *LINEAR
    ),
    "hutchinson_diagonal": pairs(
        lambda f: lambda x: pb.hutchinson_diagonal(f, x, KEY, 3) * x, *LINEAR
    ),
    "sparse_jacobian": pairs(
        lambda f: lambda x: pb.sparse_jacobian(f)(x).dense(), halved, half
    ),
    "checkpoint": pairs(pb.checkpoint, *SQUARE),
    "custom_vjp": pairs(
        lambda f: with_rule(
            pb.custom_vjp, f, "defvjp", lambda x: (x * 1.0, f(x))[::-1], lambda r, g: (f(r) * g,)
        ),
        *SQUARE,
    ),
    "custom_vjp, its rule": (
        with_rule(pb.custom_vjp, grown, "defvjp", lambda x: (x * x, x), updating_pull),
        with_rule(pb.custom_vjp, grown, "defvjp", lambda x: (x * x, x), lambda r, g: (2 * g * r,)),
    ),
    "custom_jvp": pairs(
        lambda f: with_rule(
            pb.custom_jvp, f, "defjvp", lambda xs, ts: (xs[0] * ts[0], f(*xs))[::-1]
        ),
        *SQUARE,
    ),
    "custom_jvp, its rule": (
        with_rule(pb.custom_jvp, lambda x: x * x, "defjvp", updating_push),
        with_rule(
            pb.custom_jvp, lambda x: x * x, "defjvp",
            lambda xs, ts: (xs[0] ** 2, 2 * xs[0] * ts[0]),
        ),
    ),
    "custom_root": pairs(root_of, tripled, triple),
    "custom_linear_solve": pairs(
        lambda f: lambda x: pb.custom_linear_solve(f, x, by_steps, by_steps), *LINEAR
    ),
    "fixed_point": pairs(
        lambda f: lambda x: pb.fixed_point(lambda y: f(y) + x, pb.zeros_like(x)), halved, half
    ),
}  # fmt: skip


def linearized(f, x):
    value, push = pb.linearize(f, x)
    return value, push(x), push(x * x)


# What takes a function and has no place above: it only looks at it, or it is the plain call.
OTHERS = {
    "check_grad": "compares derivatives",
    "gradient": "f is an array",
    "jacobian_sparsity": "finds a pattern",
    "jit": "is the function: arguments are updated as by a plain call",
    "map_tree": "is a plain call for each leaf",
    "profile": "measures",
    "pure_callback": "is given copies",
    "trace": "records",
}
OF_FUNCTIONS = {"f", "function", "body", "product", "true_fn"}


def test_every_loop_and_transform_is_here():
    named = {name.partition(",")[0].partition(" ")[0] for name in USES} | set(OTHERS)
    for name in pb.__all__:
        value = getattr(pb, name)
        if callable(value) and not isinstance(value, pb.DType):
            try:
                parameters = inspect.signature(value).parameters
            except ValueError:
                continue
            assert name in named or not OF_FUNCTIONS & set(parameters), name


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.array(x.detach().numpy()) for x in pb_leaves(tree)]


def pb_leaves(tree: Any) -> list[Any]:
    return [x for x in pytrees.leaves(tree) if isinstance(x, pb.Tensor)]


def loss_of(f: Body) -> Body:
    return lambda x: pb.sum(pb.stack([pb.sum(y * y) for y in pb_leaves(f(x))]))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", USES)
def test_bodies_may_update_their_arguments_in_place(name: str, compiled: bool):
    wrap = pb.jit if compiled else lambda f: f
    updating, plain = USES[name]
    x = vector(3)
    before = x.tolist()
    for got, expected in zip(leaves(wrap(updating)(x)), leaves(plain(x)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-14)
    assert x.tolist() == before
    expected = pb.grad(loss_of(plain))(x).numpy()
    np.testing.assert_allclose(wrap(pb.grad(loss_of(updating)))(x).numpy(), expected, rtol=1e-12)
    assert x.tolist() == before
    tracked = pb.tensor(before, dtype="float64", requires_grad=True)
    loss_of(wrap(updating))(tracked).backward()
    assert tracked.grad is not None
    np.testing.assert_allclose(tracked.grad.numpy(), expected, rtol=1e-12)
    assert tracked.tolist() == before


def test_rules_may_update_what_they_are_given_more_than_once():
    """What a graph saved, and what others are given too, stays as it was."""
    for name in ("custom_vjp, its rule", "custom_jvp, its rule"):
        updating, plain = USES[name]
        found = []
        for f in (updating, plain):
            x = pb.tensor([1.0, 2.0], dtype="float64", requires_grad=True)
            y = x * 3.0
            z = pb.sum(f(y) + y * 1.0 + f(y))
            z.backward(retain_graph=True)
            z.backward()
            found.append((x.grad.tolist(), y.tolist()))
        assert found[0] == found[1]


def test_arguments_that_are_not_differentiated_stay_too():
    def f(x, state, *, shift):
        state["c"] += 1
        shift *= 2
        return pb.sum(x * state["c"] * shift)

    x, state, shift = vector(3), {"c": pb.tensor(2.0)}, pb.tensor(5.0)
    for _ in range(2):
        assert pb.grad(f)(x, state, shift=shift).tolist() == [30.0] * 3
    assert (state["c"].item(), shift.item()) == (2.0, 5.0)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_functions_of_the_host_are_given_copies(compiled: bool):
    kept = []

    def overwriting(a):
        kept.append(a * 2.0)
        a[...] = 99.0
        return kept[-1]

    def f(x):
        y = x + 1.0
        return y, pb.pure_callback(overwriting, y, y), y * x

    x = pb.tensor([1.0, 2.0])
    found = (pb.jit(f) if compiled else f)(x)
    kept[-1][...] = 77.0
    assert [a.tolist() for a in found] == [[2.0, 3.0], [4.0, 6.0], [2.0, 6.0]]
    assert x.tolist() == [1.0, 2.0]
