"""The device "webgpu": the programs of the CPU, with its bits."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from cuda_registry import same_bits
from device_programs import FUNCTIONS
from device_programs import draw as drawn
from pullback.core import pytrees
from pullback.core.errors import IndexOutOfRange
from pullback.runtime.webgpu.gpu import Gpu
from webgpu_device import needs_adapter, without_subnormal

pytestmark = needs_adapter
draw = functools.partial(drawn, scale=20.0)


def both(f: Callable[..., Any], *arrays: np.ndarray) -> list[tuple[Any, Any]]:
    """The results on the GPU and on the CPU."""
    found = [
        pytrees.leaves(f(*[pb.tensor(a, device=where) for a in arrays]))
        for where in ("webgpu", "cpu")
    ]
    return list(zip(*found, strict=True))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_have_the_bits_of_the_cpu(name: str):
    for x, y in both(FUNCTIONS[name], draw(40, 70)):
        assert str(x.device) == "webgpu:0"
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        assert same_bits(without_subnormal(x.numpy()), without_subnormal(y.numpy()))


# On both sides of every threshold: a sequence, one block, groups of blocks, two joins of groups.
@pytest.mark.parametrize("length", [1, 31, 32, 1023, 1025, 16385, 70_000, 300_001])
def test_sums_are_the_trees_of_the_cpu(length: int):
    array = draw(3, length)
    for x, y in both(lambda x: (x.sum(axis=1), x.T.sum(axis=0), pb.argmin(x, axis=1)), array):
        assert same_bits(x.numpy(), y.numpy())


DTYPES = ("bool", "int8", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16")


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_dtypes_but_doubles(dtype: str):
    def f(x: Any, y: Any) -> Any:
        a, b = x.astype(dtype), y.astype(dtype)
        if dtype == "bool":
            return a & b, a ^ b, pb.concat([a, b])[1:].sum()
        found = [a * b - a, a > b, pb.concat([a, b])[1::2], a.astype("float32"), a.astype("int32")]
        return [*found, a // (b | 1), a % (b | 1), a >> 1] if a.dtype.is_integer else found

    array = draw(1001) * 3
    array[:8] = 0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3e38, -3e38
    if dtype == "bfloat16":  # whose subnormal numbers are those of float32
        array = without_subnormal(array)
    for x, y in both(f, array, array[::-1].copy()):
        assert x.dtype is y.dtype and same_bits(x.numpy(), y.numpy())


def test_complex_numbers_are_pairs():
    z = draw(50, dtype="complex64")
    for x, y in both(lambda z: (z * z[::-1] - z, z / z[::-1], pb.abs(z), pb.conj(z).sum()), z):
        assert same_bits(x.numpy(), y.numpy())


def test_random_numbers_are_those_of_the_cpu():
    for x, y in both(lambda _: pb.random.uniform(pb.random.key(3), (1001,)), draw(1)):
        assert same_bits(x.numpy(), y.numpy())


def test_views_and_writes():
    def f(x: Any) -> Any:
        y = x[3:] * 1.0
        y[2:5] = x[:3]
        y[::2] += 1.0
        mask = y > 0
        mask[1:3] = False
        return y, mask

    for x, y in both(f, draw(67)):
        assert same_bits(x.numpy(), y.numpy())


def test_loops_and_branches():
    def f(x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            carry = pb.cond((row > 0).all(), lambda c: c + row, lambda c: c * row, carry)
            return carry, carry * 2.0

        last, every = pb.scan(step, pb.zeros_like(x[0]), x)
        big = pb.while_loop(lambda v: (v < 100.0).all(), lambda v: v * 1.5 + 1.0, pb.abs(last))
        return big, every

    def straight(x: Any) -> Any:
        return pb.scan(lambda c, row: (c * 0.5 + row, c), pb.zeros_like(x[0]), x)

    array = draw(5, 3)
    for length in (4, 5):  # an odd and an even number of rounds leave carries in different places
        for g in (f, straight):
            compiled = pb.jit(g)
            for _ in range(2):  # the second time what was recorded runs again
                for x, y in both(compiled, array[:length]):
                    assert same_bits(x.numpy(), y.numpy())


INDICES = np.array([3, -1, 0, 3, 3, 1, -4, 3])
READS: dict[str, Callable[..., Any]] = {
    "rows": lambda x, i: pb.take(x, i, axis=0),
    "columns": lambda x, i: pb.take(x.T, i, axis=1),
    "elements": lambda x, i: x[i, i],
    "narrow": lambda x, i: pb.take(x, i.astype("int8"), axis=0),
}


@pytest.mark.parametrize("name", READS)
def test_reads_at_indices(name: str):
    for x, y in both(READS[name], draw(13, 37), INDICES):
        assert same_bits(x.numpy(), y.numpy())


FAULTS: dict[str, Callable[..., Any]] = {
    "eager": lambda x, i: pb.take(x, i, axis=0),
    "compiled": pb.jit(lambda x, i: pb.take(x * 2.0, i + 1, axis=0) + 1.0),
    "several": lambda x, i: x[i[None], i[:, None]],
    "in a loop": pb.jit(lambda x, i: pb.scan(lambda c, k: (c + x[k], c), x[0], i)[0]),
    "of two": pb.jit(lambda x, i: x[i % 9] + x[i]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_first_bad_index_is_told(name: str):
    said = []
    for device in ("webgpu", "cpu"):
        x = pb.tensor(draw(9, 9), device=device)
        with pytest.raises(IndexError) as caught:
            FAULTS[name](x, pb.tensor(np.array([1, 2, -11, 12]), device=device)).numpy()
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_nobody_waits_to_see_that_indices_are_good(monkeypatch: pytest.MonkeyPatch):
    x = pb.tensor(draw(9, 9), device="webgpu")
    gpu = vars(x.device.runtime)["_gpu"]
    good, bad = (pb.tensor(np.array([1, k]), device="webgpu") for k in (-9, 9))
    x.numpy()
    with monkeypatch.context() as patch:
        patch.setattr(gpu, "download", None)
        first, second = pb.take(x, good, axis=0), pb.take(x, bad, axis=0)
        x = x + 1.0
    with pytest.raises(IndexError, match="index 9 is out of range"):
        x.numpy()
    assert same_bits((first + 1.0).numpy(), x.numpy()[[1, 0]]) and second.shape == (2, 9)
    for _ in range(300):  # more than are kept open
        first = pb.take(x, good, axis=0)
    assert same_bits(first.numpy(), x.numpy()[[1, 0]])


def test_requirements():
    def f(x: Any, flags: Any) -> Any:
        return pb.primitive.require(x, flags > 0, "f", "is wrong.") * 2.0

    x, flags = draw(5, 2), np.array([1.0, 1, -1, 1, -1], np.float32)
    for g in (f, pb.jit(f)):
        for a, b in both(g, x, abs(flags)):
            assert same_bits(a.numpy(), b.numpy())
        with pytest.raises(pb.LinAlgError, match=r"^f: the matrix at 2 of the batch is wrong\."):
            g(pb.tensor(x, device="webgpu"), pb.tensor(flags, device="webgpu")).numpy()


def test_doubles_are_refused_with_a_hint():
    for make in (
        lambda: pb.tensor(np.ones(3), device="webgpu"),
        lambda: pb.ones(3, dtype="float64", device="webgpu"),
        lambda: pb.ones(3, device="webgpu").astype("float64"),
    ):
        with pytest.raises(pb.DTypeError, match=r"webgpu has no float64\. Use float32"):
            make()
    with pytest.raises(pb.DTypeError, match=r"webgpu has no complex128\. Use complex64"):
        pb.tensor(np.ones(3) * 1j, device="webgpu")
    with pytest.raises(pb.DTypeError, match=r"webgpu has no complex128\. Use complex64"):
        pb.jit(lambda x: x.astype("complex128") * 2.0)(pb.ones(3, device="webgpu"))


@pytest.mark.parametrize("change", [lambda f: f, pb.jit, pb.grad], ids=["eager", "jit", "grad"])
def test_a_class_out_of_range_is_an_error_that_says_so(change: Any):
    loss = change(lambda x, target: pb.nn.cross_entropy(x, target, ignore_index=9))
    fine = pb.tensor([0, 9], device="webgpu")
    assert np.isfinite(loss(pb.ones((2, 3), device="webgpu"), fine).numpy()).all()
    said = (
        r"^cross_entropy: the class at 1 of the batch is out of range, there are 3 classes\."
        r" Targets that do not count equal ignore_index\.$"
    )
    for bad in ([0, 5], [2, -1]):
        with pytest.raises(IndexOutOfRange, match=said):
            loss(pb.ones((2, 3), device="webgpu"), pb.tensor(bad, device="webgpu")).numpy()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_quantiles_without_nan_need_no_arrays_of_float64(dtype: str):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((40, 31)).astype(dtype)
    x[rng.random(x.shape) < 0.3], x[0] = np.nan, np.nan

    def f(x: Any) -> Any:
        return pb.nanmedian(x, axis=1), pb.nanquantile(x, [0.0, 0.41, 1.0], axis=0)

    found, expected = (f(pb.tensor(x, device=d)) for d in ("webgpu", "cpu"))
    for a, b in zip(found, expected, strict=True):
        assert same_bits(a.numpy(), b.numpy())


def test_loops_that_a_driver_would_end_early_are_an_error(monkeypatch: pytest.MonkeyPatch):
    """Mesa's software driver ends them without a word after 65535 rounds."""
    gpu = vars(pb.device("webgpu").runtime)["_gpu"]
    monkeypatch.setattr(gpu, "most_rounds", 1000)
    x = pb.ones((2, 3001), device="webgpu")
    wide = pb.ones((200, 201), device="webgpu")
    for f in (
        lambda: x @ x.mT,
        lambda: pb.cumulative_sum(x, axis=1),
        lambda: pb.linalg.svd(wide),
        lambda: pb.linalg.eig(wide[:, 1:]),
    ):
        with pytest.raises(pb.DeviceError, match="ends loops after 1000 rounds, and one here has"):
            f()
    assert x.sum().numpy() == 6002


