"""Products, convolutions, sorts and folds by index on webgpu: the bits of the CPU, at the edges of
their orders and schedules.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
import pullback.nn
from cuda_registry import same_bits
from generated.matrix import FULL
from pullback.compile.kernel.fused import fused
from pullback.compile.program.stages import Program
from pullback.core import pytrees
from pullback.runtime.webgpu.programs import encode
from pullback.runtime.webgpu.stages import At, Binding, Dispatch, stage
from webgpu_device import needs_adapter

pytestmark = needs_adapter
RNG = np.random.default_rng(5)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def places(size: int, *shape: int) -> np.ndarray:
    return RNG.integers(-size, size, shape)


def check(f: Callable[..., Any], *arrays: np.ndarray) -> None:
    found, expected = (
        pytrees.leaves(f(*[pb.tensor(a, device=device) for a in arrays]))
        for device in ("webgpu", "cpu")
    )
    for x, y in zip(found, expected, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype) and same_bits(x.numpy(), y.numpy())


# -- fused multiply-adds ---------------------------------------------------------------------------

_FUSED = """
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let a = bitcast<f32>(load1(3u * g.x));
  let b = bitcast<f32>(load1(3u * g.x + 1u));
  let c = bitcast<f32>(load1(3u * g.x + 2u));
  store0(2u * g.x, bitcast<u32>(f32_fma_soft(a, b, c)));
  store0(2u * g.x + 1u, bitcast<u32>(f32_fma_integers(a, b, c)));
}"""


def fused_on_device(rows: np.ndarray) -> np.ndarray:
    """Both functions that take the place of an adapter's fma."""
    gpu = vars(pb.device("webgpu").runtime)["_gpu"]
    step = Dispatch(
        _FUSED, (Binding(At(0), "u32", "write"), Binding(At(1), "u32")), (), len(rows) // 64
    )
    out = encode(gpu, Program(1, 8 * len(rows), (), (), stage(step)))(gpu.uploaded(rows))
    found = gpu.download(out.memory, 0, 8 * len(rows))
    return found.view(np.float32).reshape(-1, 2)


@pytest.mark.parametrize("spread", [1, 20, 40])
def test_multiply_adds_are_rounded_once(spread: int):
    count = 1 << 14
    rows = RNG.standard_normal((count, 3)) * 2.0 ** RNG.integers(-spread, spread, (count, 3))
    rows = rows.astype(np.float32)
    rows[::2, 2] = -(rows[::2, 0] * rows[::2, 1])  # nearly cancels
    rows[:9] = 0.0, 1.0, -0.0
    rows[9:30, 2] = rows[9:30, 0] * rows[9:30, 1] * np.float32(2.0**24)  # ties and what is near
    expected = fused(*rows.T)
    found = fused_on_device(rows)
    assert same_bits(found[:, 0], expected) and same_bits(found[:, 1], expected)


def test_a_zero_that_no_driver_knows():
    """Not even one that specialises kernels for the words of a uniform buffer."""
    check(pb.exp2, np.linspace(-20, 20, 1001, dtype=np.float32))


# -- products --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
@pytest.mark.parametrize(
    ("batch", "m", "n", "k"),
    [
        ((), 3, 4, 5),
        ((), 17, 33, 300),  # two chunks
        ((2, 3), 3, 70, 17),
        ((), 70, 3, 260),
        ((80,), 65, 5, 20),  # large tiles
        ((), 1, 70, 600),
        ((), 70, 1, 30),
        ((), 5, 2, 0),
    ],
)
def test_products(batch: tuple[int, ...], m: int, n: int, k: int, dtype: str):
    def f(x: Any, y: Any) -> Any:
        a, b = x.astype(dtype), y.astype(dtype)
        return a @ b, b.mT @ a.mT

    check(f, draw(*batch, m, k), draw(k, n))


# -- convolutions ----------------------------------------------------------------------------------


def with_gradients(f: Callable[..., Any]) -> Callable[..., Any]:
    def loss(*arrays: Any) -> Any:
        y = f(*arrays)
        return (y * y).sum()

    return lambda *arrays: (f(*arrays), pb.grad(loss, argnums=tuple(range(len(arrays))))(*arrays))


