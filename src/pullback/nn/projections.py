"""Linear and bilinear maps of vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core.errors import ShapeError
from pullback.ir.samples import Bad, Sample
from pullback.nn.arguments import inexact
from pullback.ops.arrangement import expand_dims
from pullback.ops.families import composite
from pullback.ops.movement import permute_dims, reshape
from pullback.ops.products import matmul, matrix_transpose

__all__ = ["bilinear", "linear"]


def _linear_oracle(input: Any, weight: Any, bias: Any = None) -> np.ndarray:
    out = np.einsum("...i,oi->...o" if weight.ndim == 2 else "...i,i->...", input, weight)
    return out if bias is None else out + bias


@composite(
    oracle=_linear_oracle,
    samples=lambda d: [
        Sample((d.real(2, 3), d.real(4, 3), d.real(4))),
        Sample((d.real(2, 2, 3), d.real(2, 3))),
        Sample((d.real(3), d.real(2, 3), d.real(2))),
        Sample((d.real(2, 3), d.real(3), d.real())),
        Sample((d.real(0, 3), d.real(2, 3), d.real(2))),
        Sample((d.real(2, 0), d.real(2, 0), d.real(2))),
    ],
    errors=lambda d: [
        Bad((d.real(2, 3), d.real(4, 2)), {}, ShapeError, "vectors of length 2"),
        Bad((d.real(), d.real(4, 2)), {}, ShapeError, "vectors of length 2"),
        Bad((d.real(2, 3), d.real(4, 3, 1)), {}, ShapeError, "the weight is a matrix"),
        Bad((d.real(2, 3), d.real(4, 3), d.real(3)), {}, ShapeError, "bias"),
    ],
    namespace="nn",
)
def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """`input @ weight.T + bias`, with a weight (out, in), or (in,) for one number as output.

    >>> pb.nn.linear(pb.tensor([[1.0, 2.0]]), pb.tensor([[1.0, 1.0]]), pb.tensor([0.5]))
    tensor([[3.5]], float32, cpu)
    """
    x, w, b = inexact("linear", input, weight, bias)
    if w._aval.ndim not in (1, 2):
        raise ShapeError(
            f"linear: the weight is a matrix (out, in) or a vector, got shape {w._aval.shape}."
        )
    size = w._aval.shape[-1]
    if x._aval.ndim == 0 or x._aval.shape[-1] != size:
        raise ShapeError(
            f"linear: the weight takes vectors of length {size}, got shape {x._aval.shape}."
        )
    if b is not None and b._aval.shape not in ((), w._aval.shape[:-1]):
        raise ShapeError(
            f"linear: the bias must have the shape {w._aval.shape[:-1]}, got {b._aval.shape}."
        )
    out = matmul(x, w if w._aval.ndim == 1 else matrix_transpose(w))
    return out if b is None else out + b


def _bilinear_oracle(input1: Any, input2: Any, weight: Any, bias: Any = None) -> np.ndarray:
    out = np.einsum("...i,oij,...j->...o", input1, weight, input2)
    return out if bias is None else out + bias


@composite(
    oracle=_bilinear_oracle,
    samples=lambda d: [
        Sample((d.real(3, 2), d.real(3, 3), d.real(2, 2, 3), d.real(2))),
        Sample((d.real(2, 1, 2), d.real(2, 1, 2), d.real(3, 2, 2))),
        Sample((d.real(2), d.real(3), d.real(1, 2, 3))),
        Sample((d.real(0, 2), d.real(0, 3), d.real(2, 2, 3), d.real(2))),
    ],
    errors=lambda d: [
        Bad((d.real(2, 3), d.real(2, 2), d.real(4, 2, 3)), {}, ShapeError, "vectors of lengths"),
        Bad((d.real(2, 3), d.real(3, 2), d.real(4, 3, 2)), {}, ShapeError, "same leading axes"),
        Bad((d.real(2, 3), d.real(2, 2), d.real(3, 2)), {}, ShapeError, "(out, in1, in2)"),
        Bad((d.real(3), d.real(2), d.real(4, 3, 2), d.real(3)), {}, ShapeError, "bias"),
    ],
    namespace="nn",
)
def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    """`sum_ij input1[i] * weight[o, i, j] * input2[j] + bias[o]` for vectors on the last axis.

    >>> pb.nn.bilinear(pb.tensor([1.0, 2.0]), pb.tensor([3.0]), pb.tensor([[[1.0], [1.0]]]))
    tensor([9.], float32, cpu)
    """
    x, y, w, b = inexact("bilinear", input1, input2, weight, bias)
    if w._aval.ndim != 3:
        raise ShapeError(f"bilinear: the weight is (out, in1, in2), got shape {w._aval.shape}.")
    out, first, second = w._aval.shape
    if x._aval.shape[-1:] != (first,) or y._aval.shape[-1:] != (second,):
        raise ShapeError(
            f"bilinear: the weight takes vectors of lengths {first} and {second},"
            f" got shapes {x._aval.shape} and {y._aval.shape}."
        )
    lead = x._aval.shape[:-1]
    if y._aval.shape[:-1] != lead:
        raise ShapeError(
            f"bilinear: the inputs must have the same leading axes, got {lead}"
            f" and {y._aval.shape[:-1]}."
        )
    if b is not None and b._aval.shape != (out,):
        raise ShapeError(f"bilinear: the bias must have the shape ({out},), got {b._aval.shape}.")
    forms = reshape(permute_dims(w, (1, 0, 2)), (first, out * second))
    rows = reshape(matmul(x, forms), (*lead, out, second))
    result = reshape(matmul(rows, expand_dims(y, -1)), (*lead, out))
    return result if b is None else result + b