def test_memory_is_released_by_any_thread_while_another_one_waits():
    """wgpu's own thread collects garbage, and whoever waits for a read waits for that thread."""
    gpu = vars(pb.device("webgpu").runtime)["_gpu"]
    held = [pb.ones(5, device="webgpu")]
    with gpu.lock:
        other = threading.Thread(target=held.clear, daemon=True)
        other.start()
        other.join(timeout=20)
        assert not other.is_alive()


def test_an_adapter_that_is_not_there_is_an_error():
    with pytest.raises(pb.DeviceError, match="looked for adapter 99, got"):
        pb.ones(3, device="webgpu:99")


def test_memory_is_not_shared_with_other_libraries():
    with pytest.raises(pb.ExchangeError, match="nobody else can use the memory of WebGPU"):
        np.from_dlpack(pb.ones(3, device="webgpu"))


def test_memory_comes_back():
    """A long computation with small results does not grow."""
    x = pb.ones((1 << 18,), device="webgpu")
    gpu = vars(x.device.runtime)["_gpu"]
    for _ in range(3):
        x = x * 0.5 + 1.0
    x.numpy()
    before = gpu._number
    for _ in range(300):
        x = x * 0.5 + 1.0
    x.numpy()
    assert gpu._number - before < 100


def test_a_lost_device_is_an_error():
    gpu = Gpu(0)
    gpu._device.destroy()
    with pytest.raises(pb.DeviceError, match=r"the device 0 was lost: .* start the program anew"):
        gpu.empty(1 << 20)


