"""Arrays brought to another size. Every mode is linear and acts on one axis after the other, so an
axis is resampled by a matrix, each row of which says where an output takes its value from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import from_numpy
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import channel_axis, inexact
from pullback.ops.families import composite
from pullback.ops.indexing import take
from pullback.ops.movement import broadcast_to, reshape
from pullback.ops.parts import astype
from pullback.ops.products import matmul

__all__ = ["interpolate", "upsample"]

SPATIAL = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}
MODES = ("nearest", "nearest-exact", "area", *SPATIAL)
DENSE = 512  # up to this length an axis is resampled by a matrix product


# -- weights ---------------------------------------------------------------------------------------


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Keys' kernel of cubic convolution."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _spread(taps: np.ndarray, weights: np.ndarray, n: int) -> np.ndarray:
    """The matrix of rows that take `weights` at `taps`; taps beyond an end are at that end."""
    matrix = np.zeros((len(taps), n))
    rows = np.arange(len(taps))[:, None]
    np.add.at(matrix, (rows, np.clip(taps, 0, n - 1)), weights)
    return matrix


def _smoothed(
    n: int, out: int, scale: float, kernel: Callable[[np.ndarray], np.ndarray], reach: float
) -> np.ndarray:
    """Antialiased weights: the kernel is as wide as the outputs lie apart."""
    width = max(scale, 1.0)
    matrix = np.zeros((out, n))
    for i in range(out):
        centre = scale * (i + 0.5)
        low = max(int(centre - reach * width + 0.5), 0)
        high = min(int(centre + reach * width + 0.5), n)
        weights = kernel((np.arange(low, high) - centre + 0.5) / width)
        matrix[i, low:high] = weights / weights.sum()
    return matrix


@lru_cache(maxsize=256)
def resampling_matrix(
    n: int, out: int, scale: float, mode: str, align_corners: bool, antialias: bool
) -> np.ndarray:
    """The weights of `n` inputs in each of `out` outputs; `scale` is their distance in inputs."""
    steps = np.arange(out)
    if mode == "nearest":
        return _spread(
            np.minimum(np.floor(steps * scale), n - 1).astype(int)[:, None], np.ones(1), n
        )
    if mode == "nearest-exact":
        taps = np.minimum(np.floor((steps + 0.5) * scale), n - 1).astype(int)
        return _spread(taps[:, None], np.ones(1), n)
    if mode == "area":
        low, high = steps * n // out, -(-(steps + 1) * n // out)
        inside = (np.arange(n) >= low[:, None]) & (np.arange(n) < high[:, None])
        return inside / inside.sum(1, keepdims=True)
    cubic = mode == "bicubic"
    if antialias:
        kernel = (lambda x: _cubic(x, -0.5)) if cubic else _triangle
        return _smoothed(n, out, scale, kernel, 2.0 if cubic else 1.0)
    places = steps * scale if align_corners else (steps + 0.5) * scale - 0.5
    if not cubic:
        places = np.maximum(places, 0.0)
    first = np.floor(places).astype(int)[:, None] + (np.arange(-1, 3) if cubic else np.arange(2))
    offsets = first - places[:, None]
    return _spread(first, _cubic(offsets, -0.75) if cubic else _triangle(offsets), n)


# -- one axis --------------------------------------------------------------------------------------


def _resampled(x: Any, axis: int, matrix: np.ndarray) -> Any:
    """The array with the matrix applied along an axis."""
    out, n = matrix.shape
    if np.count_nonzero(matrix) == out:  # every output is one input
        return _picked(x, axis, matrix.argmax(1))
    if max(n, out) > DENSE:
        return _tapped(x, axis, matrix)
    shape = x._aval.shape
    weights = from_numpy(matrix.astype(x._aval.dtype.real.numpy), x._aval.device)
    weights = astype(weights, x._aval.dtype)
    lead, rest = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if rest == 1:
        product = matmul(reshape(x, (lead, n)), weights.mT)
    else:
        product = matmul(weights, reshape(x, (lead, n, rest)))
    return reshape(product, (*shape[:axis], out, *shape[axis + 1 :]))


def _picked(x: Any, axis: int, sources: np.ndarray) -> Any:
    """The array read at some places of an axis; each in turn so many times is a broadcast."""
    shape, n = x._aval.shape, x._aval.shape[axis]
    times = len(sources) // max(n, 1)
    if len(sources) == n * times and np.array_equal(sources, np.repeat(np.arange(n), times)):
        x = reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
        x = broadcast_to(x, (*shape[: axis + 1], times, *shape[axis + 1 :]))
        return reshape(x, (*shape[:axis], n * times, *shape[axis + 1 :]))
    return take(x, from_numpy(sources, x._aval.device), axis)


def _tapped(x: Any, axis: int, matrix: np.ndarray) -> Any:
    """The same for long axes: each output adds up the few inputs that it takes from."""
    count = np.count_nonzero(matrix, axis=1).max()
    taps = np.argsort(matrix == 0, axis=1, kind="stable")[:, :count]
    shape = tuple(-1 if d == axis else 1 for d in range(x._aval.ndim))
    total: Any = None
    for k in range(count):
        weights = matrix[np.arange(len(taps)), taps[:, k]].astype(x._aval.dtype.real.numpy)
        column = reshape(from_numpy(weights, x._aval.device), shape)
        source = from_numpy(np.ascontiguousarray(taps[:, k]), x._aval.device)
        part = take(x, source, axis) * astype(column, x._aval.dtype)
        total = part if total is None else total + part
    return total


# -- the function ----------------------------------------------------------------------------------


def _numpy_axis(x, axis, out, factor, mode, align_corners, antialias):
    """One axis, output by output, straight from the definitions."""
    x = np.moveaxis(x, axis, 0)
    n = len(x)
    if align_corners:
        scale = (n - 1) / (out - 1) if out > 1 else 0.0
    else:
        scale = n / out if factor is None else 1.0 / factor
    result = []
    for i in range(out):
        if mode.startswith("nearest"):
            half = 0.5 if mode == "nearest-exact" else 0.0
            result.append(x[min(math.floor((i + half) * scale), n - 1)])
            continue
        if mode == "area":
            result.append(x[i * n // out : -(-(i + 1) * n // out)].mean(0))
            continue
        at = i * scale if align_corners else (i + 0.5) * scale - 0.5
        cubic = mode == "bicubic"
        at = at if cubic or antialias else max(at, 0.0)
        width = max(scale, 1.0) if antialias else 1.0
        reach = (2 if cubic else 1) * width
        total, norm = 0.0, 0.0
        for j in range(math.floor(at - reach), math.ceil(at + reach) + 1):
            t = abs(j - at) / width
            a = -0.5 if antialias else -0.75
            if not cubic:
                w = max(1 - t, 0)
            elif t <= 1:
                w = (a + 2) * t**3 - (a + 3) * t**2 + 1
            else:
                w = a * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0
            if antialias and not 0 <= j < n:
                continue
            total, norm = total + w * x[min(max(j, 0), n - 1)], norm + w
        result.append(total / norm if antialias else total)
    return np.moveaxis(np.stack(result), 0, axis)


def _oracle(
    x, size=None, scale_factor=None, mode="nearest", align_corners=None,
    recompute_scale_factor=None, antialias=False, layout="channels_first",
):  # fmt: skip
    axes = range(2, x.ndim) if layout == "channels_first" else range(1, x.ndim - 1)
    for k, axis in enumerate(axes):
        n = x.shape[axis]
        if size is not None:
            out, factor = (size if isinstance(size, int) else size[k]), None
        else:
            factor = scale_factor[k] if isinstance(scale_factor, (tuple, list)) else scale_factor
            out = math.floor(n * factor)
            factor = None if recompute_scale_factor else factor
        x = _numpy_axis(x, axis, out, factor, mode, bool(align_corners), antialias)
    return x


def _samples(d: Draw) -> list[Sample]:
    line, image = (2, 1, 4), (1, 2, 3, 4)
    last = {"layout": "channels_last"}
    return [
        Sample((d.real(*line), 6)),
        Sample((d.real(*line),), {"scale_factor": 2}),
        Sample((d.real(*image), (2, 7)), {"mode": "nearest-exact"}),
        Sample((d.real(*line), 7), {"mode": "linear"}),
        Sample((d.real(*line), 3), {"mode": "linear", "align_corners": True}),
        Sample((d.real(*line),), {"mode": "linear", "scale_factor": 1.7}),
        Sample(
            (d.real(*line),),
            {"mode": "linear", "scale_factor": 1.7, "recompute_scale_factor": True},
        ),
        Sample((d.real(*image),), {"mode": "bilinear", "scale_factor": (2, 0.5)}),
        Sample((d.real(1, 4, 3, 2), [5, 2]), {"mode": "bilinear", "antialias": True, **last}),
        Sample((d.real(*image), (5, 3)), {"mode": "bicubic"}),
        Sample((d.real(*image), (2, 6)), {"mode": "bicubic", "align_corners": True}),
        Sample((d.real(1, 1, 6, 4), (2, 6)), {"mode": "bicubic", "antialias": True}),
        Sample((d.real(1, 1, 2, 2, 3), (3, 2, 2)), {"mode": "trilinear"}),
        Sample((d.real(1, 2, 3, 2), 2), {"mode": "area", **last}),
        Sample((d.real(*image), (2, 3)), {"mode": "area"}),
        Sample((d.real(0, 2, 3), 5), {"mode": "linear"}),
    ]


@composite(
    oracle=_oracle,
    samples=_samples,
    errors=lambda d: [
        Bad((d.real(2, 3), 3), {}, ShapeError, "spatial"),
        Bad((d.real(1, 2, 3),), {}, ShapeError, "size or scale_factor"),
        Bad((d.real(1, 2, 3), 3), {"scale_factor": 2}, ShapeError, "size or scale_factor"),
        Bad((d.real(1, 2, 3), (3, 3)), {}, ShapeError, "1 spatial"),
        Bad((d.real(1, 2, 3), 0), {}, ShapeError, "positive"),
        Bad((d.real(1, 2, 0), 3), {}, ShapeError, "empty"),
        Bad((d.real(1, 2, 3), 3), {"mode": "bilinear"}, ShapeError, "2 spatial"),
        Bad((d.real(1, 2, 3), 3), {"mode": "cubic"}, DTypeError, "mode"),
        Bad((d.real(1, 2, 3), 3), {"align_corners": True}, DTypeError, "align_corners"),
        Bad((d.real(1, 2, 3), 3), {"mode": "linear", "antialias": True}, DTypeError, "antialias"),
        Bad(
            (d.real(1, 2, 3, 3), 3),
            {"mode": "bilinear", "antialias": True, "align_corners": True},
            DTypeError,
            "got antialias and align_corners",
        ),
        Bad((d.real(1, 2, 3), 3), {"recompute_scale_factor": True}, ShapeError, "recompute"),
    ],
    namespace="nn",
)
def interpolate(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
    *,
    layout: str = "channels_first",
) -> Any:
    """The array with its spatial axes brought to `size`, or to `scale_factor` times their length.

    >>> pb.nn.interpolate(pb.tensor([[[0.0, 1.0]]]), 4, mode="linear")
    tensor([[[0.  , 0.25, 0.75, 1.  ]]], float32, cpu)

    Modes: "nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic" and "area".
    With `align_corners` the first and last elements keep their places; `antialias` smooths what is
    made smaller ("bilinear" and "bicubic").
    """
    name = "interpolate"
    (x,) = inexact(name, input)
    axis = channel_axis(name, x, layout)
    axes = [d for d in range(1, x._aval.ndim) if d != axis]
    _check(x, len(axes), mode, align_corners, antialias)
    sizes, factors = _sizes(x, axes, size, scale_factor, recompute_scale_factor)
    wide = astype(x, dt.float32) if x._aval.dtype.itemsize == 2 else x
    for axis, out, factor in zip(axes, sizes, factors, strict=True):
        n = x._aval.shape[axis]
        scale = n / out if factor is None else 1.0 / factor
        if align_corners:
            scale = (n - 1) / (out - 1) if out > 1 else 0.0
        if out != n or scale != 1.0:
            matrix = resampling_matrix(n, out, scale, mode, bool(align_corners), antialias)
            wide = _resampled(wide, axis, matrix)
    return astype(wide, x._aval.dtype)


def _check(x: Any, spatial: int, mode: str, align_corners: Any, antialias: bool) -> None:
    if mode not in MODES:
        raise DTypeError(f"interpolate: the mode is one of {', '.join(MODES)}, got {mode!r}.")
    if spatial < 1:
        raise ShapeError(f"interpolate: needs a spatial axis, got shape {x._aval.shape}.")
    if SPATIAL.get(mode, spatial) != spatial:
        raise ShapeError(
            f'interpolate: "{mode}" is for {SPATIAL[mode]} spatial axes, got shape {x._aval.shape}.'
        )
    if align_corners is not None and mode not in SPATIAL:
        raise DTypeError(f'interpolate: "{mode}" has no align_corners, got {align_corners!r}.')
    if antialias and mode not in ("bilinear", "bicubic"):
        raise DTypeError(f'interpolate: antialias is for "bilinear" and "bicubic", got {mode!r}.')
    if antialias and align_corners:
        raise DTypeError(
            "interpolate: what is smoothed has no corners to keep, got antialias and align_corners."
            " Leave one out."
        )


def _sizes(
    x: Any, axes: list[int], size: Any, scale_factor: Any, recompute: bool | None
) -> tuple[list[int], list[float | None]]:
    """The new length of each axis, and its factor where that sets the places of the outputs."""
    if (size is None) == (scale_factor is None):
        raise ShapeError("interpolate: give size or scale_factor, and not both.")
    if size is not None and recompute:
        raise ShapeError("interpolate: recompute_scale_factor is for scale_factor, got a size.")
    given = scale_factor if size is None else size
    listed = list(given) if isinstance(given, (tuple, list)) else [given] * len(axes)
    if len(listed) != len(axes):
        raise ShapeError(
            f"interpolate: {len(axes)} spatial axes need as many numbers, got {given!r}."
        )
    lengths = [x._aval.shape[d] for d in axes]
    if 0 in lengths:
        raise ShapeError(f"interpolate: a spatial axis is empty, got shape {x._aval.shape}.")
    factors: list[float | None] = [None] * len(axes)
    if size is None:
        sizes = [math.floor(n * f) for n, f in zip(lengths, listed, strict=True)]
        factors = [None if recompute else float(f) for f in listed]
    else:
        sizes = [int(n) for n in listed]
    if any(n < 1 for n in sizes):
        raise ShapeError(f"interpolate: sizes must be positive, got {sizes}.")
    return sizes, factors


# -- the older name --------------------------------------------------------------------------------


@composite(
    oracle=_oracle,
    samples=lambda d: [
        Sample((d.real(1, 2, 3), 5)),
        Sample((d.real(1, 2, 3, 4),), {"scale_factor": 2, "mode": "bilinear"}),
        Sample((d.real(1, 2, 3), 7), {"mode": "linear", "align_corners": True}),
    ],
    errors=lambda d: [
        Bad((d.real(1, 2, 3), 3), {"mode": "area"}, DTypeError, "mode is one of"),
    ],
    namespace="nn",
)
def upsample(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Any:
    """`interpolate` under its older name.

    >>> pb.nn.upsample(pb.tensor([[[0.0, 1.0]]]), 4)
    tensor([[[0., 0., 1., 1.]]], float32, cpu)
    """
    known = ("nearest", *SPATIAL)
    if mode not in known:
        raise DTypeError(f"upsample: the mode is one of {', '.join(known)}, got {mode!r}.")
    return interpolate(input, size, scale_factor, mode, align_corners)
