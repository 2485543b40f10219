"""Matrix products against NumPy: dtypes, strides, broadcasting, empty extents, bits."""

import itertools
import os
import subprocess
import sys
from typing import Any, cast

import numpy as np
import pytest

from pullback.compile.kernel import order
from pullback.core import dtypes
from pullback.core.errors import DeviceError, DTypeError
from pullback.runtime.cpu import native
from pullback.runtime.cpu.gemm import (
    complex_gemm,
    direct_gemm,
    lane_gemm,
    packed_gemm,
    panel_gemm,
    transpose_code,
    vector_gemm,
)
from pullback.runtime.cpu.gemm import (
    matmul as products,
)
from pullback.runtime.cpu.gemm.cut import cut_of
from pullback.runtime.cpu.linalg import openblas
from pullback.runtime.cpu.llvm import jit
from runtime.programs import matmul_program

TOLERANCE = {
    "float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-6, "float64": 4e-15,
    "complex64": 4e-6, "complex128": 8e-15,
}  # fmt: skip
ALL = sorted(TOLERANCE)
FULL = os.environ.get("PULLBACK_FULL") == "1"
EXACT = ("float32", "float64", "complex64", "complex128")


def random(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng((seed, *shape))
    x = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        x = x + 1j * rng.standard_normal(shape)
    return np.asarray(x).astype(dtypes.as_dtype(dtype).numpy)


def buffer(x: np.ndarray) -> native.Buffer:
    return native.wrap(x.__array_interface__["data"][0], x.nbytes, x)


def product(a: np.ndarray, b: np.ndarray):
    """The program for `a @ b`, its buffers, and the shape of the result."""
    assert a.dtype == b.dtype
    dtype = dtypes.as_dtype(a.dtype.name)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    (m, k), n = a.shape[-2:], b.shape[-1]
    a, b = np.broadcast_to(a, (*batch, m, k)), np.broadcast_to(b, (*batch, k, n))
    strides = ([s // x.itemsize for s in x.strides] for x in (a, b))
    program = matmul_program(dtype, batch, m, n, k, *strides)
    return program, (buffer(a), buffer(b)), (*batch, m, n)


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    program, buffers, shape = product(a, b)
    return np.frombuffer(program(*buffers), a.dtype).reshape(shape)


def check(a: np.ndarray, b: np.ndarray) -> None:
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    got = matmul(a, b).astype(wide)
    expected = a.astype(wide) @ b.astype(wide)
    scale = np.abs(a.astype(wide)) @ np.abs(b.astype(wide))
    assert got.shape == expected.shape
    assert np.all(np.abs(got - expected) <= TOLERANCE[a.dtype.name] * (scale + 1e-3))


SHAPES = [(1, 1, 1), (3, 4, 5), (1, 7, 5), (7, 1, 5), (1, 1, 9), (5, 6, 1), (65, 130, 70)]
SHAPES += [(9, 8, 7), (3, 16, 11), (17, 32, 5)]  # whole vectors: products without a library
# Every product is compiled: the fixed sample has all shapes in float32 and some in the others.
SAMPLE = [
    (dtype, *shape)
    for i, dtype in enumerate(ALL)
    for j, shape in enumerate(SHAPES)
    if FULL or dtype == "float32" or (i + j) % 4 == 0
]


@pytest.mark.parametrize("dtype,m,n,k", SAMPLE)
def test_layouts(dtype, m, n, k):
    check(random(dtype, m, k), random(dtype, k, n))
    check(random(dtype, k, m).T, random(dtype, k, n))
    check(random(dtype, m, k), random(dtype, n, k).T)
    check(random(dtype, k, m).T, random(dtype, n, k).T)
    check(random(dtype, m + 3, k + 2)[2:-1, 1:-1], random(dtype, k, n + 4)[:, 4:])


@pytest.mark.parametrize("dtype,m,n,k", SAMPLE)
def test_layouts_that_need_packing(dtype, m, n, k):
    check(random(dtype, 2 * m, 3 * k)[::2, ::3], random(dtype, 2 * k, 2 * n)[::2, ::2])
    check(random(dtype, m, k)[::-1], random(dtype, k, n)[:, ::-1])
    check(random(dtype, k, m)[::-1].T, random(dtype, k, n)[::-1, ::-1])
    check(np.broadcast_to(random(dtype, 1, k), (m, k)), random(dtype, k, n))
    check(random(dtype, m, k), np.broadcast_to(random(dtype, k, 1), (k, n)))
    check(np.broadcast_to(random(dtype, 1, 1), (m, k)), random(dtype, k, n))


@pytest.mark.parametrize("dtype,m,n,k", SAMPLE)
def test_batches(dtype, m, n, k):
    check(random(dtype, 3, m, k), random(dtype, 3, k, n))
    check(random(dtype, 3, m, k), random(dtype, k, n))
    check(random(dtype, m, k), random(dtype, 3, k, n))
    check(random(dtype, 2, 1, m, k), random(dtype, 3, k, n))
    check(random(dtype, 4, 1, 2, m, k), random(dtype, 3, 1, k, n))
    check(random(dtype, m, 3, k).swapaxes(0, 1), random(dtype, k, n))
    check(random(dtype, 2, 3, k, m).swapaxes(-1, -2)[::-1], random(dtype, 3, k, n))
    check(random(dtype, 3, 2, k, m).transpose(1, 0, 3, 2)[..., ::-1, :], random(dtype, 3, k, n))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "m,n,k", [(3, 3, 3), (4, 4, 4), (1, 6, 5), (6, 1, 2), (2, 5, 6), (1, 1, 3)]
)
def test_small_products_side_by_side(dtype, m, n, k, monkeypatch):
    """Many of them are made in the lanes of vectors, in the order of one."""
    made = []
    kernel = lane_gemm.product_kernel
    monkeypatch.setattr(
        lane_gemm, "product_kernel", lambda *given: made.append(given) or kernel(*given)
    )
    for count in (64, 75):
        a, b = random(dtype, count, m, k), random(dtype, count, k, n)
        a[3], b[5] = 0.0, -0.0
        turned = np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2)
        across = np.ascontiguousarray(b.swapaxes(1, 2)).swapaxes(1, 2)
        apart = np.concatenate([b, b], axis=1)[:, :k]  # matrices that do not lie side by side
        for x, y in ((a, b), (turned, b), (a, across), (turned, across), (a, apart), (a[:1], b)):
            before = len(made)
            got = matmul(x, y)
            assert len(made) == before + 1
            x = np.broadcast_to(x, a.shape)
            expected = np.stack([order.product(p, q) for p, q in zip(x, y, strict=True)])
            np.testing.assert_array_equal(got, expected)
            assert np.array_equal(np.signbit(got), np.signbit(expected))


@pytest.mark.parametrize("dtype", ALL)
def test_empty(dtype):
    for m, n, k in [(0, 3, 2), (3, 0, 2), (0, 0, 0)]:
        assert matmul(random(dtype, m, k), random(dtype, k, n)).shape == (m, n)
    assert matmul(random(dtype, 0, 3, 2), random(dtype, 2, 4)).shape == (0, 3, 4)
    zeros = matmul(random(dtype, 2, 3, 0), random(dtype, 0, 5))
    assert zeros.shape == (2, 3, 5) and not zeros.any()


@pytest.mark.parametrize("m,n,k", [(300, 260, 200), (1, 900, 700), (900, 1, 700)])
def test_shapes_of_each_kernel(m, n, k):
    check(random("float32", m, k), random("float32", k, n))
    check(random("float32", k, m).T, random("float32", n, k).T)
    check(random("float32", 2, m, 2 * k)[..., ::2], random("float32", k, n))


@pytest.mark.parametrize("dtype", ALL)
def test_tiles_cover_large_products(dtype):
    check(random(dtype, 301, 515), random(dtype, 515, 333))
    check(random(dtype, 2, 7, 300), random(dtype, 2, 300, 1111))


@pytest.mark.parametrize("m,n", [(8, 9), (1, 70), (70, 1), (130, 130)])
def test_old_contents_of_memory_do_not_matter(m, n):
    """The output starts as whatever the allocator hands out: here, NaN."""
    program, buffers, _ = product(random("float32", m, 64), random("float32", 64, n))
    expected = bytes(program(*buffers))
    for _ in range(3):
        stale = native.empty(len(expected))
        memoryview(stale)[:] = b"\xff" * len(expected)
        del stale
        assert bytes(program(*buffers)) == expected
    assert np.isfinite(np.frombuffer(expected, np.float32)).all()


@pytest.mark.parametrize("dtype", EXACT)
def test_nan_and_infinity_stay_in_their_rows(dtype):
    a = random(dtype, 4, 6)
    a[1, 2], a[3, 0] = np.nan, np.inf
    got = matmul(a, (np.abs(random(dtype, 6, 5)) + 1).astype(dtype))
    assert np.isnan(got[1]).all() and np.isfinite(got[[0, 2]]).all()
    assert not np.isfinite(got[3]).any()


@pytest.mark.parametrize("m,n,k", [(300, 280, 150), (1, 3000, 400), (64, 64, 5000)])
def test_bits_do_not_depend_on_run_or_threads(m, n, k):
    program, buffers, _ = product(random("float32", 2, m, k), random("float32", k, n))
    before = native.get_threads()
    try:
        found = set()
        for threads in (1, 2, 3, 2, 1):
            native.set_threads(threads)
            found.add(bytes(program(*buffers)))
    finally:
        native.set_threads(before)
    assert len(found) == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_rounds_the_float32_product_once(dtype):
    a, b = random(dtype, 33, 40), random(dtype, 40, 21)
    wide = matmul(a.astype(np.float32), b.astype(np.float32))
    assert matmul(a, b).tobytes() == wide.astype(a.dtype).tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_edges(dtype):
    """Ties to even, overflow, subnormal numbers and NaN, as the NumPy conversion has them."""
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 16, 4096, dtype=np.uint16)
    x = bits.view(dtypes.as_dtype(dtype).numpy)
    factor = np.asarray([[1.0078125]], x.dtype)
    with np.errstate(all="ignore"):
        expected = (x.astype(np.float32) * factor.astype(np.float32)[0]).astype(x.dtype)
    got = matmul(x[:, None], factor)[:, 0]
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(got), nan)
    assert np.array_equal(got[~nan] + 0, expected[~nan] + 0)


