"""The workloads of `pullback bench transforms`: batches, Jacobians and Hessians, compiled, beside
jax.jit and torch.func, which is not compiled.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import pullback as pb
from benchmarks.turns import found_peers, taking_turns, versions

__all__ = ["WORKS", "Work", "run", "works_of"]

Function = Callable[..., Any]


class Words(NamedTuple):
    """The words of one library for the same things."""

    xp: Any
    array: Callable[[np.ndarray], Any]
    jit: Callable[[Function], Function]
    vmap: Function
    grad: Function
    hessian: Function
    jacobian: Function
    laplacian: Callable[[Function], Function]
    wait: Callable[[Any], Any]
    tangent: Callable[[Function, Any, Any], Any]  # of a function, at a point, along a direction
    while_loop: Function | None = None
    cond: Function | None = None


class Work(NamedTuple):
    """One thing to compute: `make` gives the function, in the words of a library, of the inputs."""

    name: str
    make: Callable[[Words], Function | None]  # None where words are missing
    inputs: Callable[[np.random.Generator], tuple]


def _words(name: str, library: Any) -> Words:
    if name == "pullback":
        return Words(
            pb, pb.tensor, pb.jit, pb.vmap, pb.grad, pb.hessian, pb.jacobian, pb.laplacian,
            lambda x: x, lambda f, x, v: pb.jvp(f, (x,), (v,))[1], pb.while_loop, pb.cond,
        )  # fmt: skip
    if name == "jax":

        def laplacian(f: Function) -> Function:
            return lambda x: library.numpy.trace(library.hessian(f)(x))

        return Words(
            library.numpy, library.numpy.asarray, library.jit, library.vmap, library.grad,
            library.hessian, library.jacfwd, laplacian, library.block_until_ready,
            lambda f, x, v: library.jvp(f, (x,), (v,))[1], library.lax.while_loop, library.lax.cond,
        )  # fmt: skip
    func = library.func
    return Words(
        library, library.tensor, lambda f: f,
        lambda f, in_axes=0: func.vmap(f, in_dims=in_axes), func.grad, func.hessian, func.jacfwd,
        lambda f: lambda x: func.hessian(f)(x).trace(), lambda x: x,
        lambda f, x, v: func.jvp(f, (x,), (v,))[1],
    )  # fmt: skip


def _layers(rng: np.random.Generator, *sizes: int) -> list[Any]:
    found = []
    for a, b in pairwise(sizes):
        weight = rng.normal(size=(a, b)) / np.sqrt(a)
        found.append((weight.astype(np.float32), np.full(b, 0.1, np.float32)))
    return found


def _network(xp: Any, layers: Any, x: Any) -> Any:
    for weight, bias in layers[:-1]:
        x = xp.tanh(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def _laplacian(w: Words) -> Function:
    def at(layers: Any, x: Any) -> Any:
        return w.laplacian(lambda x: _network(w.xp, layers, x)[0])(x)

    return w.vmap(at, in_axes=(None, 0))


def _hessian(w: Words) -> Function:
    def loss(p: Any, x: Any) -> Any:
        h = w.xp.tanh(x @ p[:800].reshape((20, 40)))
        return (w.xp.tanh(h @ p[800:].reshape((40, 5))) ** 2).sum()

    return lambda p, x: w.hessian(lambda p: loss(p, x))(p)


def _each_gradient(w: Words) -> Function:
    def loss(layers: Any, x: Any) -> Any:
        return (_network(w.xp, layers, x) ** 2).sum()

    return w.vmap(w.grad(loss), in_axes=(None, 0))


def _dense(w: Words) -> Function:
    return lambda layers, x: w.jacobian(lambda x: _network(w.xp, layers, x))(x)


def _tridiagonal(w: Words) -> Function:
    """The entries by three products, which users of the peers write by hand."""

    def f(x: Any) -> Any:
        return x[2:] - 2.0 * x[1:-1] ** 3 + x[:-2] * w.xp.sin(x[1:-1])

    if w.xp is pb:
        return lambda x, seeds: pb.jacobian(f, sparsity=True)(x).values
    return lambda x, seeds: w.vmap(lambda v: w.tangent(f, x, v))(seeds)


def _sixth(w: Words) -> Function:
    def at(layers: Any, x: Any) -> Any:
        return _network(w.xp, layers, x.reshape((1,)))[0]

    def nested(layers: Any, x: Any) -> Any:
        f = lambda x: at(layers, x)  # noqa: E731
        for _ in range(ORDER):
            f = w.grad(f)
        return f(x)

    def series(layers: Any, x: Any) -> Any:
        return pb.jet(lambda x: at(layers, x), x, order=ORDER)[ORDER]

    return w.vmap(series if w.xp is pb else nested, in_axes=(None, 0))


def _loops(w: Words) -> Function | None:
    """A loop in a loop in a loop of 20 steps each, with three choices, and its second derivative by
    forward mode of forward mode.
    """
    if w.while_loop is None or w.cond is None:
        return None
    loop, cond = w.while_loop, w.cond

    def step(a: Any) -> Any:
        small = lambda a: cond(a > 0.2, lambda a: a + 0.3, lambda a: a * 3.0 + 0.1, a)  # noqa: E731
        middle = lambda a: cond(a > 0.5, lambda a: a * 1.5, small, a)  # noqa: E731
        return cond(a > 1.0, lambda a: a * 0.5, middle, a)

    def repeated(f: Function, zero: Any) -> Function:
        return lambda a: loop(lambda s: s[0] < 20, lambda s: (s[0] + 1, f(s[1])), (zero, a))[1]

    def nest(x: Any, zero: Any) -> Any:
        f = lambda a: step(a) * x  # noqa: E731
        for _ in range(3):
            f = repeated(f, zero)
        return f(x)

    def second(x: Any, one: Any, zero: Any) -> Any:
        slope = lambda x: w.tangent(lambda x: nest(x, zero), x, one)  # noqa: E731
        return w.tangent(slope, x, one)

    return second


def _thirds(count: int) -> np.ndarray:
    """Three sums of unit vectors: every third one."""
    places = np.arange(count)
    return np.stack([places % 3 == k for k in range(3)]).astype(np.float32)


ORDER = 6
WORKS = [
    Work("Laplacian of a network 2-64-64-64-1 at 4096 points", _laplacian,
         lambda rng: (_layers(rng, 2, 64, 64, 64, 1), _normal(rng, 4096, 2))),
    Work("Hessian by 1000 parameters", _hessian,
         lambda rng: (_normal(rng, 1000) * np.float32(0.3), _normal(rng, 64, 20))),
    Work("gradients for each of 512 examples, 64-128-128-10", _each_gradient,
         lambda rng: (_layers(rng, 64, 128, 128, 10), _normal(rng, 512, 64))),
    Work("Jacobian 256 x 256 of a network", _dense,
         lambda rng: (_layers(rng, 256, 256, 256), _normal(rng, 256))),
    Work("tridiagonal Jacobian of 10,000: entries", _tridiagonal,
         lambda rng: (_normal(rng, 10_000), _thirds(10_000))),
    Work("sixth derivative of a network 1-64-64-64-64-1 at 256", _sixth,
         lambda rng: (_layers(rng, 1, 64, 64, 64, 64, 1), _normal(rng, 256))),
    Work("loops in loops with choices, forward over forward", _loops,
         lambda rng: (np.float32(1.0), np.float32(1.0), np.int32(0))),
]  # fmt: skip


def _mapped(f: Callable[[np.ndarray], Any], tree: Any) -> Any:
    if isinstance(tree, (list, tuple)):
        return type(tree)(_mapped(f, t) for t in tree)
    return f(tree)


def works_of(work: Work, peers: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """A call for each library that has the words."""
    given = work.inputs(np.random.default_rng(0))
    found: dict[str, Callable[[], Any]] = {}
    for name, library in {"pullback": pb, **peers}.items():
        if name == "numpy":
            continue
        w = _words(name, library)
        arguments = _mapped(w.array, given)
        made = work.make(w)
        if made is None:
            continue
        function = w.jit(made)
        found[name] = lambda w=w, function=function, a=arguments: w.wait(function(*a))
    return found


def run(options: argparse.Namespace) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The versions of everyone, and a row of seconds for each kind of work; prints them."""
    peers = found_peers(options.threads)
    names = [n for n in ("pullback", *peers) if n != "numpy"]
    print(", ".join(f"{k} {v}" for k, v in versions(peers).items() if k != "numpy"))
    rows = []
    for work in WORKS:
        times = taking_turns(works_of(work, peers), options.repeat)
        rows.append({"work": work.name, **times})
        least = min([t for n, t in times.items() if n != "pullback"], default=float("nan"))
        cells = "".join(f"{times.get(n, float('nan')) * 1e3:>11.3f}" for n in names)
        print(f"{work.name:<54}{cells} ms {times['pullback'] / least:>8.2f}", flush=True)
    return versions(peers), rows
