"""The cross entropy of a linear layer's outputs, which are not kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core.errors import ShapeError
from pullback.ir.samples import Bad, Sample
from pullback.nn.arguments import inexact
from pullback.nn.losses.classification import cross_entropy, cross_entropy_by_numpy
from pullback.nn.projections import linear
from pullback.ops.families import composite

__all__ = ["linear_cross_entropy"]


def _oracle(
    input: np.ndarray,
    linear_weight: np.ndarray,
    target: np.ndarray,
    *,
    linear_bias: Any = None,
    **options: Any,
) -> np.ndarray:
    logits = input @ linear_weight.T + (0.0 if linear_bias is None else linear_bias)
    return cross_entropy_by_numpy(logits, target, options.pop("weight", None), **options)


@composite(
    oracle=_oracle,
    samples=lambda d: [
        Sample((d.real(4, 2), d.real(3, 2), np.array([2, 0, 1, 2]))),
        Sample((d.real(4, 2), d.real(3, 2), np.array([2, 0, -100, 2])), {"linear_bias": d.real(3)}),
        Sample(
            (d.real(4, 2), d.real(3, 2), np.array([2, 0, 1, 2])),
            {"weight": d.positive(3), "label_smoothing": 0.1, "reduction": "sum"},
        ),
        Sample((d.real(2), d.real(3, 2), np.array(1)), {"reduction": "none"}),
        Sample((d.real(4, 2), d.real(3, 2), d.positive(4, 3))),
    ],
    errors=lambda d: [
        Bad((d.real(4, 2), d.real(3), np.zeros(4, int)), {}, ShapeError, "a matrix (classes, in)"),
        Bad((d.real(4, 2), d.real(3, 3), np.zeros(4, int)), {}, ShapeError, "vectors of length 3"),
        Bad((d.real(2, 2, 2), d.real(3, 2), np.zeros(2, int)), {}, ShapeError, "one input"),
        Bad(
            (d.real(4, 2), d.real(3, 2), np.zeros(4, int)),
            {"linear_bias": np.zeros(2)},
            ShapeError,
            "the bias has the shape (3,)",
        ),
    ],
    namespace="nn",
)
def linear_cross_entropy(
    input: Any,
    linear_weight: Any,
    target: Any,
    *,
    linear_bias: Any = None,
    weight: Any = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """`cross_entropy(linear(input, linear_weight), target)` for inputs (N, in) or (in,).

    >>> x, w = pb.tensor([[1.0, 2.0]]), pb.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> pb.nn.linear_cross_entropy(x, w, pb.tensor([1]))
    tensor(0.6931472, float32, cpu)

    The outputs of the layer, (N, classes), are in memory once.
    """
    name = "linear_cross_entropy"
    x, w, b = inexact(name, input, linear_weight, linear_bias)
    if w._aval.ndim != 2:
        raise ShapeError(f"{name}: the weight is a matrix (classes, in), got {w._aval.shape}.")
    if x._aval.ndim not in (1, 2):
        raise ShapeError(f"{name}: takes one input or a batch of them, got {x._aval.shape}.")
    classes, size = w._aval.shape
    if x._aval.shape[-1] != size:
        raise ShapeError(f"{name}: the weight takes vectors of length {size}, got {x._aval.shape}.")
    if b is not None and b._aval.shape != (classes,):
        raise ShapeError(f"{name}: the bias has the shape ({classes},), got {b._aval.shape}.")
    return cross_entropy(
        linear(x, w, b),
        target,
        weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
