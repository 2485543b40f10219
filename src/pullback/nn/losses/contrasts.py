"""Losses of embeddings: what belongs together is to be near, what does not is to be far."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import broadcast_check, floating, numpy_reduced, reduced
from pullback.nn.distances import norm, pairwise_distance
from pullback.nn.losses.margins import above_zero
from pullback.ops.exponential import sqrt
from pullback.ops.families import composite
from pullback.ops.reductions import sum
from pullback.ops.selection import clip, minimum, where

__all__ = [
    "contrastive_loss", "cosine_embedding_loss", "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
]  # fmt: skip


def _numpy_distance(x: np.ndarray, y: np.ndarray, p: float = 2.0, eps: float = 1e-6) -> Any:
    return (np.abs(x - y + eps) ** p).sum(-1) ** (1.0 / p)


def _triplet_oracle(
    anchor: Any, positive: Any, negative: Any, margin: float = 1.0, p: float = 2.0,
    eps: float = 1e-6, swap: bool = False, *, reduction: str = "mean", distance: Any = None,
) -> np.ndarray:  # fmt: skip
    between = distance or (lambda x, y: _numpy_distance(x, y, p, eps))
    near, far = between(anchor, positive), between(anchor, negative)
    if swap:
        far = np.minimum(far, between(positive, negative))
    return numpy_reduced(np.maximum(near - far + margin, 0.0), reduction)


def _checked_triplet(name: str, *xs: Any) -> list[Any]:
    arrays = floating(name, *xs)
    if len({a._aval.ndim for a in arrays}) > 1 or not arrays[0]._aval.ndim:
        shapes = ", ".join(str(a._aval.shape) for a in arrays)
        raise ShapeError(f"{name}: the arrays must have one rank, at least 1, got {shapes}.")
    broadcast_check(name, *arrays)
    return arrays


def _triplet(d: Draw, *shape: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return d.real(*shape), d.real(*shape), d.real(*shape)


def _triplet_errors(d: Draw) -> list[Bad]:
    x = d.real(2, 3)
    return [
        Bad((x, x, d.real(3)), {}, ShapeError, "must have one rank"),
        Bad((x, x, d.real(2, 2)), {}, ShapeError, "do not broadcast"),
        Bad((x, x, x), {"margin": 0.0}, ShapeError, "margin must be positive"),
        Bad((x, x, x), {"reduction": "max"}, DTypeError, "reduction is one of"),
        Bad((x, x, np.ones((2, 3), complex)), {}, DTypeError, "got complex128"),
    ]


def _triplet_loss(name: str, between: Any, xs: Any, margin: float, swap: bool, how: str) -> Any:
    if margin <= 0:
        raise ShapeError(f"{name}: margin must be positive, got {margin}.")
    anchor, positive, negative = xs
    near, far = between(anchor, positive), between(anchor, negative)
    if swap:
        far = minimum(far, between(positive, negative))
    return reduced(name, clip(near - far + margin, 0.0), how)


@composite(
    oracle=_triplet_oracle,
    samples=lambda d: [
        Sample(_triplet(d, 3, 2)),
        Sample(_triplet(d, 2, 3), {"swap": True, "reduction": "none"}),
        Sample((*_triplet(d, 2, 3), 2.0, 3.0), {"eps": 1e-3, "reduction": "sum"}),
        Sample(_triplet(d, 3)),
        Sample(_triplet(d, 0, 3), {"reduction": "sum"}),
    ],
    errors=_triplet_errors,
    namespace="nn",
)
def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    *,
    reduction: str = "mean",
) -> Any:
    """`max(d(anchor, positive) - d(anchor, negative) + margin, 0)` with the p-norm as distance d.

    With `swap` the negative one's distance is the smaller of those to the anchor and the positive.

    >>> pb.nn.triplet_margin_loss(pb.tensor([0.0]), pb.tensor([1.0]), pb.tensor([1.5]))
    tensor(0.49999994, float32, cpu)
    """
    name = "triplet_margin_loss"
    xs = _checked_triplet(name, anchor, positive, negative)

    def between(x: Any, y: Any) -> Any:
        return norm(name, x - y + eps, p, -1)

    return _triplet_loss(name, between, xs, margin, swap, reduction)


def squared_distance(x: Any, y: Any) -> Any:
    """A distance function for samples: it serves tensors and NumPy arrays alike."""
    return ((x - y) * (x - y)).sum(axis=-1)


@composite(
    oracle=lambda anchor, positive, negative, *, distance_function=None, **options: _triplet_oracle(
        anchor, positive, negative, distance=distance_function, **options
    ),
    samples=lambda d: [
        Sample(_triplet(d, 3, 2)),
        Sample(
            _triplet(d, 2, 2),
            {"distance_function": squared_distance, "margin": 2.0, "reduction": "none"},
        ),
        Sample(_triplet(d, 2, 3), {"swap": True, "reduction": "sum"}),
    ],
    errors=_triplet_errors,
    namespace="nn",
)
def triplet_margin_with_distance_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    *,
    distance_function: Any = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Any:
    """`triplet_margin_loss` with a distance of your own (None: `pairwise_distance`).

    >>> x, y, z = pb.tensor([[0.0]]), pb.tensor([[1.0]]), pb.tensor([[1.5]])
    >>> pb.nn.triplet_margin_with_distance_loss(x, y, z, distance_function=pb.nn.cdist)
    tensor(0.5, float32, cpu)
    """
    name = "triplet_margin_with_distance_loss"
    xs = _checked_triplet(name, anchor, positive, negative)
    between = distance_function or pairwise_distance
    return _triplet_loss(name, between, xs, margin, swap, reduction)


def _contrastive_oracle(
    input1: Any, input2: Any, target: Any, margin: float = 1.0, reduction: str = "mean"
) -> np.ndarray:
    d = _numpy_distance(input1, input2, eps=0.0)
    return numpy_reduced(target * d**2 + (1 - target) * np.maximum(margin - d, 0) ** 2, reduction)


def _marked(d: Draw, n: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return d.real(n, size), d.real(n, size), d.rng.integers(0, 2, n)


@composite(
    oracle=_contrastive_oracle,
    samples=lambda d: [
        Sample((*_marked(d, 3, 2), 3.0)),
        Sample((*_marked(d, 3, 2), 0.01), {"reduction": "sum"}),
        Sample((d.real(2, 3), d.real(3), d.positive(2)), {"reduction": "none", "margin": 8.0}),
        Sample((np.ones((2, 3), d.dtype), np.ones((2, 3), d.dtype), np.array([0, 1])), order=0),
        Sample(_marked(d, 0, 3), {"reduction": "sum"}),
    ],
    errors=lambda d: [
        Bad((d.real(2, 3), d.real(2, 2), d.real(2)), {}, ShapeError, "do not broadcast"),
        Bad((d.real(2, 3), d.real(2, 3), d.real(3)), {}, ShapeError, "do not broadcast"),
        Bad((d.real(), d.real(), d.real()), {}, ShapeError, "at least one dimension"),
        Bad((*_marked(d, 2, 3),), {"reduction": "max"}, DTypeError, "reduction is one of"),
        Bad((d.real(3), np.ones(3, complex), d.real()), {}, DTypeError, "got complex128"),
    ],
    namespace="nn",
)
def contrastive_loss(
    input1: Any, input2: Any, target: Any, margin: float = 1.0, reduction: str = "mean"
) -> Any:
    """`target * d**2 + (1 - target) * max(margin - d, 0)**2` with the Euclidean distance d.

    A target of 1 pulls two vectors together, one of 0 pushes them apart.

    >>> pb.nn.contrastive_loss(pb.tensor([[0.0]]), pb.tensor([[0.5]]), pb.tensor([0]))
    tensor(0.25, float32, cpu)
    """
    name = "contrastive_loss"
    x1, x2, y = floating(name, input1, input2, target)
    if not broadcast_check(name, x1, x2):
        raise ShapeError(f"{name}: vectors have at least one dimension, got 0-d arrays.")
    d = norm(name, x1 - x2, 2, -1)
    broadcast_check(name, d, y)
    squares = sum((x1 - x2) * (x1 - x2), axis=-1)
    short = above_zero(margin - d)
    return reduced(name, y * squares + (1.0 - y) * short * short, reduction)


def _cosine_embedding_oracle(
    input1: Any, input2: Any, target: Any, margin: float = 0.0, *, reduction: str = "mean"
) -> np.ndarray:
    squares = [(a * a).sum(-1) + 1e-12 for a in (input1, input2)]
    cosine = (input1 * input2).sum(-1) / np.sqrt(squares[0] * squares[1])
    apart = np.where(target == -1, np.maximum(cosine - margin, 0.0), 0.0)
    return numpy_reduced(np.where(target == 1, 1.0 - cosine, apart), reduction)


def _signed_vectors(d: Draw, n: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return d.real(n, size), d.real(n, size), d.rng.choice((-1, 1), n)


@composite(
    oracle=_cosine_embedding_oracle,
    samples=lambda d: [
        Sample(_signed_vectors(d, 4, 3)),
        Sample((*_signed_vectors(d, 3, 2), -0.9), {"reduction": "sum"}),
        Sample(_signed_vectors(d, 3, 2), {"reduction": "none"}),
        Sample((d.real(3), d.real(3), np.array(1))),
        Sample(_signed_vectors(d, 0, 2), {"reduction": "sum"}),
    ],
    errors=lambda d: [
        Bad((d.real(2, 3), d.real(2, 2), np.ones(2)), {}, ShapeError, "do not broadcast"),
        Bad((d.real(2, 3), d.real(2, 3), np.ones(3)), {}, ShapeError, "one target for each"),
        Bad((d.real(3), d.real(3), np.ones(1)), {}, ShapeError, "one target for each"),
        Bad((*_signed_vectors(d, 2, 3),), {"reduction": "max"}, DTypeError, "reduction is one of"),
        Bad((d.real(3), np.ones(3, complex), np.ones(())), {}, DTypeError, "got complex128"),
    ],
    namespace="nn",
)
def cosine_embedding_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0.0, *, reduction: str = "mean"
) -> Any:
    """`1 - cos` of two vectors where the target is 1, `max(cos - margin, 0)` where it is -1.

    >>> pb.nn.cosine_embedding_loss(pb.tensor([[1.0]]), pb.tensor([[2.0]]), pb.tensor([-1]))
    tensor(1., float32, cpu)
    """
    name = "cosine_embedding_loss"
    x1, x2 = floating(name, input1, input2)
    y = as_array(target, name)
    shape = broadcast_check(name, x1, x2)
    if len(shape) not in (1, 2) or y._aval.shape != shape[:-1]:
        raise ShapeError(
            f"{name}: expected vectors (N, D) or (D,) and one target for each,"
            f" got {x1._aval.shape}, {x2._aval.shape} and {y._aval.shape}."
        )
    squares = [sum(x * x, axis=-1) + 1e-12 for x in (x1, x2)]
    cosine = sum(x1 * x2, axis=-1) / sqrt(squares[0] * squares[1])
    apart = where(y == -1, clip(cosine - margin, 0.0), 0.0)
    return reduced(name, where(y == 1, 1.0 - cosine, apart), reduction)
