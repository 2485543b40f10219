"""What pooling functions have in common: their windows, and oracles that loop over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np

from pullback.core.errors import ShapeError
from pullback.ir.samples import Bad, Draw
from pullback.nn.arguments import floating, inexact
from pullback.nn.convolution import batched
from pullback.ops.convolution import Shape, Window, per_axis, window_of

__all__ = ["numpy_windows", "pooled", "pooling_errors", "pooling_window"]


def pooled(name: str, axes: int, input: Any, layout: str, order: bool) -> tuple[Any, bool, Window]:
    """The input with a batch, whether it had one, and a window of its layout; `order` refuses
    complex numbers.
    """
    (x,) = floating(name, input) if order else inexact(name, input)
    window = window_of(name, axes, 1, 0, 1, 1, layout)
    x, had_batch = batched(name, x, axes)
    size = window.spatial(x._aval.shape)
    if 0 in size or window.channels(x._aval.shape) == 0:
        raise ShapeError(
            f"{name}: channels and spatial axes must not be empty, got shape {input.shape}."
        )
    return x, had_batch, window


def pooling_window(
    name: str, window: Window, size: Shape, kernel_size: Any, stride: Any, padding: Any,
    dilation: Any, ceil_mode: bool,
) -> tuple[Shape, Window]:  # fmt: skip
    """The kernel and the window; the padding after each axis is what the last window needs."""
    axes = len(size)
    kernel = per_axis(name, "kernel_size", kernel_size, axes, 1)
    steps = kernel if stride is None else per_axis(name, "stride", stride, axes, 1)
    before = per_axis(name, "padding", padding, axes, 0)
    spaces = per_axis(name, "dilation", dilation, axes, 1)
    pads = []
    for n, k, s, p, d in zip(size, kernel, steps, before, spaces, strict=True):
        reach = d * (k - 1) + 1
        if 2 * p > reach:
            raise ShapeError(
                f"{name}: padding is at most half of the kernel, got {p} for a kernel of {k} with"
                f" dilation {d}."
            )
        if reach > n + 2 * p:
            raise ShapeError(
                f"{name}: the kernel is larger than the padded input, got an extent of {reach} on"
                f" {n + 2 * p}. Pad more, or dilate less."
            )
        count = (n + 2 * p - reach + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (count - 1) * s >= n + p:  # a window that begins in the padding
            count -= 1
        pads.append((p, (count - 1) * s + reach - n - p))
    return kernel, window._replace(stride=steps, padding=tuple(pads), dilation=spaces)


def pooling_errors(axes: int, first: tuple = ()) -> Callable[[Draw], list[Bad]]:
    """Bad calls of a pooling function that takes `first` between the input and the kernel."""

    def errors(d: Draw) -> list[Bad]:
        x = d.real(1, 2, *[4] * axes)
        found = [
            Bad((d.real(4), *first, 2), {}, ShapeError, f"takes {axes + 2} dimensions"),
            Bad((x, *first, 7), {}, ShapeError, "larger than the padded input"),
            Bad((x, *first, 0), {}, ShapeError, "kernel_size must be at least 1"),
            Bad((x, *first, 2), {"stride": -1}, ShapeError, "stride must be at least 1"),
            Bad((d.real(1, 2, *[0] * axes), *first, 2), {}, ShapeError, "must not be empty"),
            Bad((x, *first, (2,) * (axes + 1)), {}, ShapeError, "kernel_size is an integer"),
        ]
        if not first:
            found.append(Bad((x, 2), {"padding": 2}, ShapeError, "at most half of the kernel"))
        return found

    return errors


def numpy_windows(
    size: tuple[int, ...], kernel_size: Any, stride: Any = None, padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False,
) -> Iterator[tuple[tuple[int, ...], list[tuple[int, ...]], int]]:  # fmt: skip
    """Each output, the input positions under its window, and how many there are with padding."""
    axes = len(size)
    kernel, dilations, pads = (np.broadcast_to(v, axes) for v in (kernel_size, dilation, padding))
    steps = kernel if stride is None else np.broadcast_to(stride, axes)
    lines = []
    for n, k, s, p, d in zip(size, kernel, steps, pads, dilations, strict=True):
        starts = []
        at = -p
        while at + d * (k - 1) < n + p or (ceil_mode and at < n):
            every = [at + d * i for i in range(k)]
            starts.append(([i for i in every if 0 <= i < n], sum(i < n + p for i in every)))
            at += s
        lines.append(starts)
    for q in product(*[range(len(line)) for line in lines]):
        parts = [line[i] for line, i in zip(lines, q, strict=True)]
        yield q, list(product(*[inside for inside, _ in parts])), prod(n for _, n in parts)
