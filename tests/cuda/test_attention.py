"""Attention on the matrix units of the emulated GPU: near float64, the same bits for any tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import cuda_fake
import pullback as pb
from cuda_device import emulated
from cuda_emulator import COMPILER, Emulator
from generated.matrix import FULL
from pullback.compile.kernel.order import attended as keys_together
from pullback.core import dtypes as dt
from pullback.core.dtypes import DType
from pullback.nn.attention.matrix_units import has_units
from pullback.runtime.cuda import nvrtc
from pullback.runtime.cuda.attention import steps
from pullback.runtime.cuda.attention.attention_stages import LEAST_SHARED, NAMES, shared_bytes
from pullback.runtime.cuda.attention.steps import (
    FORWARD,
    KEYS,
    QUERIES,
    AttentionProblem,
    Given,
    HeadMatrices,
    PanelTile,
    tile_of,
)
from pullback.runtime.cuda.gpu import gpu_of
from pullback.runtime.cuda.products import Products
from pullback.runtime.cuda.routines import routines_of
from pullback.runtime.cuda.stages import At, Either, Step, Table

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")

KERNELS = FORWARD, QUERIES, KEYS
MOST_SHARED = shared_bytes("sm_90")
ROUNDING = {dt.float16: 2.0**-11, dt.bfloat16: 2.0**-8}


class Shape(NamedTuple):
    """Of a problem, and what is chosen for it."""

    dtype: DType
    batch: int
    group: int
    rows: int
    columns: int
    width: int
    causal: bool = False
    wide: bool = True  # whether rows are read 16 bytes at a time, if they may


def given(s: Shape) -> list[np.ndarray]:
    """Query, key, value and the cotangent of the result."""
    rng = np.random.default_rng(s.rows)
    far = s.batch, s.columns, s.width
    near = s.batch, s.group, s.rows, s.width
    return [rng.standard_normal(shape).astype(s.dtype.numpy) for shape in (near, far, far, near)]


def expected(s: Shape, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The result and the cotangents of query, key and value, in float64."""
    q, k, v, g = (x.astype(np.float64) for x in arrays)
    k, v = k[:, None], v[:, None]
    scores = q @ k.swapaxes(-1, -2) * s.width**-0.5
    if s.causal:
        scores = np.where(np.tri(s.rows, s.columns, dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out = p @ v
    ds = p * (g @ v.swapaxes(-1, -2) - (g * out).sum(-1, keepdims=True)) * s.width**-0.5
    turned = ds.swapaxes(-1, -2)
    return [out, ds @ k, (turned @ q).sum(1), (p.swapaxes(-1, -2) @ g).sum(1)]


def problem(s: Shape) -> AttentionProblem:
    return AttentionProblem(
        s.dtype, (s.batch,), s.group, s.rows, s.columns, s.width, s.width**-0.5, s.causal
    )  # fmt: skip


def matrices(s: Shape) -> list[HeadMatrices]:
    """Dense arrays at the slots from 1 on."""
    near = s.group * s.rows * s.width, s.rows * s.width, s.width, 1
    far = s.columns * s.width, 0, s.width, 1
    return [HeadMatrices(At(k + 1), own) for k, own in enumerate((near, far, far, near))]


def step_of(
    s: Shape, kernel: str, tile: PanelTile | None = None, mask: HeadMatrices | None = None,
    words: At | None = None,
) -> Step:  # fmt: skip
    """The launch of a kernel; slot 0 is its result, 5 and 6 what the forward pass left."""
    own = matrices(s)[: 3 if kernel == FORWARD else 4]
    rest = () if kernel == FORWARD else (At(5), At(6))
    tile = tile or tile_of(kernel, s.width, MOST_SHARED)
    step = problem(s).step(kernel, At(0), Given(own, rest, mask, words), tile)
    if isinstance(step, Either):
        return step.aligned if s.wide else step.other
    return step


def run(step: Step, arrays: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    out = cuda_fake.asarray(np.full(shape, np.nan, arrays[0].dtype))
    held = [out, *map(cuda_fake.asarray, arrays)]
    values = []
    for x in step.arguments:
        assert not isinstance(x, Table)
        values.append(held[x.slot].ctypes.data + x.nbytes if isinstance(x, At) else x)
    emulator = Emulator(step.source, "-O1")
    mode = emulator.mode(step.function)
    emulator.launch(step.function, step.grid, step.block, step.shared, values, mode)
    return np.asarray(out)


def found(s: Shape, tiles: dict[str, PanelTile] | None = None) -> list[np.ndarray]:
    """What the kernels give, in the order of `expected`."""
    arrays, tiles = given(s), tiles or {}
    start, numbers = steps.head_numbers(s.rows, s.width)
    lead = s.batch, s.group
    packed = run(step_of(s, FORWARD, tiles.get(FORWARD)), arrays, (*lead, numbers))
    out = packed[..., start : start + s.rows * s.width].reshape(*lead, s.rows, s.width)
    deltas = (out.astype(np.float32) * arrays[3].astype(np.float32)).sum(-1)
    arrays = [*arrays, packed, deltas]
    dq = run(step_of(s, QUERIES, tiles.get(QUERIES)), arrays, (*lead, s.rows, s.width))
    both = run(step_of(s, KEYS, tiles.get(KEYS)), arrays, (s.batch, 2, s.columns, s.width))
    return [out, dq, both[:, 0], both[:, 1]]


SHAPES = {
    "a rest of rows and columns": Shape(dt.bfloat16, 1, 1, 70, 50, 16),
    "grouped, causal": Shape(dt.float16, 2, 2, 70, 150, 24, causal=True),
    "more rows than columns": Shape(dt.float16, 1, 1, 130, 70, 32, causal=True, wide=False),
    "odd width": Shape(dt.bfloat16, 1, 1, 33, 40, 7),
    "wide": Shape(dt.float16, 1, 1, 40, 70, 128),
    "common": Shape(dt.bfloat16, 1, 1, 130, 130, 64, causal=True),
}  # each compiles three kernels
SAMPLE = ["grouped, causal", "odd width"]


@pytest.mark.parametrize("name", SHAPES if FULL else SAMPLE)
def test_kernels_are_as_near_as_their_results_are_rounded(name: str):
    shape = SHAPES[name]
    for x, y in zip(found(shape), expected(shape, given(shape)), strict=True):
        error = np.abs(x.astype(np.float64) - y).max() / np.abs(y).max()
        assert error < 2 * ROUNDING[shape.dtype]


OTHERS = {
    FORWARD: PanelTile(1, 2, keys_together(16), False, 1),
    QUERIES: PanelTile(1, 2, 16, False, 1),
    KEYS: PanelTile(2, 1, 32, True, 1),
}


def test_tiles_change_no_bit():
    shape = Shape(dt.bfloat16, 1, 1, 100, 140, 16, causal=True)
    for x, y in zip(found(shape), found(shape, OTHERS), strict=True):
        assert x.tobytes() == y.tobytes()


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("width", [64, 128])
def test_nvrtc_compiles_the_kernels(width: int, target: str):
    shape = Shape(dt.bfloat16, 1, 1, 256, 256, width, causal=True)
    for kernel in KERNELS:
        assert nvrtc.compile_source(step_of(shape, kernel).source, target, nvrtc.QUICK)
        masked = step_of(shape, kernel, mask=HeadMatrices(At(7), (0, 0, 0, 1)), words=At(8))
        assert nvrtc.compile_source(masked.source, target, nvrtc.QUICK)


# -- as an operation -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cuda() -> Iterator[Any]:
    with emulated() as device:
        yield device


def attended(**options: Any) -> Callable[..., Any]:
    return lambda *arrays: pb.nn.scaled_dot_product_attention(*arrays, **options)


def loss(f: Callable[..., Any], wide: str) -> Callable[..., Any]:
    """The sum of the squares of all results."""

    def total(*arrays: Any) -> Any:
        results = f(*arrays)
        results = results if isinstance(results, tuple) else (results,)
        return sum((x.astype(wide) ** 2).sum() for x in results)

    return total


def derivatives(f: Callable[..., Any], wide: str, order: int) -> Callable[..., Any]:
    for _ in range(order):
        f = pb.grad(loss(f, wide), argnums=(0, 1, 2))
    return f


def drawn(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(dt.bfloat16.numpy) for s in shapes]


def near(f: Callable[..., Callable[..., Any]], arrays: list[np.ndarray], cuda: Any) -> None:
    """Whether `f(wide)` of halves on the device is as near float64 as rounded steps can be."""
    exact = f("float64")(*[pb.tensor(x.astype(np.float64)) for x in arrays])
    results = f("float32")(*[pb.tensor(x, device=cuda) for x in arrays])
    pairs = [r if isinstance(r, tuple) else (r,) for r in (results, exact)]
    for x, y in zip(*pairs, strict=True):
        assert x.dtype == pb.bfloat16 and x.device.kind == "cuda"
        y = y.numpy()
        assert np.abs(x.cpu().astype("float64").numpy() - y).max() <= 0.01 * np.abs(y).max()


SQUARE = (2, 2, 20, 16), (2, 2, 30, 16), (2, 2, 30, 16)


@pytest.mark.parametrize("order", range(4))
def test_derivatives_of_any_order(order: int, cuda: Any):
    near(lambda wide: pb.jit(derivatives(attended(), wide, order)), drawn(*SQUARE), cuda)


def test_the_largest_score_may_come_last(cuda: Any):
    """By far: what was added up before loses its weight."""
    q, k, v = drawn((20, 16), (200, 16), (200, 16))
    k = (np.sort(k.astype(np.float32), axis=0) * 4).astype(k.dtype)
    for keys in (k, k[::-1]):
        near(lambda wide: attended(scale=0.5), [np.abs(q), keys, v], cuda)


MASKS: dict[str, tuple[int, ...]] = {
    "of keys": (2, 1, 1, 30),
    "of all": (2, 4, 20, 30),
    "of rows": (20, 1),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str, cuda: Any):
    """Some rows see nothing; heads share keys."""
    seen = np.random.default_rng(3).random(MASKS[name]) < 0.6
    seen[0] = False

    def f(wide: str) -> Callable[..., Any]:
        def g(*xs: Any) -> Any:
            mask = pb.tensor(seen, device=xs[0].device)
            return attended(attn_mask=mask, enable_gqa=True)(*xs)

        return derivatives(g, wide, 1)

    near(f, drawn((2, 4, 20, 16), *SQUARE[1:]), cuda)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_dropout_of_the_places_of_the_cpu(order: int, cuda: Any):
    def f(wide: str) -> Callable[..., Any]:
        def g(*xs: Any) -> Any:
            key = pb.random.key(5).to_device(xs[0].device)
            return attended(dropout_p=0.3, dropout_key=key, enable_gqa=True, is_causal=True)(*xs)

        return derivatives(g, wide, order)

    near(f, drawn((2, 4, 20, 16), *SQUARE[1:]), cuda)


def test_examples_of_a_batch_have_dropouts_of_their_own(cuda: Any):
    def f(wide: str) -> Callable[..., Any]:
        def g(q: Any, k: Any, v: Any) -> Any:
            keys = pb.random.split(pb.random.key(5), 3).to_device(q.device)

            def one(key: Any, *xs: Any) -> Any:
                return attended(dropout_p=0.3, dropout_key=key)(*xs)

            return pb.vmap(one)(keys, q, k, v)

        return derivatives(g, wide, 1)

    near(f, drawn((3, 2, 9, 16), (3, 2, 11, 16), (3, 2, 11, 16)), cuda)


def test_tangents_and_batches(cuda: Any):
    q, k, v = drawn((3, 9, 16), (11, 16), (3, 11, 16))

    def tangent(wide: str) -> Callable[..., Any]:
        return lambda *xs: pb.jvp(attended(is_causal=True), xs, xs)[1]

    near(tangent, drawn((9, 16), (11, 16), (11, 16)), cuda)
    near(lambda wide: pb.vmap(attended(), in_axes=(0, None, 0)), [q, k, v], cuda)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "heads in the middle": lambda x: pb.moveaxis(x.reshape((8, 2, 16)), 1, 0),
    "starts anywhere": lambda x: x.reshape((-1,))[1:193].reshape((12, 16)),
    "flipped": lambda x: pb.flip(x, axis=0),
    "broadcast": lambda x: pb.broadcast_to(x, (2, 16, 16)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str, cuda: Any):
    def f(wide: str) -> Callable[..., Any]:
        return derivatives(lambda *xs: attended()(*map(VIEWS[name], xs)), wide, 1)

    near(f, drawn(*[(16, 16)] * 3), cuda)


def test_a_head_has_the_same_bits_alone(cuda: Any):
    arrays = [pb.tensor(x, device=cuda) for x in drawn(*SQUARE)]
    f = derivatives(attended(is_causal=True), "float32", 1)
    alone = [x[1:, 1:] for x in arrays]
    for x, y in zip(f(*arrays), f(*alone), strict=True):
        assert x[1:, 1:].numpy().tobytes() == y.numpy().tobytes()


@pytest.mark.parametrize("width", [16, 64, 80, 128])
def test_tiles_fit_into_the_memory_of_smaller_devices(width: int):
    for kernel in KERNELS:
        tile = tile_of(kernel, width, LEAST_SHARED)
        assert tile.shared(kernel, steps.rounded(width)) <= LEAST_SHARED
        assert kernel != FORWARD or tile.step == keys_together(width)


def test_older_devices_have_no_such_kernels(cuda: Any):
    assert set(NAMES) <= set(cuda.runtime.target.routines)
    assert not set(NAMES) & set(routines_of(Products(gpu_of(0)), "sm_75"))


def test_what_is_computed_elsewhere(cuda: Any):
    q, k, v = (pb.tensor(x, device=cuda) for x in drawn(*SQUARE))
    assert has_units(q, k, v, 0.5)
    with pb.matmul_precision("highest"):
        assert not has_units(q, k, v, 0.5)
    assert not has_units(q, k, v, pb.tensor(0.5, device=cuda))  # which may be differentiated by
    assert not has_units(q, k, v, -0.5)
    assert not has_units(q, k, v[..., :8], 0.5)
    assert not has_units(*(x.astype("float32") for x in (q, k, v)), factor=0.5)
    assert not has_units(*(x.cpu() for x in (q, k, v)), factor=0.5)
