"""The workloads of `pullback bench jit`: inputs, sizes, tolerances and bars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

__all__ = ["WORKLOADS", "Workload", "leaves"]

Sizes = dict[str, int]
Inputs = Callable[[np.random.Generator, Sizes], tuple]


@dataclass(frozen=True)
class Workload:
    """One thing to compute, at a full and a quick size."""

    name: str
    title: str
    inputs: Inputs
    sizes: Sizes
    quick: Sizes
    bar: float  # our time over the best peer's, at most
    flops: Callable[[Sizes], float] = lambda s: 0.0  # of its matrix products
    tolerance: float = 1e-3  # of the largest element

    def arrays(self, quick: bool) -> tuple:
        """The inputs, the same for every library."""
        return self.inputs(np.random.default_rng(0), self.chosen(quick))

    def chosen(self, quick: bool) -> Sizes:
        """The sizes of a full or a quick run."""
        return self.quick if quick else self.sizes


def leaves(tree: Any) -> list[Any]:
    """The arrays in nested tuples, lists and dictionaries, in order; dictionaries by their keys."""
    if isinstance(tree, dict):
        return leaves([tree[k] for k in sorted(tree)])
    if isinstance(tree, (tuple, list)):
        return [leaf for child in tree for leaf in leaves(child)]
    return [tree]


# -- inputs ----------------------------------------------------------------------------------------


def _normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape, np.float32) * np.float32(scale)).astype(np.float32)


def _line(rng: np.random.Generator, s: Sizes) -> tuple:
    return (_normal(rng, s["n"]),)


def _matrix(rng: np.random.Generator, s: Sizes) -> tuple:
    """A cotangent and a matrix."""
    shape = s["rows"], s["columns"]
    return _normal(rng, *shape), _normal(rng, *shape)


def _normed(rng: np.random.Generator, s: Sizes) -> tuple:
    n = s["columns"]
    return (*_matrix(rng, s), 1 + _normal(rng, n, scale=0.1), _normal(rng, n, scale=0.1))


def _rows(rng: np.random.Generator, s: Sizes) -> tuple:
    return _normal(rng, s["rows"]), _normal(rng, s["rows"], s["columns"])


def _layers(rng: np.random.Generator, widths: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    pairs = pairwise(widths)
    return [(_normal(rng, m, n, scale=m**-0.5), _normal(rng, n, scale=0.1)) for m, n in pairs]


def _mlp(rng: np.random.Generator, s: Sizes) -> tuple:
    shape = s["batch"], s["width"]
    layers = _layers(rng, [s["width"]] * (s["layers"] + 1))
    return layers, _normal(rng, *shape), _normal(rng, *shape)


def _mlp_and_direction(rng: np.random.Generator, s: Sizes) -> tuple:
    layers, x, y = _mlp(rng, s)
    direction = [(_normal(rng, *w.shape), _normal(rng, *b.shape)) for w, b in layers]
    return layers, direction, x, y


def _pinn(rng: np.random.Generator, s: Sizes) -> tuple:
    widths = [2, *[s["width"]] * 3, 1]
    points = rng.uniform(-1, 1, (s["points"], 2)).astype(np.float32)
    return _layers(rng, widths), points, _normal(rng, s["points"])


def _lstm(rng: np.random.Generator, s: Sizes) -> tuple:
    w = s["width"]
    shape = 2 * w, 3 * w
    weights = {"w": _normal(rng, *shape, scale=w**-0.5), "b": _normal(rng, 3 * w, scale=0.1)}
    return weights, _normal(rng, s["steps"], w), np.zeros(w, np.float32)


def _three_body(rng: np.random.Generator, s: Sizes) -> tuple:
    """Near the figure-eight orbit, which is stable, so that the gradient does not grow."""
    p = np.array([0.97000436, -0.24308753])
    v = np.array([0.93240737, 0.86473146])
    state = {"p": np.stack([p, -p, 0 * p]), "v": np.stack([-v / 2, -v / 2, v])}
    masses = np.array([1.0, 1.1, 0.9], np.float32)
    return {k: x.astype(np.float32) for k, x in state.items()}, masses, np.zeros(s["steps"], "f4")


def _gmm(rng: np.random.Generator, s: Sizes) -> tuple:
    d, k = s["d"], s["k"]
    parameters = {
        "alphas": _normal(rng, k),
        "means": _normal(rng, k, d),
        "scales": _normal(rng, k, d, scale=0.1),
        "lower": _normal(rng, k, d, d, scale=0.1),
    }
    return (
        parameters,
        _normal(rng, s["n"], d),
        np.tril(np.ones((d, d), "f4"), -1),
        np.eye(d, dtype="f4"),
    )


def _kmeans(rng: np.random.Generator, s: Sizes) -> tuple:
    centres, d = s["k"], s["d"]
    return _normal(rng, centres, d), np.ones((centres, d), np.float32), _normal(rng, s["n"], d)


# -- the table -------------------------------------------------------------------------------------


def _mlp_flops(s: Sizes) -> float:
    """Three products per layer: forward, by the weights, by the activations (not for the first)."""
    return 2.0 * s["batch"] * s["width"] ** 2 * (3 * s["layers"] - 1)


def _pinn_flops(s: Sizes) -> float:
    """A value and two tangents per direction go forward; each takes two products to go back."""
    weights = 2 * s["width"] ** 2 + 3 * s["width"]
    return 2.0 * s["points"] * weights * 5 * 3


SMALL = {"layers": 8, "width": 64, "batch": 32}
TINY = {"layers": 3, "width": 16, "batch": 8}
TABLE = {"rows": 4096, "columns": 1024}
FEW = {"rows": 64, "columns": 32}
MIXTURE = {"d": 64, "k": 100, "n": 1000}

WORKLOADS = {
    w.name: w
    for w in (
        Workload(
            "chain",
            "elementwise chain, 16M, value and gradient",
            _line,
            {"n": 1 << 24},
            {"n": 1 << 12},
            0.5,
        ),
        Workload("softmax", "softmax (4096, 1024) and gradient", _matrix, TABLE, FEW, 0.8),
        Workload("layer_norm", "layer_norm (4096, 1024) and gradients", _normed, TABLE, FEW, 0.8),
        Workload("gelu", "gelu (4096, 1024) and gradient", _matrix, TABLE, FEW, 0.8),
        Workload(
            "small_mlp",
            "MLP 8 x 64, batch 32, value and gradient",
            _mlp,
            SMALL,
            TINY,
            0.5,
            _mlp_flops,
        ),
        Workload(
            "wide_mlp",
            "MLP 4 x 1024, batch 256, value and gradient",
            _mlp,
            {"layers": 4, "width": 1024, "batch": 256},
            TINY,
            1.0,
            _mlp_flops,
        ),
        Workload(
            "hvp",
            "Hessian-vector product of MLP 8 x 64",
            _mlp_and_direction,
            SMALL,
            TINY,
            0.5,
            lambda s: 2 * _mlp_flops(s),
        ),
        Workload(
            "pinn",
            "PINN Laplacian loss, 4096 points, value and gradient",
            _pinn,
            {"width": 64, "points": 4096},
            {"width": 8, "points": 32},
            0.5,
            _pinn_flops,
        ),
        Workload(
            "lstm",
            "LSTM-like scan, 512 steps of 32, gradient",
            _lstm,
            {"width": 32, "steps": 512},
            {"width": 8, "steps": 16},
            0.3,
            lambda s: 3 * 2.0 * 6 * s["width"] ** 2 * s["steps"],
        ),
        Workload(
            "three_body",
            "3-body ODE, 1000 RK4 steps, gradient",
            _three_body,
            {"steps": 1000},
            {"steps": 20},
            0.3,
        ),
        Workload("logsumexp", "logsumexp (4096, 1024) and gradient", _rows, TABLE, FEW, 0.8),
        Workload(
            "gmm",
            "GMM log-likelihood, d 64, k 100, n 1000, gradient",
            _gmm,
            MIXTURE,
            {"d": 4, "k": 3, "n": 20},
            0.8,
            lambda s: 3 * 2.0 * s["n"] * s["k"] * s["d"] ** 2,
        ),
        Workload(
            "kmeans",
            "k-means Hessian diagonal, d 64, k 100, n 10000",
            _kmeans,
            {**MIXTURE, "n": 10000},
            {"d": 4, "k": 3, "n": 20},
            0.8,
            lambda s: 2.0 * s["n"] * s["k"] * s["d"],
        ),
    )
}
