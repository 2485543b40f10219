"""Kernels have the bits of the references of the orders, on both sides of thresholds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.compile.kernel import order
from pullback.compile.kernel.fused import fused

RNG = np.random.default_rng(0)


def numbers(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def assert_bits(found: pb.Tensor, expected: np.ndarray) -> None:
    x = found.numpy()
    assert (x.shape, x.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(x.view(np.uint8), expected.view(np.uint8))


def test_fused_multiply_add_is_rounded_once():
    a, b, c = (numbers(2000) for _ in range(3))
    c[::3] = -a[::3] * b[::3]  # what is left is the error of the product
    exact = [
        np.float32(np.longdouble(x) * np.longdouble(y) + np.longdouble(z))
        for x, y, z in zip(a, b, c, strict=True)
    ]
    np.testing.assert_array_equal(fused(a, b, c), np.array(exact))


@pytest.mark.parametrize("length", [1, 31, 32, 33, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("jit", [False, True])
def test_reductions(length: int, jit: bool):
    x = numbers(length, 3)
    f = pb.jit(lambda x: pb.sum(x, axis=0)) if jit else lambda x: pb.sum(x, axis=0)
    expected = order.tree(x, np.add, np.zeros(3, x.dtype))
    assert_bits(f(pb.tensor(x)), expected)
    columns = pb.tensor(np.ascontiguousarray(x.T))
    assert_bits(pb.sum(columns, axis=1), expected)


def test_running_folds():
    x = numbers(2100)
    expected = np.array(list(order.running(x, np.add, np.zeros((), np.float32))))
    assert_bits(pb.cumulative_sum(pb.tensor(x)), expected)


@pytest.mark.parametrize("k", [1, 255, 256, 257, 700])
@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("jit", [False, True])
def test_products(m: int, k: int, jit: bool):
    a, b = numbers(m, k), numbers(k, 33)
    f = pb.jit(pb.matmul) if jit else pb.matmul
    assert_bits(f(pb.tensor(a), pb.tensor(b)), order.product(a, b))


@pytest.mark.parametrize("k", [40, 257])
@pytest.mark.parametrize("m", [1, 3])
def test_products_of_complex_numbers(m: int, k: int):
    a, b = (numbers(*shape) + 1j * numbers(*shape) for shape in ((m, k), (k, 20)))
    assert_bits(pb.tensor(a) @ pb.tensor(b), order.product(a, b))


def test_products_of_float64():
    a, b = numbers(2, 300, dtype=np.float64), numbers(300, 3, dtype=np.float64)
    assert_bits(pb.tensor(a) @ pb.tensor(b), order.product(a, b))


@pytest.mark.parametrize(
    "m,n,k", [(1, 1, 5000), (1, 5, 4096), (1, 20, 1025), (1, 600, 300), (2, 40, 700), (1, 40, 300)]
)
@pytest.mark.parametrize("across", [False, True])
def test_products_of_few_rows_and_a_large_matrix(m: int, n: int, k: int, across: bool):
    dtype = np.float64 if (m, n) == (1, 40) else np.float32
    a, b = numbers(m, k, dtype=dtype), numbers(k, n, dtype=dtype)
    matrix = pb.tensor(np.ascontiguousarray(b.T)).T if across else pb.tensor(b)
    assert_bits(pb.tensor(a) @ matrix, order.product(a, b))


@pytest.mark.parametrize("count", [1000, order.FEW_UPDATES, order.FEW_UPDATES + 1, 100_000])
@pytest.mark.parametrize("rows", [30, 2048, 2049])
def test_scatter_add(count: int, rows: int):
    x, updates = numbers(rows), numbers(count)
    indices = RNG.integers(0, rows, count)
    in_lanes = order.has_lanes(count, rows, 1, 1)
    assert in_lanes == (count > order.FEW_UPDATES and rows <= 2048 and count >= 16 * rows)
    reference = order.scattered_by_lanes if in_lanes else order.scattered
    found = pb.index_add(pb.tensor(x), pb.tensor(indices), pb.tensor(updates))
    assert_bits(found, reference(x, indices, updates))


def convolution(x: np.ndarray, w: np.ndarray) -> order.ConvolutionOrder:
    """What decides the order of a convolution without padding."""
    (batch, into, *size), (out, _, *kernel) = x.shape, w.shape
    rows, columns = (order.Line(n - k + 1, 1, k) for n, k in zip(size, kernel, strict=True))
    positions = kernel[0] * kernel[1]
    first = order.Line(1, 1, 1)
    lines = (first, rows, columns)
    return order.ConvolutionOrder(4, batch, 1, into, out, positions, kernel[1], lines, False)


@pytest.mark.parametrize("into", [3, 20, 40])
def test_convolution(into: int):
    x, w = numbers(2, into, 9, 11), numbers(5, into, 3, 3)
    cut = convolution(x, w)
    assert (cut.block < into) == (into == 40)
    found = pb.nn.conv2d(pb.tensor(x), pb.tensor(w))
    assert_bits(found, order.convolved(x, w, cut.block))


@pytest.mark.parametrize("channels", [200, 300])
@pytest.mark.parametrize("side", [1, 5, 12])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolution_with_one_position(channels: int, side: int, groups: int):
    """It is a product in any layout, for any number of images."""
    x, w = numbers(3, groups * channels, side, side), numbers(4 * groups, channels, 1, 1)
    parts = zip(np.split(x, groups, axis=1), np.split(w, groups), strict=True)
    expected = np.concatenate(
        [
            np.stack([order.product(v[:, :, 0, 0], image.reshape(channels, -1)) for image in u])
            for u, v in parts
        ],
        axis=1,
    ).reshape(3, 4 * groups, side, side)

    def conv(x: pb.Tensor, **kwargs: Any) -> pb.Tensor:
        return pb.nn.conv2d(x, pb.tensor(w), groups=groups, **kwargs)

    wide = np.zeros((3, groups * channels, side + 2, side + 1), np.float32)
    wide[..., 1:-1, 1:] = x
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    for images in (slice(0, 1), slice(0, 3)):
        assert_bits(conv(pb.tensor(x[images])), expected[images])
        assert_bits(conv(pb.tensor(wide)[images, :, 1:-1, 1:]), expected[images])
        found = conv(pb.tensor(last[images]), layout="channels_last")
        assert_bits(found, np.ascontiguousarray(expected[images].transpose(0, 2, 3, 1)))


@pytest.mark.parametrize("side", [10, 40])
def test_gradient_of_the_weights_of_a_convolution(side: int):
    x, w = numbers(2, 3, side, side), numbers(4, 3, 3, 3)
    cut = convolution(x, w)
    _, rows, columns = cut.weight_tile()
    g = numbers(2, 4, side - 2, side - 2)
    _, pull = pb.vjp(lambda w: pb.nn.conv2d(pb.tensor(x), w), pb.tensor(w))
    (found,) = pull(pb.tensor(g))
    chunk = cut.weight_chunk((1, rows, columns))
    assert_bits(found, order.correlated(x, g, (rows, columns), chunk))
