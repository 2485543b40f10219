"""Convolutions and transposed convolutions in one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, ClassVar

from pullback.core.errors import ShapeError
from pullback.module import Module
from pullback.nn import convolution, transposed_convolution
from pullback.nn.layers.linear import check_sizes, small_uniform
from pullback.ops.random import split

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
]


class ConvNd(Module):
    """What convolutions have in common: weights (out, in / groups, *kernel), or with in and out
    exchanged where they are transposed.
    """

    ndim: ClassVar[int]
    function: ClassVar[Callable[..., Any]]
    transposed: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        key: Any,
        dtype: Any = None,
        **options: Any,
    ):
        name = type(self).__name__
        sizes = (kernel_size,) * self.ndim if isinstance(kernel_size, int) else tuple(kernel_size)
        check_sizes(name, in_channels=in_channels, out_channels=out_channels, groups=groups)
        for size in sizes:
            check_sizes(name, kernel_size=size)
        if len(sizes) != self.ndim:
            raise ShapeError(
                f"{name}: kernel_size must be an integer or {self.ndim} of them, got {kernel_size}."
            )
        if in_channels % groups or out_channels % groups:
            raise ShapeError(
                f"{name}: groups must divide both numbers of channels, got {groups} groups of"
                f" {in_channels} and {out_channels} channels."
            )
        rows, columns = in_channels, out_channels
        if not self.transposed:
            rows, columns = columns, rows
        shape = (rows, columns // groups, *sizes)
        fan_in = shape[1] * prod(sizes)
        keys = split(key)
        self.weight = small_uniform(keys[0], shape, fan_in, dtype)
        self.bias = small_uniform(keys[1], (out_channels,), fan_in, dtype) if bias else None
        self.options = {
            "stride": stride, "padding": padding, "dilation": dilation, "groups": groups, **options,
        }  # fmt: skip

    def __call__(self, input: Any) -> Any:
        return type(self).function(input, self.weight, self.bias, **self.options)


def _layer(ndim: int, transposed: bool) -> type[ConvNd]:
    prefix = "ConvTranspose" if transposed else "Conv"
    name = f"{prefix}{ndim}d"
    home = transposed_convolution if transposed else convolution
    function = getattr(home, f"conv_transpose{ndim}d" if transposed else f"conv{ndim}d")
    shape = ", ".join(["1", "3", *["8"] * ndim])
    size = 10 if transposed else 6
    result = ", ".join(["1", "4", *[str(size)] * ndim])
    doc = f"""`pb.nn.{function.__name__}` with its weight and bias; the options are the function's.

    >>> layer = pb.nn.{name}(3, 4, 3, key=pb.random.key(0))
    >>> layer(pb.ones(({shape}))).shape
    ({result})
    """
    members = {
        "ndim": ndim, "function": staticmethod(function), "transposed": transposed,
        "__doc__": doc, "__module__": __name__,
    }  # fmt: skip
    return type(name, (ConvNd,), members)


Conv1d = _layer(1, transposed=False)
Conv2d = _layer(2, transposed=False)
Conv3d = _layer(3, transposed=False)
ConvTranspose1d = _layer(1, transposed=True)
ConvTranspose2d = _layer(2, transposed=True)
ConvTranspose3d = _layer(3, transposed=True)
