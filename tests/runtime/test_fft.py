"""Fourier transforms: accuracy, the same bits in every batch and on every way, and all lengths."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest

import pullback as pb
from pullback.compile.kernel import fft_order
from pullback.compile.kernel.roots import roots
from pullback.compile.program import single
from pullback.runtime.cpu.fft import fft_stages, recipes, tables
from pullback.runtime.cpu.llvm.jit import host

RNG = np.random.default_rng(7)
# All short lengths; then both sides of every threshold, and lengths of all kinds: powers, products,
# primes whose transforms are convolutions, and twice these.
SHORT = range(1, 70)
MEDIUM = [
    96, 101, 128, 192, 193, 243, 256, 384, 386, 625, 1000, 1009, 1024, 2018, 4096, 4097, 4099,
]  # fmt: skip
LONG = [32768, 32769, 32768 * 2, 65537, 65538, 2**17 + 2, 105000]


def stated_error(n: int) -> float:
    """The root mean square error relative to that of the result, in units of eps: docs/fft.md."""
    return 0.4 + 0.08 * np.log2(n) if fft_order.is_smooth(n) else 2.5


def noise(dtype: type, *shape: int) -> np.ndarray:
    x = RNG.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * RNG.standard_normal(shape)
    return np.asarray(x).astype(dtype)


def exact(x: np.ndarray, ks: np.ndarray, sign: int) -> np.ndarray:
    """Coefficients of a transform in extended precision."""
    n = len(x)
    w = np.empty(n, np.clongdouble)
    angle = 2 * np.pi * np.arange(n, dtype=np.longdouble) / n
    if n <= 4096:
        with mp.workprec(80):
            w.real = [np.longdouble(mp.nstr(mp.cospi(mp.mpf(2 * k) / n), 22)) for k in range(n)]
            w.imag = [np.longdouble(mp.nstr(mp.sinpi(mp.mpf(2 * k) / n), 22)) for k in range(n)]
    else:
        w.real, w.imag = np.cos(angle), np.sin(angle)
    if sign < 0:
        w = w.conj()
    j = np.arange(n)
    return np.array([(x.astype(np.clongdouble) * w[j * k % n]).sum() for k in ks])


def rms(x: np.ndarray) -> float:
    return float(np.sqrt((np.abs(x) ** 2).mean()))


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("n", [2, 3, 8, 13, 31, 37, 60, 127, 256, 1000, 1009, 1024, 2310, 4096])
def test_errors_stay_within_the_stated_bound(n, dtype):
    rows = max(1, min(40, 2000 // n))
    ks = np.unique(RNG.integers(0, n, 30))
    bound = stated_error(n) * np.finfo(dtype).eps
    x = noise(dtype, rows, n)
    # a factor is one more rounding
    rounding = 0.3 * np.finfo(dtype).eps
    for f, sign, factor in ((pb.fft.fft, -1, 1), (pb.fft.ifft, 1, n)):
        want = np.stack([exact(row, ks, sign) for row in x]) / factor
        error = rms(f(pb.tensor(x)).numpy()[:, ks] - want)
        assert error <= (bound + rounding * (factor > 1)) * rms(want)
    real = noise(np.float32 if dtype is np.complex64 else np.float64, rows, n)
    ks = ks[ks <= n // 2]
    want = np.stack([exact(row, ks, -1) for row in real])
    # so is the step between complex and real numbers, of a larger number
    error = rms(pb.fft.rfft(pb.tensor(real)).numpy()[:, ks] - want)
    assert error <= (bound + 2 * rounding) * rms(want)


def agrees(result: pb.Tensor, want: np.ndarray) -> None:
    got = result.numpy()
    eps = np.finfo(got.dtype).eps
    assert got.shape == want.shape
    assert rms(got - want) <= 8 * eps * max(rms(want), 1e-300)


def check_all(n: int, *shape: int, axis: int, single: bool) -> None:
    """All three transforms and their inverses against NumPy in float64."""
    shape = tuple(n if s == 0 else s for s in shape)
    z = noise(np.complex64 if single else np.complex128, *shape)
    x = noise(np.float32 if single else np.float64, *shape)
    wide, real = z.astype(np.complex128), x.astype(np.float64)
    agrees(pb.fft.fft(pb.tensor(z), axis=axis), np.fft.fft(wide, axis=axis))
    agrees(pb.fft.ifft(pb.tensor(z), axis=axis), np.fft.ifft(wide, axis=axis))
    half = pb.fft.rfft(pb.tensor(x), axis=axis)
    agrees(half, np.fft.rfft(real, axis=axis))
    back = pb.fft.irfft(half, n=n, axis=axis)
    agrees(back, np.fft.irfft(half.numpy().astype(np.complex128), n, axis=axis))


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize(
    ("shape", "axis"), [((0,), -1), ((3, 0), -1), ((40, 0), -1), ((0, 33), 0), ((2, 0, 9), 1)]
)
def test_every_short_length(shape, axis, single):
    for n in SHORT:
        check_all(n, *shape, axis=axis, single=single)


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("n", MEDIUM)
def test_medium_lengths(n, single):
    check_all(n, 0, axis=-1, single=single)
    check_all(n, 0, 17, axis=0, single=single)
    check_all(n, 2, 0, 3, axis=1, single=single)


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("n", LONG)
def test_long_lengths(n, single):
    check_all(n, 0, axis=-1, single=single)
    check_all(n, 2, 0, axis=-1, single=single)


def patterns(f, x: np.ndarray, *more) -> bytes:
    return f(pb.tensor(x), *more).numpy().tobytes()


FUNCTIONS = {
    "fft": pb.fft.fft,
    "ifft": pb.fft.ifft,
    "rfft": lambda x, **k: pb.fft.rfft(x, norm="ortho", **k),
    "irfft": lambda x, **k: pb.fft.irfft(pb.astype(x, pb.complex64), n=k.pop("n"), **k),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("n", [5, 16, 31, 37, 60, 96, 192, 210, 384, 1000, 1009, 4096, 65536])
def test_a_slice_of_a_batch_keeps_its_bits(name, n):
    f = FUNCTIONS[name]
    options = {"n": n} if name == "irfft" else {}
    rows = 5 if n > 5000 else 37
    length = n // 2 + 1 if name == "irfft" else n
    x = noise(np.float32 if name == "rfft" else np.complex64, rows, length)
    every = f(pb.tensor(x), **options).numpy()
    for picked in (slice(0, 1), slice(2, 3), slice(1, 4), slice(0, rows, 2)):
        some = f(pb.tensor(np.ascontiguousarray(x[picked])), **options).numpy()
        assert some.tobytes() == every[picked].tobytes()
        view = f(pb.tensor(x)[picked], **options).numpy()
        assert view.tobytes() == every[picked].tobytes()
    down = f(pb.tensor(np.ascontiguousarray(x.T)), axis=0, **options).numpy()
    assert np.ascontiguousarray(down.T).tobytes() == every.tobytes()
    one = f(pb.tensor(x[3]), **options).numpy()
    assert one.tobytes() == every[3].tobytes()


@pytest.mark.parametrize("n", [1 << 16, 65537, 1000, 60])
def test_thread_count_does_not_change_the_bits(n, threads):
    x = noise(np.complex64, max(1, 100_000 // n), n)
    real = noise(np.float32, max(1, 100_000 // n), n)
    found = set()
    for count in (1, 2, 3):
        threads(count)
        found.add(patterns(pb.fft.fft, x) + patterns(pb.fft.rfft, real))
    assert len(found) == 1


DIGEST = """
import hashlib, sys
import numpy as np
from pullback.runtime.cpu.llvm import emission

