"""The workloads of `pullback bench cores`: products and what is made of them, for any library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.libraries import Library
from benchmarks.nn_workloads import NN_WORKLOADS
from benchmarks.programs import Function
from benchmarks.suites import function_of
from benchmarks.workloads import WORKLOADS, Sizes, Workload

__all__ = ["CORE_WORKLOADS", "core_function"]

SIDES = (256, 512, 1024, 2048, 4096)


def _normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return rng.standard_normal(shape, np.float32) * np.float32(scale)


def _squares(rng: np.random.Generator, s: Sizes) -> tuple:
    return tuple(_normal(rng, s["n"], s["n"]) for _ in range(2))


def _matmul(n: int) -> Workload:
    title, bar = f"matmul {n}^3, float32", 1.1 if n < 1024 else 1.0
    flops: Callable[[Sizes], float] = lambda s: 2.0 * s["n"] ** 3  # noqa: E731
    return Workload(f"matmul_{n}", title, _squares, {"n": n}, {"n": 24}, bar, flops)


def _cube(rng: np.random.Generator, s: Sizes) -> tuple:
    return (_normal(rng, s["n"], s["n"], scale=1 / s["n"]),)


def _recurrence(rng: np.random.Generator, s: Sizes) -> tuple:
    w = s["width"]
    start, steps = _normal(rng, w), np.zeros(s["steps"], np.float32)
    return _normal(rng, w, w, scale=w**-0.5), start, steps


def _with_bar(workload: Workload, bar: float) -> Workload:
    """A workload of another suite, which has to keep to another bar on many cores."""
    return replace(workload, bar=bar)


def _small(rng: np.random.Generator, s: Sizes) -> tuple:
    return WORKLOADS["small_mlp"].inputs(rng, s)


CORE_WORKLOADS = {
    w.name: w
    for w in (
        *map(_matmul, SIDES),
        WORKLOADS["wide_mlp"],
        Workload(
            "cube",
            "tanh(M @ M @ M) of 700^2, gradient",
            _cube,
            {"n": 700},
            {"n": 24},
            1.0,
            lambda s: 6 * 2.0 * s["n"] ** 3,
        ),
        _with_bar(NN_WORKLOADS["nn.attention"], 0.9),
        _with_bar(NN_WORKLOADS["nn.lstm"], 0.9),
        Workload(
            "narrow_mlp",
            "MLP 6 x 48, batch 24, value and gradient",
            _small,
            {"layers": 6, "width": 48, "batch": 24},
            {"layers": 2, "width": 8, "batch": 4},
            0.5,
        ),
        _with_bar(WORKLOADS["pinn"], 0.4),
        WORKLOADS["lstm"],
        Workload(
            "recurrence",
            "scan of tanh(A @ c) + 0.1 c, width 16, 400 steps, gradient",
            _recurrence,
            {"width": 16, "steps": 400},
            {"width": 4, "steps": 10},
            0.4,
        ),
        Workload(
            "tiny_products",
            'einsum("mij,mik->ijk"), d 2, k 100',
            lambda rng, s: tuple(_normal(rng, s["k"], s["d"], s["d"]) for _ in range(2)),
            {"d": 2, "k": 100},
            {"d": 2, "k": 10},
            0.5,
        ),
        Workload(
            "kmeans_gradient",
            "k-means objective, d 64, k 100, n 10000, gradient",
            lambda rng, s: (_normal(rng, s["k"], s["d"]), _normal(rng, s["n"], s["d"])),
            {"d": 64, "k": 100, "n": 10000},
            {"d": 4, "k": 3, "n": 20},
            0.7,
            lambda s: 2 * 2.0 * s["n"] * s["k"] * s["d"],
        ),
    )
}


def core_function(library: Library, name: str) -> Function:
    """A workload in the words of a library, as a function of the workload's inputs."""
    xp = library.xp
    if name.startswith("matmul_"):
        return library.jit(lambda a, b: a @ b)
    if name == "cube":
        return library.value_and_grad(lambda m: xp.sum(xp.tanh(m @ m @ m)))
    if name == "narrow_mlp":
        return library.value_and_grad(library.mlp_loss)
    if name == "recurrence":
        return library.value_and_grad(_recurrence_loss(library), loop=True)
    if name == "tiny_products":
        return library.jit(lambda a, b: xp.einsum("mij,mik->ijk", a, b))
    if name == "kmeans_gradient":
        return library.value_and_grad(library.kmeans_cost)
    return function_of(library, name)


def _recurrence_loss(library: Library) -> Function:
    def step(matrix: Any, c: Any, _: Any) -> Any:
        c = library.xp.tanh(matrix @ c) + 0.1 * c
        return c, c[0]

    def loss(matrix: Any, start: Any, steps: Any) -> Any:
        last, _ = library.scan(step, matrix, start, steps)
        return library.xp.sum(last * last)

    return loss
