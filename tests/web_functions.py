"""Functions that are exported in tests, with arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import pullback as pb


class Case(NamedTuple):
    """A function and its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    exact: bool = True  # else SwiftShader compiles for minutes: its fma is no fma


def draw(*shape: int, dtype: str = "float32") -> Any:
    rng = np.random.default_rng(7)
    x = rng.standard_normal(shape) * 3
    return pb.tensor((x + 1j * rng.standard_normal(shape) if dtype[0] == "c" else x).astype(dtype))


def loss(params: Any, x: Any, y: Any) -> Any:
    hidden = pb.tanh((x[:, :, None] * params["w1"]).sum(1) + params["b1"])
    return (((hidden * params["w2"]).sum(1) - y) ** 2).mean()


def train(params: Any, state: Any, x: Any, y: Any) -> Any:
    value, grads = pb.value_and_grad(loss)(params, x, y)
    params, state = pb.optim.Adam(lr=0.01).step(params, grads, state)
    return params, state, value


PARAMS = {"w1": draw(2, 16), "b1": draw(16), "w2": draw(16)}
SCALES = {"rows": draw(5), "columns": draw(7)}
TABLE = draw(9, 3)


def walk(x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        carry = pb.sin(carry) + row
        return carry, carry.sum()

    return pb.scan(step, x[0], x)


def many_rounds(x: Any) -> Any:
    def inner(v: Any) -> Any:
        return pb.fori_loop(0, 3, lambda k, u: u * u * 0.5 - k, v)

    return pb.fori_loop(0, 7, lambda k, v: inner(v) / (1 + v.sum() ** 2), x)


def root_of(x: Any) -> Any:
    def is_far(carry: Any) -> Any:
        return pb.abs(carry[0] ** 2 - x).sum() > 1e-4

    def improved(carry: Any) -> Any:
        y, rounds = carry
        return (y + x / y) / 2, rounds + 1

    return pb.while_loop(is_far, improved, (x, pb.tensor(0)))


def either(x: Any) -> Any:
    def loud(v: Any) -> Any:
        return pb.fori_loop(0, 3, lambda k, u: u * 2 + k, v)

    def one(k: Any, v: Any) -> Any:
        return pb.cond(v.sum() > 3, lambda u: u - 1, loud, v)

    return pb.fori_loop(0, 6, one, x)


def spectra(x: Any) -> Any:
    """What says no more than the matrix: vectors have signs."""
    u, s, vh = pb.linalg.svd(x[..., :4], full_matrices=False)
    h = x + x.mT
    values, vectors = pb.linalg.eigh(h)
    w, v = pb.linalg.eig(x)
    again = pb.linalg.solve(v.mT, (v * w[..., None, :]).mT).mT
    return (s, (u * s[..., None, :]) @ vh, values, (vectors * values[..., None, :]) @ vectors.mT,
            again.real, pb.linalg.qr(x).R, pb.linalg.svdvals(h[..., :3, :3]))  # fmt: skip


def functions(x: Any) -> Any:
    square = x @ pb.conj(x.mT) + 5 * pb.eye(5, dtype="complex64")
    root = pb.linalg.sqrtm(square)
    low, middle, _ = pb.linalg.ldl(square - 20 * pb.eye(5, dtype="complex64"))
    made = low @ middle @ pb.conj(low.mT)
    parts = (root, pb.linalg.logm(square), pb.linalg.expm(x / 5), made,
             pb.linalg.solve_sylvester(square, root, x))  # fmt: skip
    return [(p.real, p.imag) for p in parts]


CASES: dict[str, Case] = {
    "train": Case(train, (PARAMS, pb.optim.Adam(lr=0.01).init(PARAMS), draw(40, 2), draw(40))),
    "curvature": Case(pb.grad(lambda x: pb.grad(lambda v: (pb.exp(v) * v).sum())(x).sum()),
                      (draw(6, 5),)),
    "weights": Case(lambda x: (x * SCALES["rows"][:, None] + SCALES["columns"]).T, (draw(5, 7),)),
    "rows": Case(lambda x: pb.exp(x - x.max(axis=1, keepdims=True)).sum(axis=1),
                 (draw(30, 700),), exact=False),
    "whole": Case(lambda x: (x.sum(), (x * x).mean(axis=0)), (draw(700, 300),)),
    "walk": Case(walk, (draw(6, 5),)),
    "rounds": Case(many_rounds, (draw(11),)),
    "root": Case(root_of, (pb.tensor([2.0, 9.0, 0.3]),)),
    "either": Case(either, (draw(3),)),
    "waves": Case(lambda x: pb.abs(pb.fft.fft(x, n=100)), (draw(3, 50),), exact=False),
    "long_waves": Case(lambda x: pb.abs(pb.fft.rfft(x)), (draw(2, 1009),), exact=False),
    "spectra": Case(spectra, (draw(2, 6, 6),), exact=False),
    "functions": Case(functions, (draw(2, 5, 5, dtype="complex64"),), exact=False),
    "product": Case(pb.grad(lambda w, x: (pb.tanh(x @ w) ** 2).sum()),
                    (draw(20, 9), draw(30, 20)), exact=False),
    "windows": Case(pb.grad(lambda w, x: (pb.nn.conv2d(x, w, padding=1) ** 2).sum()),
                    (draw(3, 2, 3, 3), draw(2, 2, 9, 8)), exact=False),
    "sorted": Case(lambda x: (pb.sort(x), pb.argsort(x)), (draw(300),)),
    "embedding": Case(pb.grad(lambda t, i: (pb.take(t, i, axis=0) ** 2).sum()),
                      (TABLE, pb.tensor([3, 0, 3, 8, 3]))),
    "lookup": Case(lambda i: pb.take(TABLE, i, axis=0), (pb.tensor([3, 0, -1, 8]),)),
    "bools": Case(lambda x: {"positive": x > 0, "any": (x > 2).any(axis=1)}, (draw(5, 3),)),
    "bytes": Case(lambda x: x * 2 + 1, (draw(13, dtype="int8"),)),
    "longs": Case(lambda x: x * 3_000_000_000 + 1, (draw(5, dtype="int64"),)),
    "halves": Case(lambda x: x * x + 1, (draw(9).astype("float16"),)),
    "complexes": Case(lambda x: x * pb.conj(x) + 1j, (draw(4, dtype="complex64"),)),
    "random": Case(lambda key: pb.random.uniform(key, (100,)), (pb.random.key(3),)),
    "as_given": Case(lambda x, y: {"x": x, "y": y + 1, "name": "text", "none": None},
                     (draw(3), draw(2, 2))),
    "fixed": Case(lambda: (TABLE, TABLE.sum()), ()),
    "empty": Case(lambda x: (x + 1, x.sum(axis=0), x), (draw(0, 3),)),
    "static": Case(lambda x, n, *rest: x[:n] + rest[0], (draw(5), 3, draw(1))),
    "scalars": Case(lambda x, lr: x * lr, (draw(3), pb.tensor(0.25))),
}  # fmt: skip
