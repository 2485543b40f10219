"""Normalisation of channels by the statistics of a batch, or by running ones."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from pullback.core.errors import ShapeError
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import channel_axis, inexact
from pullback.nn.standardising import (
    numpy_back,
    numpy_channels,
    numpy_first,
    numpy_standardised,
    scaled,
    standardised,
    widened,
)
from pullback.ops.exponential import rsqrt
from pullback.ops.families import composite
from pullback.ops.movement import reshape
from pullback.ops.parts import astype
from pullback.ops.statistics import mean

__all__ = ["batch_norm", "instance_norm"]


class Normalised(NamedTuple):
    """The output of a normalisation in training, and the running statistics after it."""

    output: Any
    running_mean: Any
    running_var: Any


def _moved(running: Any, batch: Any, momentum: float) -> Any:
    """A running statistic after one more batch."""
    return running * (1.0 - momentum) + astype(batch, running._aval.dtype) * momentum


def _running(
    name: str, channels: int, running_mean: Any, running_var: Any
) -> tuple[Any, Any] | None:
    if (running_mean is None) != (running_var is None):
        raise ShapeError(f"{name}: running_mean and running_var are given both or not at all.")
    if running_mean is None:
        return None
    found = inexact(name, running_mean)[0], inexact(name, running_var)[0]
    for value in found:
        if value._aval.shape != (channels,):
            raise ShapeError(
                f"{name}: running statistics must have shape ({channels},),"
                f" got {value._aval.shape}."
            )
    return found


def _by_channel(value: Any, ndim: int, axis: int) -> Any:
    return reshape(value, tuple(-1 if d == axis else 1 for d in range(ndim)))


def _batch_oracle(
    x, running_mean: Any = None, running_var: Any = None, weight=None, bias=None, training=False,
    momentum=0.1, eps=1e-5, layout="channels_first",
):  # fmt: skip
    x = numpy_first(x, layout)
    axes = (0, *range(2, x.ndim))
    shape = (-1,) + (1,) * (x.ndim - 2)
    if not training:
        out = (x - running_mean.reshape(shape)) / np.sqrt(running_var.reshape(shape) + eps)
        return numpy_back(numpy_channels(out, weight, bias), layout)
    out = numpy_channels(numpy_standardised(x, axes, eps), weight, bias)
    out = numpy_back(out, layout)
    if running_mean is None:
        return out
    mean, var = x.mean(axes), x.var(axes, ddof=1)
    return (
        out,
        (1 - momentum) * running_mean + momentum * mean,
        (1 - momentum) * running_var + momentum * var,
    )


def _batch_samples(d: Draw) -> list[Sample]:
    first = [
        Sample((d.real(3, 2, 2), d.real(2), d.positive(2))),
        Sample((d.real(4, 2), d.real(2), d.positive(2), d.real(2), d.real(2))),
        Sample((d.real(0, 2, 3), d.real(2), d.positive(2), d.real(2))),
        Sample((d.real(3, 2, 2), None, None, d.real(2), d.real(2)), {"training": True}),
        Sample((d.real(2, 2, 3),), {"training": True, "layout": "channels_last", "eps": 0.1}),
    ]
    if d.dtype.kind == "c":
        return first[3:]  # a variance is real, and so no sample of complex numbers
    state = (d.real(2), d.positive(2))
    return [
        *first,
        Sample((d.real(3, 2, 2), *state, d.real(2)), {"training": True, "momentum": 0.3}),
        Sample((d.real(3, 2), *state), {"training": True, "layout": "channels_last"}),
    ]


@composite(
    oracle=_batch_oracle,
    samples=_batch_samples,
    errors=lambda d: [
        Bad((d.real(3, 2),), {}, ShapeError, "running statistics"),
        Bad((d.real(3),), {"training": True}, ShapeError, "channels"),
        Bad((d.real(3, 2), d.real(3), d.real(3)), {}, ShapeError, "shape (2,)"),
        Bad((d.real(3, 2), d.real(2)), {}, ShapeError, "both"),
        Bad((d.real(1, 2),), {"training": True}, ShapeError, "more than one value"),
    ],
    namespace="nn",
)
def batch_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    layout: str = "channels_first",
) -> Any:
    """Each channel brought to mean 0 and variance 1, by the batch if `training`, else by the
    running statistics; then scaled.

    >>> x = pb.tensor([[1.0], [3.0]])
    >>> out, mean, var = pb.nn.batch_norm(x, pb.zeros(1), pb.ones(1), training=True, eps=0.0)
    >>> out, mean
    (tensor([[-1.],
            [ 1.]], float32, cpu), tensor([0.2], float32, cpu))

    In training with running statistics the result is (output, running_mean, running_var): arrays
    are never changed, so keep the new ones. The running variance is the unbiased one.
    """
    name = "batch_norm"
    x, weight, bias = inexact(name, input, weight, bias)
    axis = channel_axis(name, x, layout)
    shape = x._aval.shape
    running = _running(name, shape[axis], running_mean, running_var)
    axes = tuple(d for d in range(len(shape)) if d != axis)
    wide = widened(x)
    if training:
        count = prod(shape[d] for d in axes)
        if count == 1:
            raise ShapeError(
                f"{name}: training needs more than one value per channel, got {shape}."
            )
        out, centre, spread = standardised(wide, axes, eps)
        out = astype(scaled(name, out, weight, bias, axis), x._aval.dtype)
        if running is None:
            return out
        unbiased = reshape(spread, (-1,)) * (count / max(count - 1, 1))
        new_mean = _moved(running[0], reshape(centre, (-1,)), momentum)
        return Normalised(out, new_mean, _moved(running[1], unbiased, momentum))
    if running is None:
        raise ShapeError(f"{name}: without training, running statistics must be given.")
    centre, spread = (_by_channel(astype(r, wide._aval.dtype), len(shape), axis) for r in running)
    out = (wide - centre) * rsqrt(spread + eps)
    return astype(scaled(name, out, weight, bias, axis), x._aval.dtype)


def _instance_oracle(
    x, running_mean: Any = None, running_var: Any = None, weight=None, bias=None,
    use_input_stats=True, momentum=0.1, eps=1e-5, layout="channels_first",
):  # fmt: skip
    if not use_input_stats:
        return _batch_oracle(
            x, running_mean, running_var, weight, bias, False, momentum, eps, layout
        )
    x = numpy_first(x, layout)
    axes = tuple(range(2, x.ndim))
    out = numpy_channels(numpy_standardised(x, axes, eps), weight, bias)
    out = numpy_back(out, layout)
    if running_mean is None:
        return out
    mean, var = x.mean(axes).mean(0), x.var(axes, ddof=1).mean(0)
    return (
        out,
        (1 - momentum) * running_mean + momentum * mean,
        (1 - momentum) * running_var + momentum * var,
    )


def _instance_samples(d: Draw) -> list[Sample]:
    first = [
        Sample((d.real(2, 2, 3),)),
        Sample((d.real(1, 2, 2, 2), None, None, d.real(2), d.real(2)), {"eps": 0.1}),
        Sample((d.real(2, 3, 2),), {"layout": "channels_last"}),
        Sample((d.real(0, 2, 3),)),
    ]
    if d.dtype.kind == "c":
        return first
    state = (d.real(2), d.positive(2))
    return [
        *first,
        Sample((d.real(2, 2, 3), *state, d.real(2)), {"momentum": 0.3}),
        Sample((d.real(2, 2, 3), *state), {"use_input_stats": False}),
    ]


@composite(
    oracle=_instance_oracle,
    samples=_instance_samples,
    errors=lambda d: [
        Bad((d.real(2, 2),), {}, ShapeError, "spatial"),
        Bad((d.real(2, 2, 1),), {}, ShapeError, "more than one value"),
        Bad((d.real(2, 2, 3), d.real(3), d.real(3)), {}, ShapeError, "shape (2,)"),
        Bad((d.real(2, 2, 3),), {"use_input_stats": False}, ShapeError, "running statistics"),
    ],
    namespace="nn",
)
def instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    layout: str = "channels_first",
) -> Any:
    """Each channel of each example brought to mean 0 and variance 1, then scaled.

    >>> pb.nn.instance_norm(pb.tensor([[[1.0, 3.0]]]), eps=0.0)
    tensor([[[-1.,  1.]]], float32, cpu)

    With running statistics the result is (output, running_mean, running_var), as in `batch_norm`.
    """
    name = "instance_norm"
    x, weight, bias = inexact(name, input, weight, bias)
    axis = channel_axis(name, x, layout)
    shape = x._aval.shape
    if len(shape) < 3:
        raise ShapeError(f"{name}: needs at least one spatial axis, got shape {shape}.")
    running = _running(name, shape[axis], running_mean, running_var)
    if not use_input_stats:
        if running is None:
            raise ShapeError(f"{name}: without use_input_stats, running statistics must be given.")
        return batch_norm(x, *running, weight, bias, False, momentum, eps, layout=layout)
    axes = tuple(d for d in range(1, len(shape)) if d != axis)
    count = prod(shape[d] for d in axes)
    if count == 1:
        raise ShapeError(f"{name}: needs more than one value per channel, got shape {shape}.")
    out, centre, spread = standardised(widened(x), axes, eps)
    out = astype(scaled(name, out, weight, bias, axis), x._aval.dtype)
    if running is None:
        return out
    others = tuple(d for d in range(len(shape)) if d != axis)
    unbiased = mean(spread, axis=others) * (count / max(count - 1, 1))
    new_mean = _moved(running[0], mean(centre, axis=others), momentum)
    return Normalised(out, new_mean, _moved(running[1], unbiased, momentum))
