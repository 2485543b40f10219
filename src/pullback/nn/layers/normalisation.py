"""Normalisation over features, over groups of channels, and over batches."""

from __future__ import annotations

from typing import Any, ClassVar

from pullback.core.errors import ShapeError
from pullback.module import Module
from pullback.nn import normalisation, running_statistics
from pullback.nn.arguments import detached
from pullback.ops.creation import ones, zeros

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "RMSNorm",
]


class LayerNorm(Module):
    """Zero mean and unit variance over the last axes, then `weight * x + bias`.

    >>> pb.nn.LayerNorm(4)(pb.tensor([1.0, 2.0, 3.0, 4.0])).shape
    (4,)
    """

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, bias: bool = True, *, dtype: Any = None
    ):
        given = normalized_shape
        self.shape = (given,) if isinstance(given, int) else tuple(given)
        self.eps = eps
        self.weight = ones(self.shape, dtype=dtype)
        self.bias = zeros(self.shape, dtype=dtype) if bias else None

    def __call__(self, input: Any) -> Any:
        return normalisation.layer_norm(input, self.shape, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """Unit mean square over the last axes, then `weight * x`.

    >>> pb.nn.RMSNorm(4)(pb.ones((2, 4))).shape
    (2, 4)
    """

    def __init__(self, normalized_shape: Any, eps: float | None = None, *, dtype: Any = None):
        given = normalized_shape
        self.shape = (given,) if isinstance(given, int) else tuple(given)
        self.eps = eps
        self.weight = ones(self.shape, dtype=dtype)

    def __call__(self, input: Any) -> Any:
        return normalisation.rms_norm(input, self.shape, self.weight, self.eps)


class GroupNorm(Module):
    """Zero mean and unit variance over groups of channels, then `weight * x + bias` by channel.

    >>> pb.nn.GroupNorm(2, 4)(pb.ones((1, 4, 5))).shape
    (1, 4, 5)
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        layout: str = "channels_first",
        dtype: Any = None,
    ):
        if num_channels % num_groups:
            raise ShapeError(
                f"GroupNorm: num_groups must divide the channels, got {num_groups} groups of"
                f" {num_channels} channels."
            )
        self.num_groups, self.eps, self.layout = num_groups, eps, layout
        self.weight = ones(num_channels, dtype=dtype) if affine else None
        self.bias = zeros(num_channels, dtype=dtype) if affine else None

    def __call__(self, input: Any) -> Any:
        return normalisation.group_norm(
            input, self.num_groups, self.weight, self.bias, self.eps, layout=self.layout
        )


class RunningNorm(Module):
    """A normalisation that keeps running statistics: buffers, which a call with `training=True`
    moves.
    """

    buffers = ("running_mean", "running_var", "num_batches_tracked")
    ndims: ClassVar[tuple[int, ...]]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        layout: str = "channels_first",
        dtype: Any = None,
    ):
        self.eps, self.momentum, self.layout = eps, momentum, layout
        self.weight = ones(num_features, dtype=dtype) if affine else None
        self.bias = zeros(num_features, dtype=dtype) if affine else None
        tracked = track_running_stats
        self.running_mean = zeros(num_features, dtype=dtype) if tracked else None
        self.running_var = ones(num_features, dtype=dtype) if tracked else None
        self.num_batches_tracked = zeros((), dtype="int64") if tracked else None

    def _check(self, input: Any) -> None:
        if input.ndim not in self.ndims:
            raise ShapeError(
                f"{type(self).__name__}: expected {' or '.join(map(str, self.ndims))} dimensions,"
                f" got shape {input.shape}."
            )

    def _kept(self, found: Any) -> Any:
        """The output of a training call, whose statistics are kept as data, without a history."""
        if self.num_batches_tracked is None:
            return found
        out, mean, var = found
        self.running_mean, self.running_var = detached(mean), detached(var)
        self.num_batches_tracked = self.num_batches_tracked + 1
        return out


class BatchNorm(RunningNorm):
    """Normalisation of channels by the batch in training, else by running statistics."""

    def __call__(self, input: Any, *, training: bool = False) -> Any:
        self._check(input)
        by_batch = training or self.running_mean is None
        running = (self.running_mean, self.running_var)
        found = running_statistics.batch_norm(
            input, *running, self.weight, self.bias, by_batch, self.momentum, self.eps,
            layout=self.layout,
        )  # fmt: skip
        return self._kept(found) if training else found


class InstanceNorm(RunningNorm):
    """Normalisation of each channel of each example; by running statistics where they are tracked
    and `training` is not asked for.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        **options: Any,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, **options)

    def __call__(self, input: Any, *, training: bool = False) -> Any:
        self._check(input)
        by_example = training or self.running_mean is None
        running = (self.running_mean, self.running_var)
        found = running_statistics.instance_norm(
            input, *running, self.weight, self.bias, by_example, self.momentum, self.eps,
            layout=self.layout,
        )  # fmt: skip
        return self._kept(found) if training else found


class BatchNorm1d(BatchNorm):
    """Batch normalisation of (batch, channels) or (batch, channels, length).

    >>> layer = pb.nn.BatchNorm1d(2)
    >>> layer(pb.tensor([[1.0, 2.0], [3.0, 4.0]]), training=True).shape
    (2, 2)
    >>> layer.running_mean
    tensor([0.2, 0.3], float32, cpu)
    """

    ndims = (2, 3)


class BatchNorm2d(BatchNorm):
    """Batch normalisation of (batch, channels, height, width).

    >>> pb.nn.BatchNorm2d(3)(pb.ones((1, 3, 4, 4))).shape
    (1, 3, 4, 4)
    """

    ndims = (4,)


class BatchNorm3d(BatchNorm):
    """Batch normalisation of (batch, channels, depth, height, width).

    >>> pb.nn.BatchNorm3d(3)(pb.ones((1, 3, 2, 2, 2))).shape
    (1, 3, 2, 2, 2)
    """

    ndims = (5,)


class InstanceNorm1d(InstanceNorm):
    """Instance normalisation of (batch, channels, length).

    >>> pb.nn.InstanceNorm1d(3)(pb.ones((1, 3, 4))).shape
    (1, 3, 4)
    """

    ndims = (3,)


class InstanceNorm2d(InstanceNorm):
    """Instance normalisation of (batch, channels, height, width).

    >>> pb.nn.InstanceNorm2d(3)(pb.ones((1, 3, 4, 4))).shape
    (1, 3, 4, 4)
    """

    ndims = (4,)


class InstanceNorm3d(InstanceNorm):
    """Instance normalisation of (batch, channels, depth, height, width).

    >>> pb.nn.InstanceNorm3d(3)(pb.ones((1, 3, 2, 2, 2))).shape
    (1, 3, 2, 2, 2)
    """

    ndims = (5,)