def test_what_ran_before_runs_again_on_other_memory():
    """Commands are kept for the buffers they were made for, and made anew for others."""

    @pb.jit
    def f(x: Any) -> Any:
        return pb.sort(x * 2.0) + x.sum()

    given = [pb.tensor(np.arange(50, dtype=np.float32) + k, device="webgpu") for k in range(12)]
    for _ in range(3):
        for k, x in enumerate(given):
            expected = np.sort((np.arange(50) + k) * 2.0) + 1225 + 50 * k
            assert np.array_equal(f(x).numpy(), expected)


def test_a_kernel_may_read_more_arrays_than_an_adapter_binds(monkeypatch: pytest.MonkeyPatch):
    x = [pb.tensor(draw(7) + k, device="webgpu") for k in range(12)]
    gpu = vars(x[0].device.runtime)["_gpu"]
    monkeypatch.setattr(gpu, "most_buffers", 4)
    bound: list[int] = []
    group = gpu.group
    monkeypatch.setattr(
        gpu, "group", lambda *given: (bound.append(len(given[2])), group(*given))[1]
    )

    def total(values: Any) -> Any:
        return sum(v * (k + 1.0) for k, v in enumerate(values))

    found = pb.jit(lambda *v: (total(v), total(v[::-1])[1:] * 2.0))
    for given in (x, x[::-1], [v[1:] for v in x]):
        expected = [total(given), total(given[::-1])[1:] * 2.0]
        bound.clear()
        results = found(*given)
        assert max(bound) <= 4
        for a, b in zip(results, expected, strict=True):
            assert same_bits(a.numpy(), b.numpy())


def test_profiles():
    f = pb.jit(lambda x: pb.sort(x * 2.0) + x.sum())
    rows = pb.profile(f)(pb.tensor(draw(300), device="webgpu")).rows
    assert rows and all(row.seconds >= 0.0 and row.nbytes for row in rows)
