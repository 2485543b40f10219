"""Arrays read at places between their elements: `grid_sample`, and the grids of affine maps."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.errors import ShapeError
from pullback.ir.convert import from_numpy
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import channel_axis, floating, inexact, option
from pullback.ops.arithmetic import abs as absolute
from pullback.ops.families import composite
from pullback.ops.gather_scatter import gather
from pullback.ops.logic import isfinite
from pullback.ops.movement import permute_dims, reshape
from pullback.ops.parts import astype
from pullback.ops.products import matmul
from pullback.ops.ranges import positions
from pullback.ops.rounding import floor
from pullback.ops.rounding import round as nearest_even
from pullback.ops.selection import clip, where

__all__ = ["affine_grid", "grid_sample"]

MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")
CUBIC = -0.75  # of Keys' kernel


# -- places ----------------------------------------------------------------------------------------


def _unnormalised(x: Any, n: int, align_corners: bool) -> Any:
    """From [-1, 1] to element numbers."""
    return (x + 1.0) * ((n - 1) / 2) if align_corners else ((x + 1.0) * n - 1.0) / 2


def _reflected(x: Any, n: int, align_corners: bool) -> Any:
    """Places mirrored at both ends until they are inside."""
    low, span = (0.0, float(n - 1)) if align_corners else (-0.5, float(n))
    if span == 0.0:
        return x * 0.0
    x = absolute(x - low)
    turns = floor(x / span)
    rest = x - turns * span
    even = turns - 2.0 * floor(turns / 2.0) == 0.0
    return clip(where(even, rest + low, span - rest + low), 0.0, float(n - 1))


def _inside(x: Any, n: int, padding_mode: str, align_corners: bool) -> Any:
    if padding_mode == "border":
        return clip(x, 0.0, float(n - 1))
    return _reflected(x, n, align_corners) if padding_mode == "reflection" else x


def _cubic_weights(t: Any) -> list[Any]:
    """The weights of the elements at -1, 0, 1 and 2 for a place `t` in [0, 1)."""
    a = CUBIC

    def far(x: Any) -> Any:
        return ((x - 5.0) * x + 8.0) * x * a - 4.0 * a

    def near(x: Any) -> Any:
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0

    return [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]


def _taps(
    x: Any, n: int, mode: str, padding_mode: str, align_corners: bool
) -> list[tuple[Any, Any]]:
    """Along one axis, the element numbers (floats) that a place takes from, with their weights."""
    x = _unnormalised(x, n, align_corners)
    if mode != "bicubic":
        x = _inside(x, n, padding_mode, align_corners)
    if mode == "nearest":
        return [(nearest_even(x), None)]
    first = floor(x)
    t = x - first
    if mode == "bilinear":
        return [(first, 1.0 - t), (first + 1.0, t)]
    places = [first + float(k) for k in range(-1, 3)]
    places = [_inside(p, n, padding_mode, align_corners) for p in places]
    return list(zip(places, _cubic_weights(t), strict=True))


# -- values ----------------------------------------------------------------------------------------


def _index(place: Any, n: int) -> tuple[Any, Any]:
    """A safe element number, and whether the place is inside."""
    known = where(isfinite(place), clip(place, -1.0, float(n)), -1.0)
    number = astype(known, dt.int64)
    return clip(number, 0, n - 1), (number >= 0) & (number < n)


def _sampled(x: Any, taps: list[list[tuple[Any, Any]]]) -> Any:
    """The weighted sum over all combinations of taps; `x` is (batch, *spatial, channels)."""
    batch, *sizes, _ = x._aval.shape
    ndim = taps[0][0][0]._aval.ndim
    number = reshape(positions(batch, x._aval.device), (-1,) + (1,) * ndim)
    known = [
        [(*_index(place, n), weight) for place, weight in axis]
        for axis, n in zip(taps, sizes, strict=True)
    ]
    total: Any = None
    for corner in itertools.product(*known):
        indices = [reshape(i, (*i._aval.shape, 1)) for i, _, _ in corner]
        weight: Any = None
        for _, ok, w in corner:
            part = astype(ok, x._aval.dtype) if w is None else where(ok, w, 0.0)
            weight = part if weight is None else weight * part
        value = bind(gather.op, x, number, *indices)
        value = value * reshape(astype(weight, x._aval.dtype), (*weight._aval.shape, 1))
        total = value if total is None else total + value
    return total


# -- an oracle that shares nothing with it ---------------------------------------------------------


def _numpy_reflect(p: float, n: int, align: bool) -> float:
    low, high = (0.0, n - 1.0) if align else (-0.5, n - 0.5)
    if high == low:
        return 0.0
    while not low <= p <= high:
        p = 2 * low - p if p < low else 2 * high - p
    return min(max(p, 0.0), n - 1.0)


def _numpy_inside(p: float, n: int, padding: str, align: bool) -> float:
    if padding == "border":
        return min(max(p, 0.0), n - 1.0)
    return _numpy_reflect(p, n, align) if padding == "reflection" else p


def _numpy_weights(p: float, n: int, mode: str, padding: str, align: bool) -> dict[int, float]:
    """Along one axis, the weight of each element."""
    p = (p + 1) / 2 * (n - 1) if align else ((p + 1) * n - 1) / 2
    found: dict[int, float] = {}
    if mode == "bicubic":
        for k in range(math.floor(p) - 1, math.floor(p) + 3):
            t, a = abs(p - k), CUBIC
            near = (a + 2) * t**3 - (a + 3) * t**2 + 1
            w = near if t <= 1 else a * (t**3 - 5 * t**2 + 8 * t - 4)
            j = round(_numpy_inside(k, n, padding, align))
            found[j] = found.get(j, 0.0) + w
    else:
        p = _numpy_inside(p, n, padding, align)
        if mode == "nearest":
            return {round(p): 1.0} if 0 <= round(p) < n else {}
        k = math.floor(p)
        found = {k: 1 - (p - k), k + 1: p - k}
    return {k: w for k, w in found.items() if 0 <= k < n}


def _oracle(
    x, grid, mode="bilinear", padding_mode="zeros", align_corners=False, layout="channels_first"
):
    x = np.moveaxis(x, -1, 1) if layout == "channels_last" else x
    out = np.zeros((x.shape[0], x.shape[1], *grid.shape[1:-1]), np.result_type(x, grid))
    for place in np.ndindex(grid.shape[:-1]):
        n, *rest = place
        axes = zip(grid[place][::-1], x.shape[2:], strict=True)
        weights = [_numpy_weights(p, s, mode, padding_mode, align_corners) for p, s in axes]
        for taps in itertools.product(*[w.items() for w in weights]):
            at = tuple(k for k, _ in taps)
            out[(n, slice(None), *rest)] += x[(n, slice(None), *at)] * math.prod(w for _, w in taps)
    return np.moveaxis(out, 1, -1) if layout == "channels_last" else out


def _places(d: Draw, *shape: int, n: int = 4, align: bool = False) -> np.ndarray:
    """Random places, inside and a little outside, that keep away from where pieces meet."""
    size = math.prod(shape)
    whole = d.rng.integers(-2, n + 2, size) + d.rng.uniform(0.15, 0.35, size)
    wide = whole * 2 / (n - 1) - 1 if align else (whole * 2 + 1) / n - 1
    return wide.reshape(shape).astype(d.dtype)


def _samples(d: Draw) -> list[Sample]:
    image = (1, 2, 4, 4)
    where_to = (1, 2, 2, 2)
    found = [
        Sample((d.real(*image), _places(d, *where_to))),
        Sample((d.real(2, 1, 4, 4), _places(d, 2, 1, 3, 2, align=True)), {"align_corners": True}),
        Sample((d.real(*image), _places(d, *where_to)), {"padding_mode": "border"}),
        Sample((d.real(*image), _places(d, *where_to)), {"padding_mode": "reflection"}),
        Sample(
            (d.real(*image), _places(d, *where_to, align=True)),
            {"padding_mode": "reflection", "align_corners": True},
        ),
        Sample((d.real(*image), _places(d, *where_to)), {"mode": "nearest"}),
        Sample((d.real(*image), _places(d, *where_to)), {"mode": "bicubic"}),
        Sample(
            (d.real(*image), _places(d, *where_to)),
            {"mode": "bicubic", "padding_mode": "reflection"},
        ),
        Sample((d.real(1, 1, 4, 4, 4), _places(d, 1, 2, 1, 2, 3))),
        Sample((d.real(1, 4, 4, 2), _places(d, *where_to)), {"layout": "channels_last"}),
        Sample((d.real(0, 2, 4, 4), _places(d, 0, 2, 2, 2))),
    ]
    return found


@composite(
    oracle=_oracle,
    samples=_samples,
    errors=lambda d: [
        Bad((d.real(2, 4, 4), d.real(2, 2, 2)), {}, ShapeError, "2 or 3 spatial axes"),
        Bad((d.real(1, 2, 4, 4), d.real(1, 2, 2, 3)), {}, ShapeError, "grid"),
        Bad((d.real(1, 2, 4, 4), d.real(2, 2, 2, 2)), {}, ShapeError, "grid"),
        Bad((d.real(1, 2, 4, 0), d.real(1, 2, 2, 2)), {}, ShapeError, "empty"),
        Bad((d.real(1, 1, 4, 4, 4), d.real(1, 1, 1, 1, 3)), {"mode": "bicubic"}, ShapeError, "2"),
    ],
    namespace="nn",
)
def grid_sample(
    input: Any,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
    *,
    layout: str = "channels_first",
) -> Any:
    """The array read at the places of a grid, whose last axis is (x, y) or (x, y, z) in [-1, 1].

    >>> x = pb.tensor([[[[0.0, 1.0], [2.0, 3.0]]]])
    >>> pb.nn.grid_sample(x, pb.tensor([[[[0.0, 0.0]]]]))
    tensor([[[[1.5]]]], float32, cpu)

    Modes: "bilinear", "nearest" and, for images, "bicubic". Outside it is 0, or by `padding_mode`
    the "border" or a "reflection". Derivatives of any order, by the array and by the grid.
    """
    name = "grid_sample"
    option(name, "mode", mode, MODES)
    option(name, "padding_mode", padding_mode, PADDINGS)
    (x,) = inexact(name, input)
    (grid,) = floating(name, grid)
    axis = channel_axis(name, x, layout)
    sizes = _sizes(x, grid, axis, mode)
    spatial = [d for d in range(1, x._aval.ndim) if d != axis]
    rows = permute_dims(x, (0, *spatial, axis))
    half = x._aval.dtype.itemsize == 2
    rows = astype(rows, dt.float32) if half else rows
    places = astype(grid, rows._aval.dtype.real)
    taps = [
        _taps(places[..., len(sizes) - 1 - k], n, mode, padding_mode, align_corners)
        for k, n in enumerate(sizes)
    ]
    out = astype(_sampled(rows, taps), x._aval.dtype)
    if layout == "channels_last":
        return out
    return permute_dims(out, (0, out._aval.ndim - 1, *range(1, out._aval.ndim - 1)))


def _sizes(x: Any, grid: Any, axis: int, mode: str) -> list[int]:
    """The lengths of the spatial axes, after the shapes were checked."""
    shape, own = x._aval.shape, grid._aval.shape
    if len(shape) not in (4, 5):
        raise ShapeError(f"grid_sample: needs 2 or 3 spatial axes, got shape {shape}.")
    if mode == "bicubic" and len(shape) != 4:
        raise ShapeError(f'grid_sample: "bicubic" is for 2 spatial axes, got shape {shape}.')
    sizes = [n for d, n in enumerate(shape) if d not in (0, axis)]
    if len(own) != len(shape) or own[0] != shape[0] or own[-1] != len(sizes):
        raise ShapeError(
            f"grid_sample: the grid must have shape ({shape[0]}, ..., {len(sizes)}) and"
            f" {len(shape)} axes, got {own}."
        )
    if 0 in sizes:
        raise ShapeError(f"grid_sample: a spatial axis is empty, got shape {shape}.")
    return sizes


# -- affine grids ----------------------------------------------------------------------------------


def _numpy_line(n: int, align_corners: bool) -> np.ndarray:
    if align_corners:
        return np.linspace(-1.0, 1.0, n) if n > 1 else np.zeros(n)
    return (np.arange(n) * 2 + 1) / max(n, 1) - 1


def _affine_oracle(theta, size, align_corners=False):
    lines = [_numpy_line(n, align_corners) for n in size[2:]]
    mesh = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*mesh[::-1], np.ones(mesh[0].shape)], -1)
    return np.einsum("nij,...j->n...i", theta, points)


@composite(
    oracle=_affine_oracle,
    samples=lambda d: [
        Sample((d.real(2, 2, 3), (2, 1, 2, 3))),
        Sample((d.real(1, 2, 3), [1, 3, 2, 1], True)),
        Sample((d.real(1, 3, 4), (1, 1, 2, 1, 3)), {"align_corners": True}),
        Sample((d.real(0, 2, 3), (0, 1, 2, 2))),
    ],
    errors=lambda d: [
        Bad((d.real(2, 3), (2, 1, 2, 3)), {}, ShapeError, "theta"),
        Bad((d.real(2, 2, 3), (2, 1, 2)), {}, ShapeError, "size"),
        Bad((d.real(2, 2, 3), (3, 1, 2, 2)), {}, ShapeError, "theta"),
        Bad((d.real(2, 2, 3), (2, 1, 0, 2)), {}, ShapeError, "positive"),
    ],
    namespace="nn",
)
def affine_grid(theta: Any, size: Any, align_corners: bool = False) -> Any:
    """The grid for `grid_sample` that an affine map makes of the places of an output of `size`.

    >>> pb.nn.affine_grid(pb.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]), (1, 1, 1, 2))
    tensor([[[[-0.5,  0. ],
              [ 0.5,  0. ]]]], float32, cpu)

    `size` is (N, C, H, W) with maps (N, 2, 3), or (N, C, D, H, W) with maps (N, 3, 4).
    """
    (theta,) = floating("affine_grid", theta)
    size = tuple(int(n) for n in size)
    spatial = len(size) - 2
    if spatial not in (2, 3):
        raise ShapeError(f"affine_grid: the size must have 4 or 5 numbers, got {size}.")
    if theta._aval.shape != (size[0], spatial, spatial + 1):
        raise ShapeError(
            f"affine_grid: theta must have shape {(size[0], spatial, spatial + 1)},"
            f" got {theta._aval.shape}."
        )
    if any(n < 1 for n in size[2:]):
        raise ShapeError(f"affine_grid: spatial sizes must be positive, got {size}.")
    lines = [_numpy_line(n, align_corners) for n in size[2:]]
    mesh = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*mesh[::-1], np.ones(mesh[0].shape)], -1).reshape(-1, spatial + 1)
    fixed = from_numpy(points.astype(theta._aval.dtype.numpy), theta._aval.device)
    return reshape(matmul(fixed, theta.mT), (size[0], *size[2:], spatial))
