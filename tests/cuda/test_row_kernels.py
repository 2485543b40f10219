"""Row kernels on the emulator: one launch for all passes, with the bits of the CPU."""

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
from pullback.core import pytrees
from pullback.runtime.cuda import nvrtc, row_kernels

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")


@pytest.fixture(scope="module")
def cuda() -> Iterator[Any]:
    with emulated() as device:
        yield device


@pytest.fixture(autouse=True)
def short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thread blocks walk along short rows too."""
    monkeypatch.setattr(row_kernels, "WALK_LENGTH", 1)


def softmax_loss(x: Any, g: Any) -> Any:
    return (pb.nn.softmax(x, -1) * g).sum()


def normalised(x: Any, g: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / pb.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5) * g[0]


def masked(x: Any, g: Any) -> Any:
    """Numbers, truth values and positions of each row."""
    best = x.max(axis=-1, keepdims=True)
    return pb.where(x > best - 1.0, x - g.mean(axis=-1, keepdims=True), g), best[:, 0]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, g: pb.nn.softmax(x, -1),
    "softmax gradient": pb.value_and_grad(softmax_loss),
    "log_softmax": pb.grad(lambda x, g: (pb.nn.log_softmax(x, -1) * g).sum(), argnums=(0, 1)),
    "normalised": normalised,
    "normalised gradient": pb.value_and_grad(lambda x, g: (normalised(x, g) * g).sum()),
    "masked": masked,
    "weights": pb.value_and_grad(
        lambda x, g: (pb.nn.layer_norm(x, x.shape[1:], g[0], g[1]) * g).sum(), argnums=(0, 1)
    ),
}

# What is folded from row to row beside.
FOLDED: dict[str, Callable[..., Any]] = {
    "weights": FUNCTIONS["weights"],
    "masks": lambda x, g: (x == g, (x * g).sum(axis=0), x * g, (x != g).sum(axis=0)),
    "bias": pb.grad(lambda x, g: (pb.maximum(x * g[0] + g[1], 0.0) * g).sum(), argnums=(0, 1)),
    "scaled": lambda x, g: (
        x * (x * g).sum(axis=1, keepdims=True),
        (x + g).sum(axis=0),
        (x * g).max(axis=0),
    ),
    "sums": lambda x, g: (x - x.mean(axis=1, keepdims=True) * g, (x * g).sum(axis=0)),
}


def check(name: str, shape: tuple[int, int], dtype: str, cuda: Any) -> list[str]:
    """Compare with the CPU; returns what was launched."""
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(shape) for _ in range(2)]
    if dtype.startswith("c"):
        arrays = [a + 1j * a[::-1] for a in arrays]
    found, launched = [], []
    for device in (cuda, "cpu"):
        given = [pb.tensor(a).astype(dtype).to_device(device) for a in arrays]
        f = pb.jit((FUNCTIONS | FOLDED)[name])
        cuda_fake.launched.clear()
        found.append([x.numpy() for x in pytrees.leaves(f(*given))])
        if device is cuda:
            launched = cuda_fake.launched[:]
    for x, y in zip(*found, strict=True):
        assert same_bits(x, y)
    return launched


def passes(launched: list[str]) -> int:
    return sum(name.endswith("_passes") for name in launched)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(150, 300), (130, 1001), (33, 5000), (133, 2048)])
def test_all_passes_are_one_launch(name: str, shape: tuple[int, int], cuda: Any):
    assert passes(check(name, shape, "float32", cuda))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "complex64"])
@pytest.mark.parametrize("shape", [(37, 1000), (20, 2500)])
def test_all_dtypes(dtype: str, shape: tuple[int, int], cuda: Any):
    for name in ("normalised",) if dtype[0] == "c" else ("softmax gradient", "masked"):
        assert passes(check(name, shape, dtype, cuda))


def test_rows_that_do_not_fit_are_several_launches(cuda: Any):
    assert not passes(check("softmax", (40, 30_000), "float32", cuda))


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
def test_nvrtc_compiles_row_kernels(cuda: Any):
    cuda_fake.printed.clear()
    check("softmax gradient", (40, 1100), "float16", cuda)
    check("weights", (600, 64), "float64", cuda)
    sources = [s for s in cuda_fake.printed if "_passes(" in s or "_lanes(" in s]
    assert len(sources) == 3
    for source in sources:
        for target in ("compute_75", "compute_90"):
            assert b".entry" in nvrtc.compile_source(source, target, nvrtc.QUICK)


def printed_rows(function: Callable[..., Any], *args: np.ndarray, cuda: Any) -> str:
    """The source of the row kernel of a compiled function."""
    cuda_fake.printed.clear()
    pb.jit(function)(*(pb.tensor(a, device=cuda) for a in args))
    (source,) = [s for s in cuda_fake.printed if "_passes(" in s]
    return source


def test_two_threads_share_a_lane_where_weights_are_shared_and_joining_is_light(cuda: Any):
    rng = np.random.default_rng(4)
    x, w = (rng.standard_normal(n).astype(np.float32) for n in ((40, 4096), 4096))
    norm = printed_rows(lambda x, w: pb.nn.layer_norm(x, (4096,), w), x, w, cuda=cuda)
    loss = printed_rows(
        lambda x, w: x * w - pb.logsumexp(x * w, axis=1, keepdims=True), x, w, cuda=cuda
    )
    assert "first % 32" in norm  # a sum
    assert "first % 16" in loss  # the logarithm of a sum of exponentials


def kinds(launched: list[str]) -> list[str]:
    return [name.split("_")[2] for name in launched]


# Few rows, one and several blocks of the tree, rows longer than a block or of an odd length.
@pytest.mark.parametrize("shape", [(2100, 64), (200, 1001), (1100, 2048), (17_500, 33)])
@pytest.mark.parametrize("name", ["weights", "scaled"])
def test_rows_are_read_once_for_what_is_folded_from_row_to_row(
    name: str, shape: tuple[int, int], cuda: Any
):
    found = kinds(check(name, shape, "float32", cuda))
    assert found.count("passes") == found.count("lanes") == 1, found
    assert "columns" not in found
    assert found.count("join") == (shape[0] > 16 * 1024)


@pytest.mark.parametrize("shape", [(2100, 64), (200, 1001), (17_500, 33)])
@pytest.mark.parametrize("name", ["bias", "masks"])
def test_folds_from_row_to_row_store_what_else_is_made(
    name: str, shape: tuple[int, int], cuda: Any
):
    found = kinds(check(name, shape, "float32", cuda))
    assert "columns" in found and "passes" not in found
    assert found[0] == "columns" or name == "bias"  # whose rows of weights are copied before


# A row of weights goes on its own; twelve arrays and more share what counts their elements.
def many(x: Any, g: Any) -> Any:
    y = x * g[0]
    stored = [x + g, x - g, x * g, y + g, y - g, y * g, pb.maximum(y, g), pb.minimum(x, y), y - x]
    return (*stored, (x - g * y).sum(axis=0), (y + g * x).sum(axis=0))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_arrays_share_their_places(dtype: str, cuda: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(FOLDED, "many", many)
    for shape in ((2100, 64), (1100, 33)):
        found = check("many", shape, dtype, cuda)
        (walk,) = [name for name in found if "_columns_" in name]
        kinds = walk.split("_")[3]
        assert kinds.count("U") + kinds.count("S") > 8, found


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "complex64"])
def test_what_is_stored_beside_has_its_dtype(dtype: str, cuda: Any):
    assert "columns" in kinds(check("masks", (300, 130), dtype, cuda))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "complex64"])
def test_rows_of_other_dtypes_are_read_once(dtype: str, cuda: Any):
    assert "lanes" in kinds(check("sums", (300, 130), dtype, cuda))


@pytest.mark.parametrize("least", [3, 5, 6])
def test_weights_stay_in_memory_where_they_leave_no_room(
    least: int, cuda: Any, monkeypatch: pytest.MonkeyPatch
):
    rng = np.random.default_rng(6)
    shapes = (150, 4096), (150, 4096), (4096,), (4096,)
    arrays = [rng.standard_normal(n).astype(np.float32) for n in shapes]

    def loss(x: Any, g: Any, w: Any, b: Any) -> Any:
        return (pb.nn.layer_norm(x, (4096,), w, b) * g).sum()

    f = pb.value_and_grad(loss, argnums=(0, 2, 3))
    monkeypatch.setattr(row_kernels, "LEAST_TEAMS", least)
    cuda_fake.printed.clear()
    found = [
        pytrees.leaves(pb.jit(f)(*(pb.tensor(a, device=d) for a in arrays))) for d in (cuda, "cpu")
    ]
    (source,) = [s for s in cuda_fake.printed if "_passes(" in s]
    # both weights are near, then the one that is read more often, then rows are read again
    assert source.count(", p4, length") == (least < 6)
    assert source.count(", p5, length") == (least < 5)
    assert ("sums1" in source) == (least < 6)
    assert all(same_bits(x.numpy(), y.numpy()) for x, y in zip(*found, strict=True))


def test_folds_from_row_to_row_are_a_launch_of_their_own_where_lanes_are_few(
    cuda: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(row_kernels, "WALK_SHARE", 1e9)
    found = kinds(check("weights", (2100, 64), "float32", cuda))
    assert found.count("passes") == found.count("columns") == 1, found
    assert "lanes" not in found


@pytest.mark.parametrize("shape", [(150, 1001), (40, 2500)])
def test_cheap_numbers_of_rows_are_made_where_they_are_read(shape: tuple[int, int], cuda: Any):
    """The weight of a row's gradient, but not its label, which the picked element needs before."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape).astype(np.float32)
    labels = np.where(rng.random(shape[0]) < 0.1, -100, rng.integers(0, shape[1], shape[0]))
    found = []
    for device in (cuda, "cpu"):
        f = pb.jit(pb.value_and_grad(pb.nn.cross_entropy))
        given = [pb.tensor(a, device=device) for a in (x, labels)]
        f(*given)
        cuda_fake.launched.clear()
        found.append([part.numpy() for part in f(*given)])
        if device is cuda:
            names = [name.split("_")[0] for name in cuda_fake.launched]
            assert sorted(names) == ["index"] * 2 + ["map"] * 2 + ["reduce"] * 2 + ["rows"]
    for one, two in zip(*found, strict=True):
        assert same_bits(one, two)