CONVOLUTIONS: dict[str, tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]] = {
    "padded": ({"padding": 1}, (2, 3, 9, 8), (5, 3, 3, 3)),
    "strided, dilated": (
        {"stride": 2, "padding": 1, "dilation": 2},
        (2, 8, 19, 18),
        (16, 8, 3, 3),
    ),
    "grouped": ({"groups": 2}, (2, 8, 9, 8), (6, 4, 3, 2)),
    "depthwise": ({"groups": 8, "padding": 1}, (2, 8, 9, 8), (8, 1, 3, 3)),
    "a product": ({}, (2, 300, 5, 8), (6, 300, 1, 1)),
    "a product of every other pixel": ({"stride": 2}, (2, 300, 5, 8), (6, 300, 1, 1)),
    "blocks of channels": ({"padding": 1}, (1, 130, 6, 6), (40, 130, 3, 3)),
    "tiles": ({"padding": 1}, (3, 4, 40, 40), (8, 4, 3, 3)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str):
    options, x, w = CONVOLUTIONS[name]
    f = with_gradients(lambda a, b: pb.nn.conv2d(a, b, **options))
    check(f, draw(*x), draw(*w))


def test_convolutions_along_one_axis_and_three():
    check(with_gradients(pb.nn.conv1d), draw(2, 70, 40), draw(33, 70, 5))
    check(with_gradients(pb.nn.conv3d), draw(2, 4, 5, 6, 7), draw(3, 4, 3, 3, 3))


def test_pooling():
    x = draw(2, 3, 19, 18)
    x[0, 0, 3, 3] = np.nan
    check(with_gradients(lambda a: pb.nn.max_pool2d(a, 3, stride=2, padding=1)), x)
    check(with_gradients(lambda a: pb.nn.avg_pool2d(a, 3, stride=2)), draw(2, 3, 19, 18))


# -- sorts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bool", "int8", "uint16", "int64"])
def test_sorts(dtype: str):
    x = np.round(draw(3, 200) * 3, 1)
    x[0, 3:5] = -0.0, 0.0
    if dtype.startswith("float"):
        x[:, ::7], x[1, 1], x[1, 2] = np.nan, -np.inf, np.inf

    def f(a: Any) -> Any:
        a = (pb.abs(a) if dtype.startswith("u") else a).astype(dtype)
        return pb.argsort(a, axis=1), pb.argsort(a, axis=0, descending=True), pb.argsort(a[0, :5])

    check(f, x)


def test_searches():
    row = np.sort(np.round(draw(70), 1))
    check(
        lambda r, v: (pb.searchsorted(r, v), pb.searchsorted(r, v.T, side="right")),
        row,
        np.round(draw(4, 50), 1),
    )


# -- folds by index --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bool", "int8", "int64", "complex64"])
@pytest.mark.parametrize("mode", ["add", "mul", "max", "set"])
def test_folds_by_index(mode: str, dtype: str):
    if dtype == "complex64" and mode == "max":
        pytest.skip("complex numbers have no order")

    def f(x: Any, i: Any, v: Any) -> Any:
        return pb.scatter(x.astype(dtype), i, v.astype(dtype), mode=mode)

    check(f, draw(7, 5) * 10, places(7, 40), draw(40, 5) * 10)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64"])
def test_exact_sums(dtype: str):
    def f(x: Any, i: Any, v: Any) -> Any:
        return pb.scatter_add(x.astype(dtype), i, v.astype(dtype), exact=True)

    x, v = draw(7, 5) * 10, draw(60, 5) * np.exp(8 * draw(60, 5))
    v, i = np.clip(v, -6e4, 6e4), places(7, 60)
    check(f, x, i, v)
    check(f, x * np.float32(1e-42), i, v * np.float32(1e-42))
    v[3], v[5, 0], v[7, 1] = np.inf, np.nan, -np.inf
    x[0], x[1, 1], x[2, 2] = 0, np.nan, -0.0
    check(f, x, i, v)


# Rows, columns: lanes, lanes of several columns, pairs, and too many rows for lanes.
@pytest.mark.parametrize("shape", [(500,), (30, 4), (20,), (5000,)])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_many_updates(shape: tuple[int, ...], dtype: str):
    def f(x: Any, i: Any, v: Any) -> Any:
        return pb.scatter_add(x.astype(dtype), i, v.astype(dtype))

    check(f, draw(*shape) * 9, places(shape[0], 40_003), draw(40_003, *shape[1:]) * 9)


def test_gradients_of_reads():
    def f(x: Any, i: Any, j: Any) -> Any:
        return pb.grad(lambda y: (y[i, j] ** 2).sum() + (y[i] ** 3).sum())(x)

    check(f, draw(30, 7), places(30, 50), places(7, 50))


def test_a_bad_index_leaves_what_was_there():
    x = pb.tensor(draw(5), device="webgpu")
    before = np.array(x.numpy())
    x[pb.tensor(np.array([1, 9]), device="webgpu")] = 1.0
    with pytest.raises(IndexError, match="index 9 is out of range"):
        x.numpy()
    assert same_bits(x.numpy(), before)


def test_memory_in_garbage_cycles_is_used_again():
    """wgpu releases a buffer that is part of a cycle; such memory is none of the pool's."""
    for _ in range(3):
        x = pb.ones((100,), device="webgpu")
        cycle: list[Any] = [x]
        cycle.append(cycle)
        del x, cycle
        gc.collect()
        y = pb.ones((100,), device="webgpu") * 2.0
        assert same_bits((y + 1.0).numpy(), np.full(100, 3.0, np.float32))


# -- Fourier transforms ----------------------------------------------------------------------------

LENGTHS = [
    1,
    2,
    3,
    7,
    12,
    37,
    64,
    4096,
]  # with several passes; a prime's transform is a convolution


@pytest.mark.parametrize("n", [*LENGTHS, 1000, 32769, 65536] if FULL else LENGTHS)
def test_fourier_transforms(n: int):
    rows = 3 if n < 5000 else 1
    x = (draw(rows, n) + 1j * draw(rows, n)).astype(np.complex64)
    check(lambda v: (pb.fft.fft(v), pb.fft.ifft(v.T, axis=0)), x)
    check(lambda v: pb.fft.rfft(v, axis=1, norm="ortho"), draw(1, n, 2))
    check(lambda v: pb.fft.irfft(v, n=n), x[:, : n // 2 + 1])


# -- matrices --------------------------------------------------------------------------------------


def positive(*shape: int) -> np.ndarray:
    a = draw(*shape)
    return (a @ np.swapaxes(a, -1, -2) + shape[-1] * np.eye(shape[-1])).astype(np.float32)


# Small ones, a leaf, leaves, chunks of products.
@pytest.mark.parametrize("n", [1, 3, 16, 17, 40, 300] if FULL else [3, 17, 40])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_matrices(n: int, batch: tuple[int, ...]):
    a, b = draw(*batch, n, n) + 3 * np.eye(n, dtype=np.float32), draw(*batch, n, 4)
    linalg = pb.linalg
    check(lambda x: (linalg.cholesky(x), linalg.cholesky(x, upper=True)), positive(*batch, n, n))
    check(lambda x: tuple(linalg.lu(x)), draw(*batch, n + 5, n))
    check(lambda x: tuple(linalg.lu(x)), draw(*batch, n, n + 7))
    check(lambda x, y: (linalg.solve(x, y), linalg.inv(x), linalg.det(x)), a, b)
    check(
        lambda x, y: (
            linalg.solve_triangular(x, y),
            linalg.solve_triangular(x, y, lower=True, unit_diagonal=True),
        ),
        a,
        b,
    )
    check(lambda x: pb.grad(lambda y: linalg.solve(y, y.mT @ y).sum())(x), a)


def test_what_is_wrong_with_a_matrix():
    bad = positive(2, 3, 3)
    bad[1, 1, 1] = -5
    with pytest.raises(pb.LinAlgError, match="at 1 of the batch is not positive definite"):
        pb.linalg.cholesky(pb.tensor(bad, device="webgpu")).numpy()
    with pytest.raises(pb.LinAlgError, match="solve: the matrix is singular: pivot 0 of its"):
        zero = pb.zeros((2, 2), device="webgpu")
        pb.linalg.solve(zero, zero).numpy()
