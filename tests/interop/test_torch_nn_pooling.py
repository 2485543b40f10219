"""Pooling against torch.nn.functional: values, indices, first and second derivatives, every option,
both layouts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb

torch = pytest.importorskip("torch")

from interop.torch_agreement import agree  # noqa: E402

F: Any = torch.nn.functional
LAYOUTS = ["channels_first", "channels_last"]
SIZES = {1: (9,), 2: (7, 6), 3: (5, 4, 6)}
AXES = [1, 2, 3]


def image(axes: int, dtype: str = "float64", ties: bool = False) -> np.ndarray:
    x = np.random.default_rng(axes).standard_normal((2, 3, *SIZES[axes]))
    return (np.round(x) if ties else x).astype(dtype)


def in_layout(function: Any, layout: str) -> Any:
    """Our function on an array with channels first, run in a layout."""

    def run(x: Any, *args: Any, **options: Any) -> Any:
        if layout == "channels_first":
            return function(x, *args, **options)
        out = function(pb.moveaxis(x, 1, -1), *args, **options, layout=layout)
        if isinstance(out, tuple):
            return tuple(pb.moveaxis(a, -1, 1) for a in out)
        return pb.moveaxis(out, -1, 1)

    return run


MAXIMA = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True},
    {"kernel_size": 2, "stride": 1, "dilation": 2, "padding": 1},
]


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", MAXIMA)
def test_max_pool(axes, layout, options):
    name = f"max_pool{axes}d"
    ours, theirs = in_layout(getattr(pb.nn, name), layout), getattr(F, name)
    for dtype in ("float64", "float32"):
        agree(lambda x: ours(x, **options), lambda x: theirs(x, **options), [image(axes, dtype)])


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", MAXIMA)
def test_max_pool_indices_and_ties(axes, layout, options):
    """Where elements tie, the index and the derivative are those of the first."""
    x = image(axes, ties=True)
    name = f"max_pool{axes}d"
    out, index = in_layout(getattr(pb.nn, name), layout)(
        pb.tensor(x), **options, return_indices=True
    )
    expected, where = getattr(F, name)(torch.tensor(x), **options, return_indices=True)
    np.testing.assert_array_equal(out.numpy(), expected.numpy())
    np.testing.assert_array_equal(index.numpy(), where.numpy())
    assert index.dtype is pb.int64
    ours, theirs = in_layout(getattr(pb.nn, name), layout), getattr(F, name)
    agree(lambda x: ours(x, **options), lambda x: theirs(x, **options), [x], order=1)


@pytest.mark.parametrize("axes", AXES)
def test_max_pool_of_nan_and_infinities(axes):
    x = image(axes, ties=True)
    flat = x.reshape(-1)
    flat[::7], flat[1::11], flat[2::13] = np.nan, np.inf, -np.inf
    name = f"max_pool{axes}d"
    mine = getattr(pb.nn, name)(pb.tensor(x), 2, 1, 1, return_indices=True)
    theirs = getattr(F, name)(torch.tensor(x), 2, 1, 1, return_indices=True)
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


AVERAGES = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True, "count_include_pad": False},
    {"kernel_size": 2, "divisor_override": 3},
]


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", AVERAGES)
def test_avg_pool(axes, layout, options):
    if axes == 1 and "divisor_override" in options:
        pytest.skip("avg_pool1d has no divisor")
    name = f"avg_pool{axes}d"
    ours, theirs = in_layout(getattr(pb.nn, name), layout), getattr(F, name)
    for dtype in ("float64", "float32"):
        agree(lambda x: ours(x, **options), lambda x: theirs(x, **options), [image(axes, dtype)])


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("p", [1, 2, 3.0])
@pytest.mark.parametrize(
    "options", [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "ceil_mode": True}]
)
def test_lp_pool(axes, p, options):
    x = np.abs(image(axes)) + 0.1
    ours, theirs = getattr(pb.nn, f"lp_pool{axes}d"), getattr(F, f"lp_pool{axes}d")
    agree(lambda x: ours(x, p, **options), lambda x: theirs(x, p, **options), [x])


ADAPTIVE = [1, 3, (4, 3, 5), (2, 2, 3)]


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", ADAPTIVE)
@pytest.mark.parametrize("kind", ["avg", "max"])
def test_adaptive_pool(axes, layout, size, kind):
    size = size if isinstance(size, int) else size[:axes]
    name = f"adaptive_{kind}_pool{axes}d"
    ours, theirs = in_layout(getattr(pb.nn, name), layout), getattr(F, name)
    agree(lambda x: ours(x, size), lambda x: theirs(x, size), [image(axes)])
    if kind == "max":
        x = image(axes, ties=True)
        _, index = ours(pb.tensor(x), size, return_indices=True)
        _, where = theirs(torch.tensor(x), size, return_indices=True)
        np.testing.assert_array_equal(index.numpy(), where.numpy())


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_max_unpool(axes, layout):
    pool, unpool = f"max_pool{axes}d", f"max_unpool{axes}d"
    x = image(axes)
    size = x.shape[2:]
    y, index = getattr(F, pool)(torch.tensor(x), 2, return_indices=True)

    def ours(y):
        if layout == "channels_first":
            return getattr(pb.nn, unpool)(y, pb.tensor(index.numpy()), 2, output_size=size)
        at = pb.moveaxis(pb.tensor(index.numpy()), 1, -1)
        out = getattr(pb.nn, unpool)(pb.moveaxis(y, 1, -1), at, 2, output_size=size, layout=layout)
        return pb.moveaxis(out, -1, 1)

    agree(ours, lambda y: getattr(F, unpool)(y, index, 2, output_size=size), [y.numpy()])


def test_global_pools_are_those_of_size_one():
    x = image(2)
    agree(pb.nn.global_avg_pool, lambda x: F.adaptive_avg_pool2d(x, 1), [x])
    agree(pb.nn.global_max_pool, lambda x: F.adaptive_max_pool2d(x, 1), [x])
