"""Eigenvalues of real matrices of some rows: the order that is written down, and hard matrices."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from pullback import linalg
from pullback.compile.kernel import eigen_order
from pullback.compile.kernel.factor_order import JACOBI
from pullback.runtime.cpu import native

RNG = np.random.default_rng(12)
DTYPES = ("float32", "float64")

pytestmark = pytest.mark.usefixtures("threads")


def symmetric(*shape, dtype="float32"):
    x = RNG.normal(size=(*shape, shape[-1])).astype(dtype)
    return (x + np.swapaxes(x, -1, -2)) / 2


def found(x):
    return tuple(y.numpy() for y in linalg.eigh(pb.tensor(x)))


def fits(x, slack=4.0):
    """The factors are those of x, and orthonormal, up to a few roundings for each row."""
    w, v = found(x)
    n, eps = x.shape[-1], np.finfo(x.dtype).eps
    exact = x.astype(np.float64)
    size = np.abs(exact).max() * n or 1.0
    rebuilt = v.astype(np.float64) * w[..., None, :] @ np.swapaxes(v, -1, -2)
    assert np.abs(rebuilt - exact).max() <= slack * eps * size
    ones = np.swapaxes(v, -1, -2).astype(np.float64) @ v
    assert np.abs(ones - np.eye(n)).max() <= 4 * eps * max(n, 8)
    assert (np.diff(w) >= 0).all()
    alone = linalg.eigvalsh(pb.tensor(x)).numpy()
    if n <= eigen_order.ROWS:
        np.testing.assert_array_equal(alone, w)
    else:
        np.testing.assert_allclose(alone, w, atol=slack * eps * size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [JACOBI + 1, 8, 9, 16, 17, 33, 64, 65, 80])
def test_eigenvalues_have_the_order_that_is_written_down(n, dtype):
    # On both sides of vectors, and of four of them.
    x = symmetric(n, dtype=dtype)
    for got, expected in zip(found(x), eigen_order.eigh(x), strict=True):
        np.testing.assert_array_equal(got, expected)


def graded(n):
    scales = 10.0 ** -np.arange(n)
    return np.outer(scales, scales) + np.diag(scales**2)


def path(n):
    return np.eye(n, k=1) + np.eye(n, k=-1)


def apart(n):
    """Elements beside the diagonal of all sizes: where sweeps end early, signs count."""
    sizes = np.random.default_rng(n).uniform(-30, 0, n - 1)
    return np.diag(10.0**sizes, 1) + np.diag(10.0**sizes, -1)


def tiny_blocks(n):
    x = symmetric(n, dtype="float64")
    x[:3] *= 1e-18
    x[:, :3] *= 1e-18
    return x


HARD = {
    "zeros": lambda n: np.zeros((n, n)),
    "ones": lambda n: np.ones((n, n)),
    "diagonal": lambda n: np.diag(np.arange(n)[::-1] % 5),
    "path": path,
    "close pairs": lambda n: path(n) + np.diag(np.abs(np.arange(n) - n // 2)),  # Wilkinson's
    "graded": graded,  # sweeps end early, where a block falls into two
    "graded upwards": lambda n: graded(n)[::-1, ::-1],
    "tiny blocks": tiny_blocks,
    **{f"apart {seed}": lambda n, s=seed: apart(n + s)[s:, s:] for seed in range(12)},
    "low rank": lambda n: np.outer(np.arange(n) % 3, np.arange(n) % 3),
    "reflection": lambda n: np.eye(n)[::-1],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HARD)
def test_hard_matrices(name, dtype):
    for n in (7, 17, 40):
        x = HARD[name](n).astype(dtype)
        fits(x)
        if n == 17:
            for got, expected in zip(found(x), eigen_order.eigh(x), strict=True):
                np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_numbers_are_scaled(dtype):
    x = symmetric(20, dtype=dtype)
    w, v = found(x)
    most = 120 if dtype == "float32" else 1000
    for power in (most, -most + 10):
        scale = x.dtype.type(2.0) ** power
        got = found(x * scale)
        np.testing.assert_array_equal(got[0], w * scale)
        np.testing.assert_array_equal(got[1], v)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, JACOBI, JACOBI + 1])
def test_elements_near_the_largest_number(n, dtype):
    x = symmetric(20, n, dtype=dtype)
    x /= np.abs(x).max()
    expected = np.linalg.eigvalsh(x.astype(np.float64))
    scale = np.finfo(dtype).max
    w, v = found(x * scale)
    fine, near = np.isfinite(w), 40 * np.finfo(dtype).eps
    np.testing.assert_allclose((w / scale)[fine], expected[fine], atol=near)
    assert (np.abs(expected[~fine]) > 1 - near).all()
    own = v * np.where(fine, w / scale, expected)[..., None, :]
    np.testing.assert_allclose(x @ v, own, atol=near)
    ones = np.broadcast_to(np.eye(n), v.shape)
    np.testing.assert_allclose(np.swapaxes(v, -1, -2) @ v, ones, atol=near)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_below_the_normal_ones(dtype):
    tiny = np.finfo(dtype).tiny
    x = symmetric(9, dtype=dtype)
    w, v = found((x * (tiny / 64)).astype(dtype))
    expected = np.linalg.eigvalsh(x.astype(np.float64))
    least = np.finfo(dtype).smallest_subnormal
    np.testing.assert_allclose(w / tiny * 64, expected, atol=20 * float(least / tiny) * 64)
    np.testing.assert_allclose(v.T @ v, np.eye(9), atol=99 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_sides_of_the_largest_matrix(dtype):
    for n in (eigen_order.ROWS, eigen_order.ROWS + 1):
        x = symmetric(n, dtype=dtype)
        fits(x)
        expected = np.linalg.eigvalsh(x.astype(np.float64))
        np.testing.assert_allclose(found(x)[0], expected, atol=8 * n * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_those_of_one_matrix_by_one_thread(dtype):
    x = symmetric(37, 21, dtype=dtype)
    native.set_threads(1)
    alone = [found(one) for one in x]
    expected = [np.stack(part) for part in zip(*alone, strict=True)]
    turned = pb.linalg.matrix_transpose(pb.tensor(x))
    apart = pb.tensor(np.repeat(x, 2, axis=2))[..., ::2]
    for count in (1, 2, 3):
        native.set_threads(count)
        for given in (pb.tensor(x), turned, apart):
            for call in (linalg.eigh, pb.jit(linalg.eigh)):
                for got, own in zip(call(given), expected, strict=True):
                    np.testing.assert_array_equal(got.numpy(), own)


def test_what_is_not_a_number_spoils_its_matrix_alone():
    x = symmetric(5, 12)
    w, v = found(x)
    for value in (np.nan, np.inf):
        bad = x.copy()
        bad[2, 3, 4] = value
        got = found(bad)
        for part, own in zip(got, (w, v), strict=True):
            assert np.isnan(part[2]).all()
            others = [0, 1, 3, 4]
            np.testing.assert_array_equal(part[others], own[others])
        assert np.isnan(linalg.eigvalsh(pb.tensor(bad)).numpy()[2]).all()