def test_other_dtypes_are_refused():
    for dtype in (dtypes.int32, dtypes.bool_):
        with pytest.raises(DTypeError, match=dtype.name):
            matmul_program(dtype, (), 2, 2, 2, (2, 1), (2, 1))


def test_no_product_needs_a_library():
    code = """
import pullback as pb
from pullback.runtime.cpu.gemm.cut import cut_of
from pullback.runtime.cpu.linalg import openblas
for dtype in ("float64", "complex64"):
    pb.ones((2, 2), dtype=dtype) @ pb.ones((2, 2), dtype=dtype)
assert openblas.handle.cache_info().currsize == 0
pb.linalg.svd(pb.ones((2, 2), dtype="complex64"))
assert openblas.handle.cache_info().currsize == 1
"""
    source = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": source, "OPENBLAS_NUM_THREADS": "3"}
    code += "import os; assert os.environ['OPENBLAS_NUM_THREADS'] == '3'"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_a_missing_library_is_an_error(monkeypatch):
    monkeypatch.setattr(openblas, "_load", lambda package, stem: None)
    openblas.handle.cache_clear()
    with pytest.raises(DeviceError, match="scipy-openblas32"):
        openblas.handle()


@pytest.fixture(params=[128, 256, 512])
def each_width(request, monkeypatch):
    """Kernels for each width of vectors; LLVM cuts those that are too wide for this machine."""
    kernels = (
        direct_gemm._block,
        cast(Any, cut_of).__wrapped__,  # in whole blocks, whose sides are numbers of vectors
        panel_gemm.panel_kernel,
        packed_gemm.copy_kernel,
        packed_gemm.tile_kernel,
        transpose_code.transpose_kernel,
        complex_gemm.join_kernel,
        vector_gemm.chunks_kernel,
        vector_gemm.dots_kernel,
        vector_gemm.rows_kernel,
        vector_gemm.sum_kernel,
    )
    monkeypatch.setattr(jit.Host, "vector_bits", request.param)
    for cached in kernels:
        cached.cache_clear()
    yield
    for cached in kernels:
        cached.cache_clear()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_blocks_of_every_shape(dtype, each_width):
    for m in (1, 2, 3, 5, 8, 13, 17):
        for n in (1, 3, 8, 9, 16, 23, 40, 70):
            for k in (1, 2, 5, 33):
                a, b = random(dtype, m, k), random(dtype, k, n)
                check(a, b)
                check(np.asfortranarray(a), b)
                check(a, np.asfortranarray(b))
                check(random(dtype, m, 2 * k)[:, ::2], b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "m,n,k",
    [(30, 300, 600), (201, 300, 600), (1, 301, 600), (13, 1100, 40), (1, 5, 9001), (2, 301, 600)],
)
def test_large_products_with_each_width(m, n, k, dtype, each_width):
    for a, b in layouts(random(dtype, m, k), random(dtype, k, n)):
        check(a, b)


