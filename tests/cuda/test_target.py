"""The device "cuda" on the emulator: the programs of the CPU, with the bits of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cuda_fake
import pullback as pb
from cuda_device import emulated
from cuda_emulator import COMPILER
from cuda_registry import same_bits
from device_programs import FUNCTIONS, draw
from generated.matrix import FULL
from pullback.core import pytrees
from pullback.runtime.cpu import routines as cpu_routines
from pullback.runtime.cuda import products
from pullback.runtime.cuda.attention.attention_stages import NAMES as ATTENTION

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")


@pytest.fixture(scope="module")
def cuda() -> Iterator[Any]:
    with emulated() as device:
        yield device


def sample(*dtypes: str) -> tuple[str, ...]:
    """All dtypes, or the first two: each compiles kernels of its own."""
    return dtypes if FULL else dtypes[:2]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_have_the_bits_of_the_cpu(name: str, cuda: Any):
    array = draw(40, 70)
    found, expected = (
        pytrees.leaves(FUNCTIONS[name](pb.tensor(array, device=where))) for where in (cuda, "cpu")
    )
    for x, y in zip(found, expected, strict=True):
        assert x.device is cuda
        np.testing.assert_array_equal(x.numpy(), y.numpy())


def test_arrays_start_anywhere(cuda: Any):
    """What starts at no multiple of 16 bytes is not read several elements at a time."""
    array = draw(67)
    x = pb.tensor(array, device=cuda)
    for start in (1, 3, 4):
        np.testing.assert_array_equal((x[start:] + 1.0).numpy(), array[start:] + np.float32(1))


def test_loops_and_branches(cuda: Any):
    def f(x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            carry = pb.cond((row > 0).all(), lambda c: c + row, lambda c: pb.sin(c) * row, carry)
            return carry, carry * 2.0

        last, every = pb.scan(step, pb.zeros_like(x[0]), x)
        big = pb.while_loop(lambda v: (v < 100.0).all(), lambda v: v * 1.5 + 1.0, pb.abs(last))
        return big, every

    array = draw(5, 3)
    for length in (4, 5):  # an odd and an even number of rounds leave carries in different places
        results = [pb.jit(f)(pb.tensor(array[:length], device=d)) for d in (cuda, "cpu")]
        for x, y in zip(*results, strict=True):
            np.testing.assert_array_equal(x.numpy(), y.numpy())


INDICES = np.array([3, -1, 0, 3, 3, 1, -4, 3])


INDEXED: dict[str, Callable[..., Any]] = {
    "rows": lambda x, i: pb.take(x, i, axis=0),
    "columns": lambda x, i: pb.take(x.T, i, axis=1),
    "elements": lambda x, i: x[i, i],
    "set": lambda x, i: pb.scatter(x, i, x[4:12] * 2.0),
    "sums": lambda x, i: pb.scatter_add(x, i, x[4:12] * 2.0),
    "gradient": pb.jit(pb.grad(lambda x, i: (pb.take(x, i, axis=0) ** 2).sum())),
    "argsort": lambda x, i: pb.argsort(x, descending=True),
    "sorted": lambda x, i: pb.sort(x, axis=0),
    "search": lambda x, i: pb.searchsorted(pb.sort(x[0]), x),
}


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("dtype", sample("float32", "float64"))
def test_indices_and_sorts_have_the_bits_of_the_cpu(name: str, dtype: str, cuda: Any):
    array = draw(13, 37, dtype=dtype)
    array[2, :5] = np.nan, -0.0, 0.0, np.inf, np.nan
    found, expected = (
        INDEXED[name](pb.tensor(array, device=d), pb.tensor(INDICES, device=d))
        for d in (cuda, "cpu")
    )
    assert found.device is cuda
    np.testing.assert_array_equal(found.numpy(), expected.numpy())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex128", "bool"])
@pytest.mark.parametrize("start", [0, 1, 8])
def test_rows_are_read_several_elements_at_a_time(dtype: str, start: int, cuda: Any):
    array = pb.tensor(draw(13, 2, 48)).astype(dtype)
    indices = np.array([[3, -1], [12, 0], [7, 7]])
    f = pb.jit(lambda x, i: (pb.take(x[:, :, start:], i, axis=0), x[i, 1], x[i][..., :4]))
    found, expected = (f(array.to_device(d), pb.tensor(indices, device=d)) for d in (cuda, "cpu"))
    for x, y in zip(found, expected, strict=True):
        assert same_bits(x.numpy(), y.numpy())


FAULTS: dict[str, Callable[..., Any]] = {
    "eager": lambda x, i: pb.take(x, i, axis=0),
    "compiled": pb.jit(lambda x, i: pb.take(x * 2.0, i + 1, axis=0) + 1.0),
    "several": lambda x, i: x[i[None], i[:, None]],
    "sum": lambda x, i: pb.scatter_add(x, i, x[:4]),
    "in a loop": pb.jit(lambda x, i: pb.scan(lambda c, k: (c + x[k], c), x[0], i)[0]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_first_bad_index_is_told(name: str, cuda: Any):
    """At the latest when a result is read, by the name of the operation, and once."""
    said = []
    for device in (cuda, "cpu", cuda):
        x = pb.tensor(draw(9, 9), device=device)
        with pytest.raises(IndexError) as caught:
            FAULTS[name](x, pb.tensor(np.array([1, 2, -11, 12]), device=device)).numpy()
        said.append(str(caught.value).partition(":")[2])
        np.testing.assert_array_equal((x + 1.0).numpy(), draw(9, 9) + np.float32(1))
    assert said[0] == said[1] == said[2]


PRODUCTS = {
    "tiles": ((70, 300), (300, 65)),
    "batch": ((3, 1, 7, 20), (2, 20, 5)),
    "vector": ((7, 600), (600,)),
    "one row": ((5000,), (5000, 9)),
    "one column": ((9, 5000), (5000,)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "complex64", "complex128"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_have_the_bits_of_the_cpu(name: str, dtype: str, cuda: Any):
    arrays = [draw(*shape, dtype=dtype) for shape in PRODUCTS[name]]
    turned = [np.ascontiguousarray(a.T) for a in arrays]  # the same, in another layout
    with pb.matmul_precision("highest"):
        found, expected = (
            pb.matmul(*[pb.tensor(a, device=d) for a in arrays]) for d in (cuda, "cpu")
        )
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
        if arrays[0].ndim == arrays[1].ndim == 2:
            other = pb.matmul(*[pb.tensor(a, device=cuda).T for a in turned])
            np.testing.assert_array_equal(other.numpy(), expected.numpy())


@pytest.mark.parametrize("precision", ["default", "highest"])
def test_products_of_nothing_read_nothing(
    precision: str, cuda: Any, monkeypatch: pytest.MonkeyPatch
):
    """Arrays without elements have no memory."""
    monkeypatch.setattr(products, "widened_steps", lambda *_: pytest.fail("operands are copied"))
    x, y = (pb.tensor(draw(*shape, dtype="float16"), device=cuda) for shape in ((2, 0), (0, 3)))
    with pb.matmul_precision(precision):
        np.testing.assert_array_equal(pb.matmul(x, y).numpy(), np.zeros((2, 3), "float16"))


def test_there_are_kernels_for_every_intrinsic_of_the_cpu(cuda: Any):
    own = set(cuda.runtime.target.routines) - set(ATTENTION)  # which only matrix units compute
    assert own == set(cpu_routines.ROUTINES)


def test_devices_do_not_mix(cuda: Any):
    x = pb.ones(3, device=cuda)
    with pytest.raises(pb.DeviceError, match="different devices, got cuda:0 and cpu"):
        pb.add(x, pb.ones(3))
    assert (x.cpu() + pb.ones(3)).tolist() == [2.0] * 3


def test_a_gpu_that_is_not_there_is_an_error(cuda: Any):
    with pytest.raises(pb.DeviceError, match="looked for GPU 3, got 2 of them"):
        pb.ones(3, device="cuda:3")


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize(
    ("image", "kernel", "options"),
    [
        ((2, 5, 9, 8), (6, 5, 3, 2), {"stride": (2, 1), "padding": 1}),
        ((1, 6, 11), (6, 1, 3), {"groups": 6, "dilation": 2}),
        ((2, 40, 30), (33, 40, 1), {}),  # blocks of channels; a product, last and not
        ((2, 600, 5, 3), (4, 300, 1, 1), {"groups": 2}),  # chunks of channels
        ((1, 200, 20), (3, 200, 5), {"padding": 2}),
        ((9, 2, 33, 40), (5, 2, 3, 3), {"padding": 1}),  # chunks of tiles
        ((2, 8, 60), (8, 8, 37), {"padding": 3}),  # bits of a pixel in 64, and more than these
        ((1, 2, 90), (3, 2, 70), {}),
    ],
)
def test_convolutions_have_the_bits_of_the_cpu(
    image: Any, kernel: Any, options: Any, layout: str, cuda: Any
):
    array = draw(*image)
    array = np.ascontiguousarray(np.moveaxis(array, 1, -1)) if layout[9:] == "last" else array

    convolve = pb.nn.conv2d if len(image) == 4 else pb.nn.conv1d

    def loss(x: Any, w: Any) -> Any:
        return (convolve(x, w, layout=layout, **options) ** 2).sum()

    step = pb.grad(loss, argnums=(0, 1))
    found, expected = (
        step(pb.tensor(array, device=d), pb.tensor(draw(*kernel), device=d)) for d in (cuda, "cpu")
    )
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy())


def test_functions_of_the_host(cuda: Any):
    def f(x: Any) -> Any:
        like = pb.zeros((4,), dtype="float32")
        return pb.pure_callback(lambda a: a * 3.0, like, pb.exp(x)) + 1.0

    found, expected = (
        pb.jit(f)(pb.tensor([1.0, 2.0, 3.0, 4.0], device=d)).numpy() for d in (cuda, "cpu")
    )
    np.testing.assert_array_equal(found, expected)

    def fails(a: np.ndarray) -> np.ndarray:
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError, match="no"):
        pb.pure_callback(fails, pb.zeros(4, device=cuda), pb.ones(4, device=cuda))


@pytest.mark.parametrize("dtype", sample("float32", "float64", "int32", "complex64", "bool"))
@pytest.mark.parametrize(
    ("count", "rows", "width"),
    [(40_003, 20, 1), (70_001, 100, 1), (33_000, 30, 3), (8_200, 2, 4)],  # pairs, lanes, columns
)
def test_sums_into_few_rows_have_the_order_of_the_cpu(
    count: int, rows: int, width: int, dtype: str, cuda: Any
):
    rng = np.random.default_rng(0)
    x, updates = draw(rows, width, dtype=dtype), draw(count, width, dtype=dtype)
    indices = rng.integers(-rows, rows, count)
    found, expected = (
        pb.scatter_add(
            pb.tensor(x, device=d), pb.tensor(indices, device=d), pb.tensor(updates, device=d)
        ).numpy()
        for d in (cuda, "cpu")
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", sample("float32", "bfloat16", "complex64", "float16"))
def test_exact_sums_have_the_bits_of_the_cpu(dtype: str, cuda: Any):
    rng = np.random.default_rng(1)
    reach = 4 if dtype == "float16" else 25
    updates = draw(600, 2, dtype="float64") * 10.0 ** rng.integers(-reach, reach, (600, 2))
    updates[::2] = -updates[1::2]  # most of it cancels
    updates[[5, 17]] = [[np.inf], [np.nan]]
    indices = rng.integers(-20, 20, 600)
    indices[1::2] = indices[::2]
    x = draw(20, 2, dtype="float64")
    x[3:7] = [[0.0], [-0.0], [np.inf], [np.nan]]
    with np.errstate(over="ignore"):
        arrays = [pb.tensor(a).astype(dtype) for a in (x, updates)]
    results = [
        pb.scatter_add(
            arrays[0].to_device(d),
            pb.tensor(indices, device=d),
            arrays[1].to_device(d),
            exact=True,
        ).numpy()
        for d in (cuda, "cpu")
    ]
    assert same_bits(*results)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_is_exchanged_by_dlpack(dtype: str, cuda: Any):
    x = (pb.tensor(draw(4, 6), device=cuda)[:, 1:4] * 2.0).astype(dtype)
    assert x.__dlpack_device__() == (2, 0)
    y = pb.from_dlpack(x.T)
    assert y.device is cuda and y.dtype == dtype and y.shape == (3, 4)
    assert same_bits(y.numpy(), x.numpy().T)
    assert same_bits((y + 1.0).numpy(), (x + 1.0).numpy().T)


def test_what_others_have_is_shared_and_not_given_away(cuda: Any):
    given = cuda_fake.asarray(draw(5)).view(cuda_fake.DeviceArray)
    shared, copied = pb.from_dlpack(given), pb.from_dlpack(given, copy=True)
    given[0] = 7.0
    assert shared.numpy()[0] == 7.0 and copied.numpy()[0] != 7.0
    with pytest.raises(pb.CopyError if hasattr(pb, "CopyError") else ValueError):
        shared.__dlpack__(copy=False)


def test_the_cuda_array_interface(cuda: Any):
    x = pb.tensor(draw(4, 6), device=cuda).T
    found = x.__cuda_array_interface__
    address, read_only = found["data"]
    assert read_only and found["strides"] == (4, 24) and found["typestr"] == "<f4"
    assert address == x._buf.address
    assert not hasattr(pb.ones(3), "__cuda_array_interface__")
