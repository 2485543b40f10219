"""Averages and norms over windows."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import from_numpy
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.convolution import unbatched
from pullback.nn.pooling.windows import numpy_windows, pooled, pooling_errors, pooling_window
from pullback.ops.convolution import Shape, Window, conv, trilinear
from pullback.ops.creation import ones
from pullback.ops.families import composite
from pullback.ops.parts import imag, real
from pullback.ops.selection import where

__all__ = ["avg_pool1d", "avg_pool2d", "avg_pool3d", "lp_pool1d", "lp_pool2d", "lp_pool3d"]

LAST = {"layout": "channels_last"}


def window_sum(x: Any, kernel: Shape, window: Window) -> Any:
    """The sum of the elements under each window: a convolution of every channel with ones."""
    dtype = x._aval.dtype
    if dtype.is_complex:
        parts = [window_sum(part(x), kernel, window) for part in (real, imag)]
        return parts[0] + parts[1] * 1j
    channels = window.channels(x._aval.shape)
    weight = ones((channels, 1, *kernel), dtype=dtype, device=x._aval.device)
    return trilinear(conv.op, x, weight, window=window._replace(groups=channels))


def _counts(size: Shape, kernel: Shape, window: Window, padded: bool) -> list[np.ndarray]:
    """Elements of each window along each axis: those inside, with the padding before and as much
    after it where `padded`.
    """
    found = []
    starts = [
        np.arange(n) * s for n, s in zip(window.counts(size, kernel), window.stride, strict=True)
    ]
    axes = zip(size, kernel, starts, window.padding, window.dilation, strict=True)
    for n, k, start, (before, _), d in axes:
        places = start[:, None] - before + d * np.arange(k)
        low, high = (-before, n + before) if padded else (0, n)
        inside = ((low <= places) & (places < high)).sum(axis=1)
        found.append(np.maximum(inside, 1))  # dilated windows may step over all elements
    return found


def _divided(x: Any, size: Shape, kernel: Shape, window: Window, padded: bool) -> Any:
    """Sums over windows, divided by how many elements each has."""
    lines = _counts(size, kernel, window, padded)
    if all((line == line[0]).all() for line in lines):
        return x / prod(int(line[0]) for line in lines)
    axes = range(1, 1 + len(lines)) if window.last else range(2, 2 + len(lines))
    for axis, line in zip(axes, lines, strict=True):
        shape = [1] * x._aval.ndim
        shape[axis] = len(line)
        count = line.reshape(shape).astype(x._aval.dtype.numpy)
        x = x / from_numpy(count, x._aval.device, copy=False)
    return x


def _average(
    name: str, axes: int, input: Any, kernel_size: Any, stride: Any, padding: Any,
    ceil_mode: bool, padded: bool, divisor: Any, dilation: Any, layout: str,
) -> Any:  # fmt: skip
    x, had_batch, window = pooled(name, axes, input, layout, False)
    size = window.spatial(x._aval.shape)
    kernel, window = pooling_window(
        name, window, size, kernel_size, stride, padding, dilation, ceil_mode
    )
    total = window_sum(x, kernel, window)
    if divisor is None:
        return unbatched(_divided(total, size, kernel, window, padded), had_batch)
    if isinstance(divisor, bool) or not isinstance(divisor, (int, np.integer)) or divisor == 0:
        raise ShapeError(f"{name}: divisor_override is an integer but 0, got {divisor!r}.")
    return unbatched(total / int(divisor), had_batch)


def _norm(
    name: str, axes: int, input: Any, norm_type: Any, kernel_size: Any, stride: Any,
    ceil_mode: bool, padding: Any, dilation: Any, layout: str,
) -> Any:  # fmt: skip
    x, had_batch, window = pooled(name, axes, input, layout, True)
    p = float(norm_type)
    if not 0 < p < float("inf"):
        raise ShapeError(f"{name}: norm_type must be positive and finite, got {norm_type!r}.")
    size = window.spatial(x._aval.shape)
    kernel, window = pooling_window(
        name, window, size, kernel_size, stride, padding, dilation, ceil_mode
    )
    total = window_sum(x**p, kernel, window)
    total = _divided(total, size, kernel, window, True) * prod(kernel)
    # at 0 the root has no derivative, and the norm is given 0
    nothing = total == 0
    root = where(nothing, 1, total) ** (1 / p)
    return unbatched(where(nothing, 0, root), had_batch)


# -- oracles and samples ---------------------------------------------------------------------------


def _each_window(x: np.ndarray, axes: int, layout: str, value: Any, *options: Any) -> np.ndarray:
    """`value(elements, count with padding)` of each window."""
    axis = -1 if layout == "channels_last" else x.ndim - axes - 1
    x = np.moveaxis(x, axis, 0)
    lead = x.ndim - axes
    windows = list(numpy_windows(x.shape[lead:], *options))
    out = np.zeros((*x.shape[:lead], *[n + 1 for n in windows[-1][0]]), x.dtype)
    for q, inside, count in windows:
        values = np.stack([x[(..., *i)] for i in inside], -1)
        out[(..., *q)] = value(values, count)
    return np.moveaxis(out, 0, axis)


def _average_oracle(
    x: np.ndarray, kernel_size: Any, stride: Any = None, padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Any = None,
    dilation: Any = 1, layout: str = "channels_first",
) -> np.ndarray:  # fmt: skip
    def value(values: np.ndarray, count: int) -> np.ndarray:
        number = count if count_include_pad else values.shape[-1]
        return values.sum(-1) / (divisor_override or number)

    options = (kernel_size, stride, padding, dilation, ceil_mode)
    return _each_window(x, len(kernel_size), layout, value, *options)


def _norm_oracle(
    x: np.ndarray, norm_type: float, kernel_size: Any, stride: Any = None,
    ceil_mode: bool = False, padding: Any = 0, dilation: Any = 1, layout: str = "channels_first",
) -> np.ndarray:  # fmt: skip
    def value(values: np.ndarray, count: int) -> np.ndarray:
        mean = (values**norm_type).sum(-1) / count
        return (mean * np.prod(kernel_size)) ** (1 / norm_type)

    options = (kernel_size, stride, padding, dilation, ceil_mode)
    return _each_window(x, len(kernel_size), layout, value, *options)


_SMALL = {1: (6,), 2: (4, 5), 3: (3, 2, 3)}


def _average_samples(axes: int) -> Any:
    def samples(d: Draw) -> list[Sample]:
        small, two, three = _SMALL[axes], (2,) * axes, (3, 3, 2)[:axes]
        found = [
            Sample((d.real(1, 2, *small), two)),
            Sample((d.real(2, *small), three, 2, 1), {"count_include_pad": False}),
            Sample((d.real(1, *small, 2), three, 2, 1), {"ceil_mode": True, **LAST}),
            Sample((d.real(1, 2, *small), two, 1, 1), {"dilation": 2, "count_include_pad": False}),
            Sample((d.real(1, *small, 1), two, 2, 1), {"dilation": 2, "ceil_mode": True, **LAST}),
            Sample((d.real(0, 2, *small), two)),
        ]
        if axes > 1:
            found.append(Sample((d.real(1, 1, *small), two, 1), {"divisor_override": 3}))
        return found

    return samples


def _average_errors(axes: int) -> Any:
    def errors(d: Draw) -> list[Bad]:
        more = []
        if axes > 1:
            bad = (d.real(1, 1, *[3] * axes), 2)
            more = [Bad(bad, {"divisor_override": 0}, ShapeError, "an integer but 0")]
        return [*pooling_errors(axes)(d), *more]

    return errors


def _norm_samples(axes: int) -> Any:
    def samples(d: Draw) -> list[Sample]:
        small, two = _SMALL[axes], (2,) * axes
        zero = np.zeros((1, 1, *small))
        return [
            Sample((d.positive(1, 2, *small), 2.0, two)),
            Sample((d.positive(2, *small), 3.0, two, 1)),
            Sample((d.positive(1, *small, 2), 1.5, two, 2), {"ceil_mode": True, **LAST}),
            Sample((d.positive(1, 1, *small), 2.0, two, 2), {"padding": 1, "dilation": 2}),
            Sample((d.positive(1, *small, 1), 2.0, two), {"padding": 1, "ceil_mode": True, **LAST}),
            Sample((zero, 2.0, two), order=0),
        ]

    return samples


def _norm_errors(axes: int) -> Any:
    def errors(d: Draw) -> list[Bad]:
        z = np.ones((1, 1, *[3] * axes), np.complex64)
        return [
            *pooling_errors(axes, (2.0,))(d),
            Bad((d.real(1, 1, *[3] * axes), 0, 2), {}, ShapeError, "norm_type must be positive"),
            Bad((z, 2.0, 2), {}, DTypeError, "got complex64"),
        ]

    return errors


@composite(
    oracle=_average_oracle, samples=_average_samples(1), errors=_average_errors(1), namespace="nn"
)
def avg_pool1d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, *, dilation: Any = 1, layout: str = "channels_first",
) -> Any:  # fmt: skip
    """The mean of the elements under each window of (batch, channels, length).

    `stride` is the kernel's size unless given. Zeros of the padding count, unless
    `count_include_pad` is False; what `ceil_mode` adds beyond them never does.

    >>> pb.nn.avg_pool1d(pb.tensor([[[1.0, 3.0, 2.0, 0.0]]]), 2)
    tensor([[[2., 1.]]], float32, cpu)
    """
    return _average(
        "avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None,
        dilation, layout,
    )  # fmt: skip


@composite(
    oracle=_average_oracle, samples=_average_samples(2), errors=_average_errors(2), namespace="nn"
)
def avg_pool2d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None, *, dilation: Any = 1,
    layout: str = "channels_first",
) -> Any:  # fmt: skip
    """The mean of the elements under each window of (batch, channels, height, width).

    See `avg_pool1d`; `divisor_override` divides in place of the count.

    >>> pb.nn.avg_pool2d(pb.ones((1, 1, 2, 2)), 2, divisor_override=2)
    tensor([[[[2.]]]], float32, cpu)
    """
    return _average(
        "avg_pool2d", 2, input, kernel_size, stride, padding, ceil_mode, count_include_pad,
        divisor_override, dilation, layout,
    )  # fmt: skip


@composite(
    oracle=_average_oracle, samples=_average_samples(3), errors=_average_errors(3), namespace="nn"
)
def avg_pool3d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None, *, dilation: Any = 1,
    layout: str = "channels_first",
) -> Any:  # fmt: skip
    """The mean of the elements under each window of (batch, channels, depth, height, width).

    See `avg_pool1d`; `divisor_override` divides in place of the count.

    >>> pb.nn.avg_pool3d(pb.ones((1, 1, 2, 2, 2)), 2)
    tensor([[[[[1.]]]]], float32, cpu)
    """
    return _average(
        "avg_pool3d", 3, input, kernel_size, stride, padding, ceil_mode, count_include_pad,
        divisor_override, dilation, layout,
    )  # fmt: skip


@composite(oracle=_norm_oracle, samples=_norm_samples(1), errors=_norm_errors(1), namespace="nn")
def lp_pool1d(
    input: Any, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False,
    *, padding: Any = 0, dilation: Any = 1, layout: str = "channels_first",
) -> Any:  # fmt: skip
    """`(sum x**p)**(1/p)` over each window of (batch, channels, length), with p = `norm_type`.

    A last window that `ceil_mode` cuts short counts as if it were full. At 0 the derivative is 0.

    >>> pb.nn.lp_pool1d(pb.tensor([[[3.0, 4.0]]]), 2, 2)
    tensor([[[5.]]], float32, cpu)
    """
    return _norm(
        "lp_pool1d", 1, input, norm_type, kernel_size, stride, ceil_mode, padding, dilation, layout
    )


@composite(oracle=_norm_oracle, samples=_norm_samples(2), errors=_norm_errors(2), namespace="nn")
def lp_pool2d(
    input: Any, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False,
    *, padding: Any = 0, dilation: Any = 1, layout: str = "channels_first",
) -> Any:  # fmt: skip
    """`(sum x**p)**(1/p)` over each window of (batch, channels, height, width); see `lp_pool1d`.

    >>> pb.nn.lp_pool2d(pb.ones((1, 1, 2, 2)), 2, 2)
    tensor([[[[2.]]]], float32, cpu)
    """
    return _norm(
        "lp_pool2d", 2, input, norm_type, kernel_size, stride, ceil_mode, padding, dilation, layout
    )


@composite(oracle=_norm_oracle, samples=_norm_samples(3), errors=_norm_errors(3), namespace="nn")
def lp_pool3d(
    input: Any, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False,
    *, padding: Any = 0, dilation: Any = 1, layout: str = "channels_first",
) -> Any:  # fmt: skip
    """`(sum x**p)**(1/p)` over each window of (batch, channels, depth, height, width); see
    `lp_pool1d`.

    >>> pb.nn.lp_pool3d(pb.ones((1, 1, 1, 2, 2)), 2, (1, 2, 2))
    tensor([[[[[2.]]]]], float32, cpu)
    """
    return _norm(
        "lp_pool3d", 3, input, norm_type, kernel_size, stride, ceil_mode, padding, dilation, layout
    )
