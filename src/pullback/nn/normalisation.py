"""Normalisation of each example: over its last axes, groups of channels, or neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import channel_axis, inexact
from pullback.nn.standardising import (
    numpy_back,
    numpy_channels,
    numpy_first,
    numpy_standardised,
    scaled,
    squared,
    standardised,
    widened,
)
from pullback.ops.exponential import rsqrt
from pullback.ops.families import composite
from pullback.ops.movement import reshape
from pullback.ops.padding import pad as pad_array
from pullback.ops.parts import astype
from pullback.ops.statistics import mean

__all__ = ["group_norm", "layer_norm", "local_response_norm", "rms_norm"]


def _trailing(name: str, x: Any, normalized_shape: Any) -> tuple[int, ...]:
    """The axes that `normalized_shape` names: the last ones."""
    given = (
        (normalized_shape,) if isinstance(normalized_shape, (int, np.integer)) else normalized_shape
    )
    shape = tuple(int(n) for n in given)
    own = x._aval.shape
    if not shape or own[len(own) - len(shape) :] != shape or len(shape) > len(own):
        raise ShapeError(
            f"{name}: normalized_shape must be the end of the array's shape {own}, got {shape}."
        )
    return tuple(range(len(own) - len(shape), len(own)))


def _affine(name: str, x: Any, weight: Any, bias: Any, axes: tuple[int, ...]) -> Any:
    shape = tuple(x._aval.shape[d] for d in axes)
    for what, value in (("weight", weight), ("bias", bias)):
        if value is None:
            continue
        if value._aval.shape != shape:
            raise ShapeError(
                f"{name}: the {what} must have normalized_shape {shape}, got {value._aval.shape}."
            )
        value = astype(value, x._aval.dtype)
        x = x * value if what == "weight" else x + value
    return x


# -- over the last axes ----------------------------------------------------------------------------


def _numpy_axes(x: np.ndarray, shape: Any) -> tuple[int, ...]:
    count = 1 if isinstance(shape, int) else len(shape)
    return tuple(range(x.ndim - count, x.ndim))


def _layer_oracle(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    out = numpy_standardised(x, _numpy_axes(x, normalized_shape), eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def _layer_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(2, 4), 4)),
        Sample((d.real(3, 4), (4,), d.real(4), d.real(4))),
        Sample((d.real(2, 2, 3), [2, 3], d.real(2, 3)), {"eps": 0.1}),
        Sample((d.real(5), 5), {"bias": d.real(5)}),
        Sample((d.real(0, 3), 3, d.real(3))),
    ]


def _layer_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(2, 4), 3), {}, ShapeError, "normalized_shape"),
        Bad((d.real(4), (2, 4)), {}, ShapeError, "normalized_shape"),
        Bad((d.real(2, 4), 4, d.real(3)), {}, ShapeError, "weight"),
    ]


@composite(oracle=_layer_oracle, samples=_layer_samples, errors=_layer_errors, namespace="nn")
def layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """`(x - mean) / sqrt(var + eps) * weight + bias` over the last axes.

    >>> pb.nn.layer_norm(pb.tensor([1.0, 3.0]), 2, eps=0.0)
    tensor([-1.,  1.], float32, cpu)
    """
    x, weight, bias = inexact("layer_norm", input, weight, bias)
    axes = _trailing("layer_norm", x, normalized_shape)
    out = _affine("layer_norm", standardised(widened(x), axes, eps)[0], weight, bias, axes)
    return astype(out, x._aval.dtype)


def _rms_oracle(x, normalized_shape, weight=None, eps=None):
    eps = np.finfo(x.dtype).eps if eps is None else eps
    square = (np.abs(x) ** 2).mean(_numpy_axes(x, normalized_shape), keepdims=True)
    out = x / np.sqrt(square + eps)
    return out if weight is None else out * weight


@composite(
    oracle=_rms_oracle,
    samples=lambda d: [
        Sample((d.real(2, 4), 4)),
        Sample((d.real(3, 4), (4,), d.real(4)), {"eps": 0.1}),
        Sample((d.real(2, 2, 3), (2, 3), d.real(2, 3))),
        Sample((d.real(0, 3), 3)),
    ],
    errors=_layer_errors,
    namespace="nn",
)
def rms_norm(
    input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Any:
    """`x / sqrt(mean(x**2) + eps) * weight` over the last axes; `eps` is the dtype's, if None.

    >>> pb.nn.rms_norm(pb.tensor([3.0, 3.0]), 2)
    tensor([1., 1.], float32, cpu)
    """
    x, weight = inexact("rms_norm", input, weight)
    axes = _trailing("rms_norm", x, normalized_shape)
    if eps is None:
        eps = float(np.finfo(x._aval.dtype.real.numpy).eps) if x._aval.dtype.itemsize > 2 else 1e-6
    wide = widened(x)
    out = wide * rsqrt(mean(squared(wide), axis=axes, keepdims=True) + eps)
    return astype(_affine("rms_norm", out, weight, None, axes), x._aval.dtype)


# -- over the places of a channel, or of a group of them -------------------------------------------


def _group_oracle(x, num_groups, weight=None, bias=None, eps=1e-5, layout="channels_first"):
    x = numpy_first(x, layout)
    parts = x.reshape(x.shape[0], num_groups, -1) if x.size else x.reshape(0, num_groups, 1)
    out = numpy_standardised(parts, (2,), eps).reshape(x.shape)
    return numpy_back(numpy_channels(out, weight, bias), layout)


@composite(
    oracle=_group_oracle,
    samples=lambda d: [
        Sample((d.real(2, 4, 3), 2)),
        Sample((d.real(1, 4, 2, 2), 2, d.real(4), d.real(4))),
        Sample((d.real(2, 3, 4), 2, d.real(4)), {"layout": "channels_last", "eps": 0.1}),
        Sample((d.real(2, 4), 4, None, d.real(4))),
        Sample((d.real(0, 4, 3), 2)),
    ][: 5 if d.dtype.kind == "f" else 4],
    errors=lambda d: [
        Bad((d.real(2, 4, 3), 3), {}, ShapeError, "groups"),
        Bad((d.real(4), 2), {}, ShapeError, "channels"),
        Bad((d.real(2, 4, 3), 2, d.real(3)), {}, ShapeError, "weight"),
        Bad((d.real(2, 4, 3), 2), {"layout": "NHWC"}, DTypeError, "layout"),
    ],
    namespace="nn",
)
def group_norm(
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    layout: str = "channels_first",
) -> Any:
    """Each group of channels of each example brought to mean 0 and variance 1, then scaled.

    >>> pb.nn.group_norm(pb.tensor([[1.0, 3.0, 5.0, 9.0]]), 2, eps=0.0)
    tensor([[-1.,  1., -1.,  1.]], float32, cpu)
    """
    x, weight, bias = inexact("group_norm", input, weight, bias)
    axis = channel_axis("group_norm", x, layout)
    shape = x._aval.shape
    if num_groups < 1 or shape[axis] % num_groups:
        raise ShapeError(
            f"group_norm: the number of groups must divide the {shape[axis]} channels,"
            f" got {num_groups}."
        )
    split = (*shape[:axis], num_groups, shape[axis] // num_groups, *shape[axis + 1 :])
    axes = tuple(d for d in range(1, len(split)) if d != axis)
    out = reshape(standardised(reshape(widened(x), split), axes, eps)[0], shape)
    return astype(scaled("group_norm", out, weight, bias, axis), x._aval.dtype)


# -- over neighbouring channels --------------------------------------------------------------------


def _response_oracle(x, size, alpha=1e-4, beta=0.75, k=1.0, layout="channels_first"):
    x = numpy_first(x, layout)
    total = np.zeros(x.shape, np.abs(x).dtype)
    channels = x.shape[1]
    for c in range(channels):
        low, high = max(c - size // 2, 0), min(c + (size - 1) // 2 + 1, channels)
        total[:, c] = (np.abs(x[:, low:high]) ** 2).sum(1) / size
    return numpy_back(x / (k + alpha * total) ** beta, layout)


@composite(
    oracle=_response_oracle,
    samples=lambda d: [
        Sample((d.real(2, 4, 2), 3), {"alpha": 0.5}),
        Sample((d.real(1, 5, 2), 2), {"alpha": 0.5, "beta": 0.6, "k": 2.0}),
        Sample((d.real(1, 2, 4), 5), {"alpha": 1.0, "layout": "channels_last"}),
        Sample((d.real(0, 3, 2), 3)),
    ],
    errors=lambda d: [
        Bad((d.real(3, 4), 3), {}, ShapeError, "spatial"),
        Bad((d.real(3, 4, 2), 0), {}, ShapeError, "size"),
    ],
    namespace="nn",
)
def local_response_norm(
    input: Any,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    *,
    layout: str = "channels_first",
) -> Any:
    """`x / (k + alpha * m)**beta` with m the mean square over `size` neighbouring channels.

    >>> pb.nn.local_response_norm(pb.tensor([[[1.0]]]), 1, alpha=3.0, beta=0.5)
    tensor([[[0.5]]], float32, cpu)
    """
    (x,) = inexact("local_response_norm", input)
    axis = channel_axis("local_response_norm", x, layout)
    if x._aval.ndim < 3:
        raise ShapeError(
            f"local_response_norm: needs at least one spatial axis, got shape {x._aval.shape}."
        )
    if size < 1:
        raise ShapeError(f"local_response_norm: the size must be positive, got {size}.")
    wide = widened(x)
    width = [(size // 2, (size - 1) // 2) if d == axis else (0, 0) for d in range(x._aval.ndim)]
    square = pad_array(squared(wide), tuple(width))
    total: Any = None
    for shift in range(size):
        cut = tuple(
            slice(shift, shift + n) if d == axis else slice(None)
            for d, n in enumerate(x._aval.shape)
        )
        part = square[cut]
        total = part if total is None else total + part
    return astype(wide * (k + total * (alpha / size)) ** -beta, x._aval.dtype)
