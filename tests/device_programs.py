"""Programs that devices run as the CPU does: one of each kind that a target prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import pullback as pb

__all__ = ["FUNCTIONS", "draw", "numbers_alone"]


def draw(*shape: int, dtype: str = "float32", scale: float = 1.0) -> np.ndarray:
    """Normal numbers, the same ones every time."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal(shape) * scale
    return (x + 1j * rng.standard_normal(shape) if dtype.startswith("c") else x).astype(dtype)


def softmax_loss(x: Any) -> Any:
    e = pb.exp(x - x.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    return (p * p).sum()


def numbers_alone(x: Any) -> Any:
    """Folds of arrays that hold one number, which a compiler knows."""
    half = pb.where(pb.ones(x.shape, dtype="bool", device=x.device), 0.5, x)
    sums = pb.sum(half, axis=1), pb.cumulative_sum(half, axis=0), pb.argmax(half, axis=1)
    return *sums, pb.max(half), pb.nn.softmax(half, dim=1), half * pb.max(half, axis=1)[:, None]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "broadcast": lambda x: x[:, :1] + x * 2.0,
    "flipped": lambda x: pb.flip(x, axis=0).T + 1.0,
    "rows": lambda x: (x * x).sum(axis=1),
    "columns": lambda x: x.sum(axis=0),
    "whole": lambda x: x.sum(),
    "boxes": lambda x: pb.concat([x, x[:2]], axis=0),
    "running": lambda x: pb.cumulative_sum(x, axis=1),
    "truth": lambda x: pb.where((x > 0)[:, ::-1], x, -x),
    "largest": lambda x: (x.max(axis=1), pb.argmax(x, axis=0)),
    "gradient": pb.grad(softmax_loss),
    "compiled": pb.jit(pb.value_and_grad(softmax_loss)),
    "numbers alone": pb.jit(numbers_alone),
    "second order": pb.jit(pb.grad(lambda x: pb.grad(softmax_loss)(x).sum())),
}
