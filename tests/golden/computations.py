"""Prints the sha256 of the bits of a few dozen computations, by name, as JSON.

    python tests/golden/computations.py

Operands are made of integers, so that no other library has a part in them. `PULLBACK_CPU` and
`PULLBACK_NUM_THREADS` choose instructions and threads; the output is the same for all of them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import pullback as pb
from pullback.core import pytrees

Computation = Callable[[], Any]


def numbers(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Numbers in -2 ... 2, spread by a mixer of integers."""
    count = math.prod(shape)
    x = np.arange(count, dtype=np.uint64) + np.uint64(1 + seed * 1_000_003)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    signed = (x >> np.uint64(11)).astype(np.int64) - (1 << 52)
    return (signed / 2.0**51).reshape(shape).astype(dtype)


def real(*shape: int, dtype: str = "float32", seed: int = 0) -> pb.Tensor:
    return pb.tensor(numbers(*shape, dtype=dtype, seed=seed))


def both(*shape: int, dtype: str = "complex64", seed: int = 0) -> pb.Tensor:
    part = "float32" if dtype == "complex64" else "float64"
    x, y = (numbers(*shape, dtype=part, seed=s) for s in (seed, seed + 100))
    return pb.tensor((x + 1j * y).astype(dtype))


def indices(count: int, rows: int) -> pb.Tensor:
    return pb.tensor((numbers(count, dtype="float64", seed=7) * 1e9).astype(np.int64) % rows)


def gradient(f: Callable[..., pb.Tensor], *args: pb.Tensor) -> Any:
    """The gradients of half the squares of a function's elements."""
    return pb.grad(lambda *xs: (f(*xs) * f(*xs)).sum(), tuple(range(len(args))))(*args)


def attention(q: pb.Tensor, k: pb.Tensor, v: pb.Tensor) -> pb.Tensor:
    return pb.nn.scaled_dot_product_attention(q, k, v, is_causal=True)


def training() -> Any:
    """Fifty compiled steps of a small network."""
    shapes = ((20, 64), (64,), (64, 64), (64,), (64, 1))
    params = [real(*shape, seed=i) * 0.2 for i, shape in enumerate(shapes)]
    x = real(256, 20, seed=9)
    y = pb.sin(x.sum(axis=1, keepdims=True))

    def loss(params: list[pb.Tensor]) -> pb.Tensor:
        a, b, c, d, e = params
        hidden = pb.tanh(pb.nn.gelu(x @ a + b) @ c + d)
        return ((hidden @ e - y) ** 2).mean()

    optimiser = pb.optim.Adam(lr=0.01)

    @pb.jit
    def step(params: Any, state: Any) -> Any:
        value, slopes = pb.value_and_grad(loss)(params)
        return value, *optimiser.step(params, slopes, state)

    state = optimiser.init(params)
    values = []
    for _ in range(50):
        value, params, state = step(params, state)
        values.append(value)
    return values, params


def elementwise() -> dict[str, Computation]:
    found: dict[str, Computation] = {}
    for name in ("exp", "sin", "tanh", "expm1", "erf", "sigmoid", "arctan", "cbrt"):
        f = getattr(pb.nn if name == "sigmoid" else pb, name, None) or getattr(pb, name)
        for dtype in ("float32", "float64"):
            found[f"{name} {dtype}"] = lambda f=f, d=dtype: f(real(5001, dtype=d) * 5)
    for name in ("log", "lgamma", "sqrt"):
        f = getattr(pb, name)
        found[name] = lambda f=f: f(real(5001) * 50 + 101)
    found["power"] = lambda: abs(real(5001)) ** real(5001, seed=1)
    found["exp complex64"] = lambda: pb.exp(both(1001))
    found["half"] = lambda: pb.tanh(real(5001).astype("float16"))
    return found


def products() -> dict[str, Computation]:
    found: dict[str, Computation] = {}
    shapes = {
        "small": ((5, 40), (40, 7)),
        "large": ((130, 700), (700, 150)),
        "batch": ((9, 20, 30), (9, 30, 17)),
        "row": ((1, 700), (700, 301)),
        "matrix with vector": ((301, 700), (700,)),
        "dot": ((20_001,), (20_001,)),
        "narrow": ((1, 9001), (9001, 5)),
    }
    for name, (a, b) in shapes.items():
        for dtype in ("float32", "float64"):
            found[f"product {name} {dtype}"] = lambda a=a, b=b, d=dtype: (
                real(*a, dtype=d) @ real(*b, dtype=d, seed=1)
            )
        found[f"product {name} complex64"] = lambda a=a, b=b: both(*a) @ both(*b, seed=1)
    found["product complex128"] = lambda: (
        both(70, 300, dtype="complex128") @ both(300, 60, dtype="complex128", seed=1)
    )
    found["product bfloat16"] = lambda: (
        real(70, 300).astype("bfloat16") @ real(300, 60, seed=1).astype("bfloat16")
    )
    return found