emission.Host.vector_bits = property(lambda host: int(sys.argv[1]))
import pullback as pb

digest, rng = hashlib.sha256(), np.random.default_rng(0)
for n in (5, 16, 60, 100, 256, 1009, 70000):
    z = (rng.standard_normal((2, n)) + 1j * rng.standard_normal((2, n))).astype(np.complex64)
    for x in (pb.tensor(z), pb.tensor(np.ascontiguousarray(z.T))):
        axis = x.shape.index(n)
        digest.update(pb.fft.ifft(x, axis=axis).numpy().tobytes())
        digest.update(pb.fft.rfft(pb.real(x), axis=axis).numpy().tobytes())
        digest.update(pb.fft.irfft(x, n=n, axis=axis).numpy().tobytes())
print(digest.hexdigest())
"""


def test_the_width_of_vectors_does_not_change_the_bits():
    """Half as wide as here and a quarter: what other processors have."""
    widest = host().vector_bits
    found = set()
    environment = {**os.environ, "PYTHONPATH": str(Path(pb.__file__).parents[1])}
    for bits in (widest, widest // 2, widest // 4):
        command = [sys.executable, "-c", DIGEST, str(bits)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1


def test_jit_gives_the_bits_of_eager():
    def f(x):
        return pb.fft.irfft(pb.fft.rfft(x, n=70) * 2.0, n=64), pb.fft.fft2(x)

    x = pb.tensor(noise(np.float32, 20, 60))
    for a, b in zip(pb.jit(f)(x), f(x), strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()


def test_tables_live_as_long_as_programs():
    """A plan made once is still right when nobody else remembers its tables."""
    x = noise(np.complex64, 3, 1000)
    first, compiled = pb.fft.fft(pb.tensor(x)).numpy(), pb.jit(pb.fft.fft)
    second = compiled(pb.tensor(x)).numpy()
    for cache in (tables.pass_roots, tables.twist_roots, tables.half_roots, recipes.convolved):
        cache.cache_clear()
    gc.collect()
    waste = [np.full(8 * n, np.nan) for n in range(1, 2000)]
    assert pb.fft.fft(pb.tensor(x)).numpy().tobytes() == first.tobytes()
    assert compiled(pb.tensor(x)).numpy().tobytes() == second.tobytes()
    del waste


def test_long_lengths_do_not_all_stay_in_memory():
    """A process that transforms ever new long lengths keeps the tables of a few."""
    for n in range(33_000, 33_060, 2):
        pb.fft.rfft(pb.tensor(noise(np.float32, n)))
    kept = single._kept_program.cache_info()
    assert kept.maxsize == 16 and kept.currsize <= 16
    x = noise(np.float32, 33_000)
    again = pb.fft.rfft(pb.tensor(x)).numpy()
    np.testing.assert_allclose(again, np.fft.rfft(x.astype(np.float64)), atol=1e-2)


def test_roots_are_rounded_once():
    worst = 0.0
    with mp.workprec(200):
        for n in (1, 3, 8, 12, 1009, 4096, 105000, 2**20 + 7):
            ks = np.unique(np.r_[np.arange(min(n, 20)), RNG.integers(0, n, 20)])
            for k, root in zip(ks, roots(n, ks), strict=True):
                turn = mp.mpf(2 * int(k)) / n
                for got, want in ((root.real, mp.cospi(turn)), (root.imag, -mp.sinpi(turn))):
                    error = abs(mp.mpf(float(got)) - want)
                    spacing = np.spacing(max(abs(float(want)), 1e-300))
                    worst = max(worst, float(error.real / spacing))
    assert worst < 0.53


@pytest.mark.parametrize("n", [1, 2, 30, 97, 1000, 1024, 30030, 32768, 2 * 3**9])
def test_radices_multiply_to_the_length(n):
    if fft_order.is_smooth(n):
        assert np.prod(fft_order.radices(n)) == n
    longer = fft_order.smooth_above(n)
    assert n <= longer < 2 * n + 1
    assert fft_order.is_smooth(longer)


def test_special_values():
    assert not np.isfinite(pb.fft.fft(pb.tensor([1.0, np.inf, 0.0, 2.0])).numpy()).any()
    assert np.isnan(pb.fft.rfft(pb.tensor([np.nan] * 3)).numpy()).all()
    tiny = np.full(8, 1e-42, np.float32)  # subnormal numbers are numbers
    assert pb.fft.rfft(pb.tensor(tiny)).numpy()[0] == np.float32(8) * tiny[0]
    # the imaginary parts that a real array can't have count as zero
    half = np.array([1 + 5j, 2 - 1j, 3 + 7j], np.complex64)
    np.testing.assert_allclose(pb.fft.irfft(pb.tensor(half)).numpy(), np.fft.irfft(half), atol=1e-6)


def test_integers_and_halves_are_computed_in_single_precision():
    assert pb.fft.fft(pb.tensor([1, 2, 3])).dtype is pb.complex64
    assert pb.fft.rfft(pb.astype(pb.tensor([1.0, 2.0]), pb.float16)).dtype is pb.complex64
    assert fft_stages.NAMES == ("fft", "rfft", "irfft")
