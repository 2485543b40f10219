"""Exact sums by index, bit for bit against the reference that all runtimes share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.compile.kernel.fixed_point import exact_scatter_add_reference

SHAPES = [(7, 1, 60), (5, 9, 40), (300, 2, 2_000), (20, 1, 30_000), (1_000, 3, 700), (3, 300, 50)]
WORDS = {2: np.uint16, 4: np.uint32, 8: np.uint64}
SPECIAL = [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 1e-45, 3e38]
CHANCES = [0.3, 0.3, 0.3, 0.02, 0.02, 0.02, 0.02, 0.02]


def drawn(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    normal = rng.standard_normal(shape)
    if kind == "any size":
        normal = np.ldexp(normal, rng.integers(-140, 126, shape))
    elif kind == "subnormal":
        normal = np.ldexp(normal, -145)
    elif kind == "overflow":
        normal = np.sign(normal) * 3e38
    elif kind == "special":
        normal = rng.choice(SPECIAL, shape, p=CHANCES)
    elif kind == "cancelling":
        normal = normal + 1e30 * rng.integers(-1, 2, shape)
    with np.errstate(over="ignore"):
        return normal.astype(np.float32)


def array(rng: np.random.Generator, kind: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    if dtype == np.complex64:
        both = np.stack([drawn(rng, kind, shape), drawn(rng, kind, shape)], axis=-1)
        return np.ascontiguousarray(both).view(np.complex64)[..., 0]
    with np.errstate(over="ignore"):
        return drawn(rng, kind, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64"])
@pytest.mark.parametrize(
    "kind", ["normal", "any size", "subnormal", "overflow", "special", "cancelling"]
)
def test_bits_are_those_of_the_reference(kind: str, dtype: str, threads: Any) -> None:
    rng = np.random.default_rng(len(kind))
    kept = getattr(pb, dtype).numpy
    for rows, width, count in SHAPES:
        shape = (rows, width) if width > 1 else (rows,)
        index = rng.integers(-rows, rows, count)
        x, updates = (array(rng, kind, s, kept) for s in (shape, (count, *shape[1:])))
        with np.errstate(all="ignore"):
            want = exact_scatter_add_reference(index, updates, x)
        for n in (1, 3):
            threads(n)
            for order in (np.arange(count), rng.permutation(count)):
                got = pb.scatter_add(
                    pb.tensor(x), pb.tensor(index[order]), pb.tensor(updates[order]), exact=True
                )
                word = WORDS[want.dtype.itemsize]
                assert np.array_equal(np.array(got).view(word), want.view(word))


def test_jit_and_plans_give_the_same_bits() -> None:
    rng = np.random.default_rng(2)
    index = pb.tensor(rng.integers(0, 50, 3_000))
    updates = pb.tensor(drawn(rng, "any size", (3_000,)))
    x, seen = pb.tensor(drawn(rng, "any size", (50,))), set()
    compiled = pb.jit(lambda *args: pb.scatter_add(*args, exact=True))
    for _ in range(3):
        seen.add(np.asarray(pb.scatter_add(x, index, updates, exact=True)).tobytes())
        seen.add(np.asarray(compiled(x, index, updates)).tobytes())
    assert len(seen) == 1


def test_derivatives() -> None:
    index = pb.tensor([0, 2, 2, -1])
    weights = pb.tensor([1.0, 2.0, 3.0])

    def f(x: Any, u: Any) -> Any:
        return (pb.scatter_add(x, index, u, exact=True) ** 3 * weights).sum()

    x = pb.tensor(np.array([0.5, 1.0, -1.0]))
    pb.check_grad(f, x, pb.tensor(np.array([1.0, 2.0, -0.5, 0.25])))