def networks() -> dict[str, Computation]:
    conv = pb.nn.conv2d

    def deep(x: pb.Tensor, w: pb.Tensor) -> pb.Tensor:
        return conv(x, w, padding=1, groups=x.shape[1])

    def norm(x: pb.Tensor) -> pb.Tensor:
        return pb.nn.layer_norm(pb.nn.softmax(x, -1), (x.shape[-1],))

    return {
        "convolution": lambda: conv(real(2, 40, 20, 20), real(33, 40, 3, 3, seed=1)),
        "convolution, one position": lambda: conv(real(3, 300, 5, 5), real(40, 300, 1, 1, seed=1)),
        "convolution, gradient": lambda: gradient(
            conv, real(4, 12, 33, 33), real(20, 12, 3, 3, seed=1)
        ),
        "depthwise, gradient": lambda: gradient(
            deep, real(2, 40, 28, 28), real(40, 1, 3, 3, seed=1)
        ),
        "attention": lambda: attention(*(real(2, 3, 70, 24, seed=s) for s in range(3))),
        "attention, gradient": lambda: gradient(
            attention, *(real(2, 3, 70, 24, seed=s) for s in range(3))
        ),
        "norm, gradient": lambda: gradient(norm, real(64, 1030)),
        "norm, gradient, compiled": lambda: pb.jit(lambda x: gradient(norm, x))(real(64, 1030)),
        "training": training,
    }


def sums() -> dict[str, Computation]:
    def scatter(rows: int, width: int) -> Computation:
        return lambda: pb.index_add(
            real(rows, width), indices(50_000, rows), real(50_000, width, seed=1)
        )

    found = {f"scatter {r} {w}": scatter(r, w) for r in (20, 2000, 40_000) for w in (1, 5)}
    return found | {
        "sum": lambda: pb.sum(real(300_001)),
        "sum float64": lambda: pb.sum(real(300_001, dtype="float64")),
        "sum of rows": lambda: pb.sum(real(40, 9000), axis=1),
        "sum of columns": lambda: pb.sum(real(9000, 40), axis=0),
        "variance": lambda: pb.var(real(30, 5001), axis=1),
        "product of elements": lambda: pb.prod(real(5001) * 0.1 + 1, axis=0),
        "logsumexp": lambda: pb.logsumexp(real(30, 5001), axis=1),
        "cumulative": lambda: pb.cumulative_sum(real(30_001)),
        "scan": lambda: pb.jit(
            lambda xs: pb.scan(lambda c, x: (pb.tanh(c * 0.9 + x), c), pb.zeros(64), xs)
        )(real(300, 64)),
    }


def others() -> dict[str, Computation]:
    def positive(n: int) -> pb.Tensor:
        a = real(n, n, dtype="float64")
        return a @ a.T + n * pb.eye(n, dtype="float64")

    return {
        "sort": lambda: (pb.sort(real(50_001)), pb.argsort(real(4, 5001))),
        "gather": lambda: real(5000, 3)[indices(50_000, 5000)],
        "normal": lambda: pb.random.normal(pb.random.key(3), (5001,)),
        "uniform": lambda: pb.random.uniform(pb.random.key(3), (5001,)),
        "permutation": lambda: pb.random.permutation(pb.random.key(3), 5001),
        "fft": lambda: pb.fft.fft(both(3, 1000)),
        "fft, prime length": lambda: pb.fft.rfft(real(3, 1009)),
        "cholesky": lambda: pb.linalg.cholesky(positive(40)),
        "cholesky, tiles": lambda: pb.linalg.cholesky(positive(150)),
        "solve": lambda: pb.linalg.solve(positive(60), real(60, 3, dtype="float64")),
        "inverse of small": lambda: pb.linalg.inv(real(50, 4, 4)),
    }


def every() -> dict[str, Computation]:
    return elementwise() | products() | networks() | sums() | others()


def digest(result: Any) -> str:
    leaves = [x.numpy() for x in pytrees.leaves(result) if isinstance(x, pb.Tensor)]
    return hashlib.sha256(b"".join(np.ascontiguousarray(x).tobytes() for x in leaves)).hexdigest()


def main() -> None:
    print(json.dumps({name: digest(f()) for name, f in every().items()}, indent=1))


if __name__ == "__main__":
    main()
