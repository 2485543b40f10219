"""Schedules on webgpu that numbers decide: the bits of the CPU on both sides of each threshold.

Some are taken on adapters alone whose fused multiply-add is exact. Tests let any adapter pass for
one, with numbers whose products and sums are whole, so that no rounding tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
import pullback.nn
from cuda_registry import same_bits
from pullback.core import pytrees
from pullback.runtime.webgpu import folds, nests, products, tiles, window_products
from webgpu_device import needs_adapter

pytestmark = needs_adapter
RNG = np.random.default_rng(11)


def whole(*shape: int) -> np.ndarray:
    return RNG.integers(-8, 9, shape).astype(np.float32)


def check(f: Callable[..., Any], *arrays: np.ndarray) -> None:
    found, expected = (
        pytrees.leaves(pb.jit(f)(*[pb.tensor(a, device=device) for a in arrays]))
        for device in ("webgpu", "cpu")
    )
    for x, y in zip(found, expected, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype) and same_bits(x.numpy(), y.numpy())


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """An adapter that passes for one with an exact fma; the texts of its kernels."""
    gpu: Any = vars(pb.device("webgpu").runtime)["_gpu"]
    texts: list[str] = []
    compiled = gpu.pipeline

    def pipeline(text: str, *given: Any) -> Any:
        texts.append(text)
        return compiled(text, *given)

    monkeypatch.setattr(gpu, "arithmetic", gpu.arithmetic._replace(fma=True))
    monkeypatch.setattr(gpu, "pipeline", pipeline)
    yield texts


TILES = [tile for tile, _ in tiles._LARGE]
TILES += [tiles.Tile(16, 16, 4, 4, 8), tiles.Tile(8, 32, 4, 4, 8), tiles.Tile(16, 16, 1, 1, 8)]


# One tile and parts of one, several; an odd k, one chunk of 256 and more, with a rest.
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("sides", [(128, 64, 64), (70, 33, 70), (130, 300, 140), (257, 520, 129)])
def test_large_tiles(
    sides: tuple[int, int, int],
    tile: tiles.Tile,
    fused: list[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(products, "large_tile_for", lambda *_: tile)
    m, k, n = sides
    check(pb.matmul, whole(m, k), whole(k, n))
    check(lambda a, b: a.mT @ b.mT, whole(k, m), whole(n, k))
    check(pb.matmul, whole(3, m, k), whole(k, n))
    rows = f"vec4<Wide>, {tiles.STEP * (tile.rows // 4 + 1)}" if tile.fours else "Wide, 256"
    assert any(f"left: array<{rows}>" in text and "u + 7u" in text for text in fused)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_large_tiles_of_convolutions(
    tile: tiles.Tile, fused: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(window_products, "large_tile_for", lambda *_: tile)

    def gradients(x: Any, w: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            return (pb.nn.conv2d(x, w, padding=1, stride=2) * 2.0).sum()

        return pb.nn.conv2d(x, w, padding=1), pb.grad(loss, argnums=(0, 1))(x, w)

    check(gradients, whole(3, 9, 20, 19), whole(70, 9, 3, 3))
    assert any("u + 7u" in text for text in fused)


def test_large_tiles_are_for_many_workgroups():
    float32, complex64 = pb.float32, pb.complex64
    large, middle, *_ = TILES
    assert tiles.large_tile_for(float32, 1, 4096, 4096) == large
    assert tiles.large_tile_for(float32, 1, 1024, 1024) == middle
    for shape in ((512, 512), (100_000, 16)):
        assert (
            tiles.large_tile_for(float32, 1, *shape)[:4] == tiles.tile_for(float32, 1, *shape)[:4]
        )
    assert tiles.large_tile_for(float32, 100, 256, 256) == large
    assert tiles.large_tile_for(complex64, 1, 4096, 4096).high == 2


MANY = nests.LEAST_MANY


@pytest.mark.parametrize("size", [MANY - 1, MANY, MANY + 1, 2 * MANY + 700])
def test_maps_of_several_elements(size: int, fused: list[str]):
    check(lambda x, y: (x * 2.0 + y, x > y, (x * y).astype("int8")), whole(size), whole(size))
    check(lambda x: x / 3.0 - 1.0, 3 * whole(size))  # a quotient is a function on some adapters
    check(lambda x: x[::-1] * 3, RNG.integers(-(2**40), 2**40, size))
    check(lambda x: x.T + 1.0, whole(size // 64, 64))
    many = f"i + {(nests.EACH - 1) * 256}u"
    assert any(many in text for text in fused) == (size // 64 * 64 >= MANY)


# Neighbouring outputs: too few, just enough, no multiple of a workgroup's; blocks: one, a group of
# them, several groups.
@pytest.mark.parametrize("outputs", [7, 8, 16, 37])
@pytest.mark.parametrize("length", [31, 32, 127, 129, 1024, 1025, 4097, 70_001])
def test_folds_down_columns(length: int, outputs: int):
    x = RNG.standard_normal((length, outputs)).astype(np.float32)
    check(lambda x: (x.sum(axis=0), x.argmax(axis=0), x[::-1].sum(axis=0)), x)


def test_folds_of_functions_read_ahead(fused: list[str]):
    check(lambda x: ((x / 3.0).sum(axis=1), (x / 3.0).max(axis=0)), 3 * whole(40, 3000))
    ahead = f"j + {(folds.AHEAD - 1) * folds.LANES}u"
    assert any(ahead in text and "f32_div_exact(" in text for text in fused)


@pytest.mark.parametrize("rows", [MANY // 64 - 1, MANY // 64, MANY // 64 + 3])
def test_reads_by_index_of_several_elements(rows: int):
    x, i = whole(50, 64), RNG.integers(-50, 50, (2, rows))
    check(lambda x, i: (x[i], x.T[i % 64, (i + 1) % 50]), x, i[0])
    check(lambda x, i: x[i[0], i[1]], whole(50, 50, 64), i)
    bad = i[0].copy()
    bad[rows - 5 :] = 50, 51, -51, 52, 1
    read = pb.tensor(x, device="webgpu")[pb.tensor(bad, device="webgpu")]
    with pytest.raises(IndexError, match=f"index 50 .* at position {rows - 5} "):
        read.numpy()


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", ["erf", "atan2", "exp2"])
def test_float64_of_the_adapter_and_on_words(
    name: str, double: bool, monkeypatch: pytest.MonkeyPatch
):
    gpu: Any = vars(pb.device("webgpu").runtime)["_gpu"]
    if double and not gpu.arithmetic.double:
        pytest.skip("the adapter has no float64")
    if not double:
        none = {"double": False, "double_fma": False, "wide_fma": False}
        monkeypatch.setattr(gpu, "arithmetic", gpu.arithmetic._replace(**none))
    x, y = RNG.standard_normal((2, 1500)).astype(np.float32) * 5
    f = getattr(pb, name)
    check(f, *((x, y) if name == "atan2" else (x,)))
    check(lambda x: (f(x, x + 1.0) if name == "atan2" else f(x)).sum(), x)


# A quotient or a root in the middle between two numbers there is none; next to it, powers of two,
# the largest and the least mantissas, what is too large or too small for the short way.
def test_quotients_and_roots_by_fused_multiply_adds():
    from pullback.compile.program.stages import Program
    from pullback.runtime.webgpu.library import needed_functions
    from pullback.runtime.webgpu.programs import encode
    from pullback.runtime.webgpu.stages import At, Binding, Dispatch, stage

    ways = needed_functions("f32_div_fused( f32_sqrt_fused(")
    # on an adapter without an exact fma the function takes its place
    text = "\n".join([ways[f"f32_{name}_fused"].replace("fma(", "f32_fma_soft(")
                      for name in ("div", "sqrt")])  # fmt: skip
    source = f"""{text}
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) g: vec3<u32>) {{
  let a = bitcast<f32>(load1(2u * g.x));
  let b = bitcast<f32>(load1(2u * g.x + 1u));
  store0(2u * g.x, bitcast<u32>(f32_div_fused(a, b)));
  store0(2u * g.x + 1u, bitcast<u32>(f32_sqrt_fused(a)));
}}"""
    mantissas = np.array([0, 1, 2, 3, 1 << 22, (1 << 22) + 1, (1 << 23) - 2, (1 << 23) - 1])
    count = 1 << 16
    one, two = np.where(
        RNG.random((2, count)) < 0.5,
        RNG.choice(mantissas, (2, count)),
        RNG.integers(0, 1 << 23, (2, count)),
    )
    powers = np.where(RNG.random((2, count)) < 0.9, RNG.integers(90, 160, (2, count)),
                      RNG.choice([0, 1, 2, 252, 253, 254, 255], (2, count)))  # fmt: skip
    bits = (np.stack([one, two]) | powers << 23).astype(np.uint32)
    bits[0, ::7] |= 1 << 31
    given = np.ascontiguousarray(bits.T.view(np.float32))
    gpu: Any = vars(pb.device("webgpu").runtime)["_gpu"]
    arrays = (Binding(At(0), "u32", "write"), Binding(At(1), "u32"))
    step = Dispatch(source, arrays, (), count // 64)
    buffer = encode(gpu, Program(1, given.nbytes, (), (), stage(step)))(gpu.uploaded(given))
    found = gpu.download(buffer.memory, 0, given.nbytes).view(np.float32).reshape(-1, 2)
    with np.errstate(all="ignore"):
        expected = np.stack([given[:, 0] / given[:, 1], np.sqrt(given[:, 0])], axis=1)
    assert same_bits(found, expected)


def test_the_number_of_a_loop_is_where_its_carry_is():
    def f(x: Any) -> Any:
        return pb.fori_loop(2, 7, lambda i, v: v * 2.0 + i, x)

    check(f, whole(5))
    assert str(f(pb.ones(3, device="webgpu")).device) == "webgpu:0"