def layouts(a: np.ndarray, b: np.ndarray):
    """The same matrices as rows, as columns, spread out, backwards."""

    def each(x: np.ndarray):
        wide = np.zeros((2 * x.shape[0], 3 * x.shape[1]), x.dtype)
        wide[::2, ::3] = x
        return x, np.asfortranarray(x), wide[::2, ::3], x[::-1, ::-1].copy()[::-1, ::-1]

    return itertools.product(each(a), each(b))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "m,n,k",
    [
        *[(1, 5, 300), (2, 3, 7), (5, 40, 700), (40, 60, 70), (100, 300, 600), (1, 600, 1100)],
        *[(600, 1, 1100), (7, 9, 3000), (1, 1, 70001), (64, 64, 1500), (25, 520, 257)],
        *[(1, 700, 5003), (3, 1, 40001), (1, 50000, 3), (1, 13, 20000), (1, 5, 30)],
        *[(2, 700, 5003), (2, 13, 3000), (1, 3, 5000), (1, 1, 1000), (2, 1, 20001)],
        *[(48, 129, 700), (49, 129, 700), (7, 1000, 260)],
        *[(96, 256, 256), (96, 257, 256), (47, 256, 256)],
    ],
)
def test_bits_do_not_depend_on_layout(m, n, k, dtype):
    """They are those of one order, whichever kernel makes the product."""
    a, b = random(dtype, m, k), random(dtype, k, n)
    a[0, 0], b[0, 0] = -0.0, 0.0
    found = {matmul(*pair).tobytes() for pair in layouts(a, b)}
    assert len(found) == 1
    whole = matmul(a, b)
    for x, y in layouts(b.T, a.T):
        assert matmul(x, y).T.tobytes() == whole.tobytes()
    batch = matmul(np.stack([a, -a]), b)
    assert batch[0].tobytes() == whole.tobytes() and batch[1].tobytes() == (-whole).tobytes()
    for rows, columns in ((slice(m // 2, m), slice(None)), (slice(None), slice(n // 3, n))):
        part = matmul(a[rows], b[:, columns])
        assert part.tobytes() == whole[rows, columns].tobytes()


@pytest.mark.parametrize("threads", [1, 3, 16])
def test_copies_that_threads_share(threads, monkeypatch):
    """In pieces of k, for each matrix or one for all; the bits are those of a tile alone."""
    monkeypatch.setattr(native, "get_threads", lambda: threads)
    monkeypatch.setattr(products, "_SHARED_FLOPS", 1)
    a, b = random("float32", 2, 3, 150, 700), random("float32", 3, 700, 190)
    shared = random("float32", 700, 190)
    wanted = [matmul(a[0, :, :100], b), matmul(a[0, :, :100], shared)]
    for most in (1, 1 << 22, 1 << 25):
        monkeypatch.setattr(products, "_MOST_COPIED", most)
        for right, part in zip((b, shared), wanted, strict=True):
            for x in (a, np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)):
                whole = matmul(x, right)
                assert whole[0, :, :100].tobytes() == part.tobytes()
                check(x, right)
        check(a[0, 0], b)


def test_tiles_are_enough_for_all_threads():
    for threads in (1, 2, 4, 8, 16, 64):
        for m, n in ((256, 256), (256, 1024), (2048, 2048)):
            tiles = cut_of(dtypes.float32, m, n, 256, 1, threads).tiles(m, n)
            assert tiles >= min(threads, m * n // 4096)


def test_bits_of_a_batch_do_not_depend_on_layout():
    a, b = random("float32", 3, 40, 1000), random("float32", 1000, 1)
    other = np.ascontiguousarray(a.transpose(1, 0, 2)).transpose(1, 0, 2)
    assert matmul(a, b).tobytes() == matmul(other, b).tobytes()
    assert matmul(a, b).tobytes() == matmul(a, np.stack([b] * 3)).tobytes()


def test_the_order_of_sums():
    """Fused multiply-adds in chunks of k, and the chunks one after another."""
    a, b = random("float32", 3, 700), random("float32", 700, 70)
    total = None
    for first in range(0, 700, order.CHUNK):
        part = np.zeros((3, 70), np.float32)
        for k in range(first, min(first + order.CHUNK, 700)):
            exact = a[:, k, None].astype(np.float64) * b[k].astype(np.float64)
            part = (exact + part).astype(np.float32)
        total = part if total is None else total + part
    differing = (matmul(a, b) != total).mean()  # float64 rounds twice, seldom to another float32
    assert differing < 0.02


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize(
    "m,n,k",
    [
        *[(1, 1, 1), (4, 4, 4), (3, 7, 5), (1, 30, 17), (6, 1, 5), (40, 70, 300), (2, 20, 600)],
        *[(1, 700, 300), (1, 3, 1100), (1, 1, 5000), (9, 1, 2001), (100, 130, 70)],
    ],
)
def test_bits_of_complex_products_are_those_of_real_ones(m, n, k, dtype):
    """Whatever the layout, the batch and which operand is the vector."""
    a, b = random(dtype, m, k), random(dtype, k, n)
    a[0, 0], b[0, 0] = -0.0, 0.0
    split = [[np.real(x).copy(), np.imag(x).copy()] for x in (a, b)]
    parts = [[matmul(x, y) for y in split[1]] for x in split[0]]
    expected = np.empty((m, n), dtype)
    expected.real = parts[0][0] - parts[1][1]
    expected.imag = parts[0][1] + parts[1][0]
    for x, y in layouts(a, b):
        assert matmul(x, y).tobytes() == expected.tobytes()
        assert matmul(y.T, x.T).T.tobytes() == expected.tobytes()
        for i, j in ((np.stack([-x, x]), y), (x, np.stack([-y, y])), (x[None], y[None])):
            assert matmul(i, j)[-1].tobytes() == expected.tobytes()


@pytest.mark.parametrize("m,n,k", [(64, 64, 4096), (5, 7, 1025), (100, 64, 1000), (3, 3, 2047)])
def test_long_sums_have_the_same_bits_on_any_threads(m, n, k, threads):
    """A long k is cut in parts."""
    a, b = random("float32", m, k), random("float32", k, n)
    check(a, b)
    found = set()
    for count in (1, 2, 3):
        threads(count)
        found.add(matmul(a, b).tobytes())
    assert len(found) == 1
