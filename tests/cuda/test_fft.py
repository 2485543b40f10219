"""Fourier transforms on the emulated GPU: the bits of the CPU for all lengths and layouts."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import cuda_fake
import pullback as pb
from cuda_device import emulated
from cuda_emulator import COMPILER
from generated.matrix import FULL
from pullback.compile.kernel import fft_order, transforms
from pullback.compile.kernel.fused import fused
from pullback.compile.program.fourier import Numbers
from pullback.runtime.cpu.fft import recipes
from pullback.runtime.cuda import nvrtc
from pullback.runtime.cuda.fft import fft_stages

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")

# One pass, several, groups of them, two stages; primes, whose transforms are convolutions of each.
LENGTHS = [1, 2, 3, 12, 37, 1000, 4099, 8192, 32769, 65536]
if FULL:
    LENGTHS += [
        *range(4, 33),
        97,
        192,
        2310,
        4096,
        4097,
        16384,
        32768,
        65537,
        65538,
        105000,
        105001,
    ]


@pytest.fixture(scope="module")
def cuda() -> Iterator[Any]:
    with emulated() as device:
        yield device


def draw(*shape: int, dtype: str = "complex64") -> np.ndarray:
    rng = np.random.default_rng(7)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.startswith("c") else x).astype(dtype)


def assert_equal(f: Callable[[Any], Any], x: np.ndarray, cuda: Any) -> None:
    """That a function gives the same bits on both devices."""
    expected, found = f(pb.tensor(x)).numpy(), f(pb.tensor(x, device=cuda)).numpy()
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("n", LENGTHS)
def test_transforms_have_the_bits_of_the_cpu(n: int, cuda: Any):
    rows, half = (3 if n < 5000 else 1), n // 2 + 1
    assert_equal(pb.fft.fft, draw(rows, n), cuda)
    assert_equal(lambda x: pb.fft.ifft(x, axis=0), draw(n, rows), cuda)
    assert_equal(
        lambda x: pb.fft.rfft(x, axis=1, norm="ortho"), draw(1, n, 2, dtype="float32"), cuda
    )
    assert_equal(lambda x: pb.fft.irfft(x, n=n), draw(rows, half), cuda)


@pytest.mark.parametrize("n", [12, 37, 2048])
def test_float64(n: int, cuda: Any):
    assert_equal(pb.fft.fft, draw(2, n, dtype="complex128"), cuda)
    assert_equal(pb.fft.rfft, draw(2, n, dtype="float64"), cuda)
    assert_equal(lambda x: pb.fft.irfft(x, n=n), draw(2, n // 2 + 1, dtype="complex128"), cuda)


def test_any_layout(cuda: Any):
    assert_equal(lambda x: pb.fft.fft(pb.flip(x, axis=1).mT[..., ::2], axis=1), draw(2, 8, 6), cuda)
    assert_equal(lambda x: pb.fft.rfftn(x[::2]), draw(6, 4, 10, dtype="float32"), cuda)
    assert_equal(
        lambda x: pb.fft.irfft(pb.broadcast_to(x[:, None], (4, 3, 5)), n=9, axis=0),
        draw(4, 5),
        cuda,
    )


def test_compiled_derivatives(cuda: Any):
    def loss(x: Any) -> Any:
        return pb.sum(pb.abs(pb.fft.rfft(x * x)) ** 2)

    assert_equal(pb.jit(pb.grad(loss)), draw(3, 40, dtype="float32"), cuda)


def test_tables_live_as_long_as_their_program(cuda: Any):
    """Others push the tables of a transform out of the cache while it is still in use."""
    f = pb.jit(pb.fft.fft)
    f(pb.tensor(draw(62), device=cuda))
    radix = fft_order.radices(62)[0]
    table = weakref.ref(fft_stages._table(Numbers("pass", pb.float32, 62, radix)))
    fft_stages._table.cache_clear()
    gc.collect()
    assert table() is not None


@pytest.mark.parametrize("n", [1, 6, 31, 64, 1000])
def test_the_reference_is_the_order_of_the_cpu(n: int):
    x = draw(n)
    assert transforms.transformed(x).tobytes() == pb.fft.fft(pb.tensor(x)).numpy().tobytes()


@pytest.mark.parametrize("n", [37, 1009, 32769])
def test_spectra_are_those_of_the_cpu(n: int):
    other = transforms.convolution(n)
    assert len(other) == fft_order.smooth_above(2 * n - 1)
    assert transforms.transformed(other).tobytes() == recipes._transform(other).tobytes()


def test_fused_products_of_float64_are_rounded_once():
    rng = np.random.default_rng(0)
    a, b, z = (rng.standard_normal(4000) * 2.0 ** rng.integers(-40, 40, 4000) for _ in range(3))
    near = -a * b * (1 + rng.integers(-2, 3, 4000) * 2.0**-52)
    c = np.where(rng.random(4000) < 0.5, near, z)
    c[:3], a[3:6] = [0.0, -0.0, 1e308], 0.0
    exact = [
        float(Fraction(x) * Fraction(y) + Fraction(w))
        for x, y, w in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    assert np.array_equal(fused(a, b, c), np.array(exact))


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_nvrtc_compiles_the_kernels(target: str, cuda: Any):
    assert_equal(pb.fft.rfft, draw(2, 74, dtype="float64"), cuda)
    printed = sorted(s for s in cuda_fake.printed if "fft_" in s)
    for source in printed if FULL else printed[:4]:
        assert nvrtc.compile_source(source, target, nvrtc.QUICK)