LOSSES: dict[str, Callable[..., Any]] = {
    "chain": lambda x: (pb.sin(x) * pb.exp(-x * x) + pb.log1p(x * x)).sum(),
    "mean": lambda x: (x * x).mean() + x.max(),
    "normalised": lambda x: (x / pb.sqrt((x * x).sum()))[3:].sum(),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("shape", [(100_003,), (300, 400)])
def test_what_is_reduced_as_a_whole_is_one_long_row(name: str, shape: Any, cuda: Any):
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    found = []
    for device in (cuda, "cpu"):
        cuda_fake.launched.clear()
        pair = pb.jit(pb.value_and_grad(LOSSES[name]))(pb.tensor(x, device=device))
        found.append([part.numpy() for part in pair])
        if device is cuda and name == "chain":
            assert len(cuda_fake.launched) == 2, cuda_fake.launched  # the second joins
    for x, y in zip(*found, strict=True):
        assert same_bits(x, y)


def test_few_long_rows_are_one_launch_for_each_pass(cuda: Any):
    kinds = [name.split("_")[0] for name in check("softmax", (9, 5000), "float32", cuda)]
    assert kinds == ["reduce", "folds", "map"]


def test_divisions_by_a_number_of_the_row_are_rounded_right(cuda: Any):
    """Zeros, subnormal numbers, infinities and NaN among them, by large and small numbers."""
    rng = np.random.default_rng(9)
    x = rng.standard_normal((150, 1100)).astype(np.float32)
    x *= np.exp2(rng.integers(-148, 127, x.shape)).astype(np.float32) ** (rng.random(x.shape) < 0.2)
    x[:, 5:9] = [0.0, -0.0, 1e-40, -1e-45]
    x[7, 3], x[8, 3] = np.inf, np.nan
    x[::3] = np.where(np.abs(x[::3]) > 1, 0.5, x[::3])
    x[::6, 0] = np.exp2(np.arange(25) * 10.0 - 120.0)

    def f(x: Any) -> Any:
        y = x / x.max(axis=-1, keepdims=True)
        z = x / x.min(axis=-1, keepdims=True)
        return y, y.sum(axis=-1), z, z.sum(axis=-1)

    found = []
    for device in (cuda, "cpu"):
        found.append([part.numpy() for part in pb.jit(f)(pb.tensor(x, device=device))])
    for one, two in zip(*found, strict=True):
        assert same_bits(one, two)
