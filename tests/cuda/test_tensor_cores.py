"""Products by tensor cores: which launches are made, and that they read what they are meant to.

The emulator has none of a Hopper, and multiplies one after the other for them; it has those of
warps. What the units make of it is looked at on a GPU, by `tools/cuda_products.py --only cores`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cuda_fake
import pullback as pb
from cuda_device import emulated
from cuda_emulator import COMPILER, Emulator
from generated.matrix import FULL
from pullback.core import dtypes as dt
from pullback.runtime.cuda.code import machine_code
from pullback.runtime.cuda.gemm import hopper, tensor_cores, warps
from pullback.runtime.cuda.gemm.kinds import BFLOAT16, kind_of
from pullback.runtime.cuda.gemm.steps import Operand
from pullback.runtime.cuda.gemm.tensor_cores import Cores
from pullback.runtime.cuda.nvrtc import is_available
from pullback.runtime.cuda.stages import At, Either, Step, TensorMap

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no g++")
MAP = bytes([7]) * 120
DRIVER = SimpleNamespace(has_maps=True, tensor_map=lambda *_: MAP)
GPU: Any = SimpleNamespace(architecture="sm_90", driver=DRIVER, processors=132)
OLDER: Any = SimpleNamespace(architecture="sm_80", driver=DRIVER, processors=108)


def strides(shape: tuple[int, ...]) -> list[int]:
    return [int(np.prod(shape[d + 1 :])) for d in range(len(shape))]


def launches(
    dtype: Any,
    precision: str,
    a: tuple[int, ...],
    b: tuple[int, ...],
    layout: str = "nn",
    gpu: Any = GPU,
) -> tuple[list[Step | Either], list[int]]:
    """The launches of a product of arrays at slots 0 and 1; the scratch that it wants."""
    (*batch, m, k), n = a, b[-1]
    kind = kind_of(dtype, precision)
    assert kind is not None
    lying = [
        s if lay == "n" else (*s[:-2], s[-1], s[-2]) for s, lay in zip((a, b), layout, strict=True)
    ]
    (*a_batch, a0, a1), (*b_batch, b0, b1) = map(strides, lying)
    left = (a0, a1) if layout[0] == "n" else (a1, a0)
    right = (b1, b0) if layout[1] == "n" else (b0, b1)
    b_batch = [0 if size == 1 else s for s, size in zip(b_batch, b[:-2], strict=True)]
    given = Operand(At(0), tuple(a_batch), *left), Operand(At(1), tuple(b_batch), *right)
    scratch: list[int] = []

    def area(nbytes: int) -> int:
        scratch.append(nbytes)
        return 2 + len(scratch)

    return Cores(gpu).steps(kind, dtype, tuple(batch), (m, n, k), *given, At(2), area), scratch


def run(steps: list[Step | Either], held: list[Any], aligned: bool) -> None:
    for each in steps:
        step = each if isinstance(each, Step) else each.aligned if aligned else each.other
        given = [bytes(128) if isinstance(x, TensorMap) else x for x in step.arguments]
        values: list[Any] = [
            held[x.slot].ctypes.data + x.nbytes if isinstance(x, At) else x for x in given
        ]
        emulator = Emulator(step.source, "-O1")
        mode = emulator.mode(step.function)
        emulator.launch(step.function, step.grid, step.block, step.shared, values, mode)


def check(
    dtype: Any, precision: str, a: Any, b: Any, layout: str, gpu: Any, ways: tuple[bool, ...]
) -> list[bytes]:
    """The bits of a product, made by the launches for aligned operands or by the others."""
    steps, scratch = launches(dtype, precision, a, b, layout, gpu)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(s).astype("f") for s in (a, b))
    numpy = ml_dtypes.bfloat16 if dtype is dt.bfloat16 else dtype.numpy
    lie = [v if lay == "n" else v.swapaxes(-1, -2) for v, lay in zip((x, y), layout, strict=True)]
    carrier = np.float32 if dtype.itemsize == 4 else np.uint16
    held = [cuda_fake.asarray(np.ascontiguousarray(v.astype(numpy)).view(carrier)) for v in lie]
    unit = ml_dtypes.bfloat16 if precision == "bfloat16" else numpy
    expected = np.matmul(*(v.astype(numpy).astype(unit).astype("d") for v in (x, y)))
    bits = []
    for aligned in ways:
        out = cuda_fake.asarray(np.zeros((*a[:-1], b[-1]), carrier))
        run(steps, [*held, out, *(cuda_fake.empty(n, np.uint8) for n in scratch)], aligned)
        found = np.asarray(out).view(numpy).astype("d")
        np.testing.assert_allclose(found, expected, rtol=2.0**-7, atol=2.0**-6)
        bits.append(np.asarray(out).tobytes())
    return bits


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "precision", "a", "b", "layout"),
    [
        (dt.bfloat16, "default", (70, 40), (40, 136), "nn"),  # as they are
        (dt.float16, "default", (2, 70, 41), (1, 41, 24), "tn"),  # element by element
        (dt.float32, "bfloat16", (300, 260), (260, 220), "nt"),  # arranged, and rounded
        (dt.float32, "tf32", (3, 140, 128), (3, 128, 320), "nn"),  # the right one is arranged
    ],
)
def test_operands_are_found(
    monkeypatch: pytest.MonkeyPatch, dtype: Any, precision: str, a: Any, b: Any, layout: str
) -> None:
    monkeypatch.setattr(tensor_cores, "SMALL", 1 << 22)
    check(dtype, precision, a, b, layout, GPU, (True, False))


LAYOUTS = "nn", "nt", "tn", "tt"


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "precision", "a", "b"),
    [
        (dt.bfloat16, "default", (2, 3, 72, 200), (2, 1, 200, 136)),  # a rest of lines, and of k
        (dt.float16, "default", (72, 8), (8, 40)),  # fewer products than a step has
        (dt.float32, "tf32", (76, 100), (100, 68)),
    ],
)
def test_warps_have_one_bit_pattern(
    monkeypatch: pytest.MonkeyPatch, dtype: Any, precision: str, a: Any, b: Any
) -> None:
    """In every layout and every tile, copied 16 bytes at a time and element by element."""
    tiles = warps.TILES if FULL else warps.TILES[-1:]
    bits = []
    for layout in LAYOUTS if FULL else LAYOUTS[:3]:
        for tile in tiles:
            monkeypatch.setattr(warps, "tile_of", lambda *_, tile=tile: tile)
            bits += check(dtype, precision, a, b, layout, OLDER, (True,))
    bits += check(dtype, precision, a, b, "nn", OLDER, (False,))
    assert len(bits) == len(tiles) * (4 if FULL else 3) + 1
    assert len(set(bits)) == 1


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "precision", "a", "b", "layout"),
    [
        (dt.bfloat16, "default", (37, 51), (51, 29), "nt"),  # element by element
        (dt.bfloat16, "default", (300, 261), (261, 222), "tn"),  # arranged, but for the other path
        (dt.float32, "bfloat16", (20, 33), (33, 17), "nn"),  # rounded on the way
        (dt.float32, "bfloat16", (300, 260), (260, 220), "nt"),  # arranged, and rounded
        (dt.float16, "default", (1, 64), (64, 1), "nn"),
    ],
)
def test_warps_find_any_operand(
    monkeypatch: pytest.MonkeyPatch, dtype: Any, precision: str, a: Any, b: Any, layout: str
) -> None:
    monkeypatch.setattr(tensor_cores, "SMALL", 1 << 22)
    first, second = check(dtype, precision, a, b, layout, OLDER, (True, False))
    assert first == second


def test_choices_of_launches() -> None:
    def names(*given: Any) -> list[str]:
        steps, _ = launches(*given)
        return [s.function if isinstance(s, Step) else s.aligned.function for s in steps]

    big = (1024, 1024), (1024, 1024)
    assert names(dt.bfloat16, "default", *big, "tn") == ["cores_bf16"]
    assert names(dt.float16, "tf32", *big, "nt") == ["cores_f16"]
    assert names(dt.float32, "tf32", *big, "nt") == ["cores_tf32"]
    assert names(dt.float32, "tf32", *big, "nn") == ["pieces_tf32_pack", "cores_tf32"]
    assert names(dt.float32, "bfloat16", *big) == ["pieces_bf16_pack"] * 2 + ["cores_bf16"]
    assert names(dt.bfloat16, "default", (9, 7), (7, 3)) == ["cores_bf16"]
    assert names(dt.bfloat16, "default", (1, 4096), (4096, 8192)) == ["cores_bf16"]  # one of rows
    odd, scratch = launches(dt.bfloat16, "default", (1001, 1003), (1003, 1024))
    assert [type(s) for s in odd] == [Step, Either]
    assert scratch == [1001 * 1024 * 2]  # lines of a multiple of 128 bytes
    across, scratch = launches(dt.bfloat16, "default", (3000, 3000), (3000, 3008))
    assert [type(s) for s in across] == [Step, Either]  # rows of 6000 bytes; those of 6016 stay
    assert scratch == [3000 * 3008 * 2]
    short, scratch = launches(dt.bfloat16, "default", (1001, 33), (33, 1024))
    assert [type(s) for s in short] == [Step, Either]
    assert scratch == [1001 * 40 * 2]
    assert names(dt.bfloat16, "default", (1000, 1000), (1000, 1000)) == ["cores_bf16"]
    assert kind_of(dt.bfloat16, "highest") is None
    assert kind_of(dt.float32, "default") is None
    assert kind_of(dt.float64, "tf32") is None


def test_tiles_have_no_rest() -> None:
    for tile in hopper.TILES:
        assert tile.bm % 64 == 0
        assert tile.bn % 8 == 0
        assert tile.resident * (tile.shared + 1024) <= 228 << 10  # of a processor
    small, large = (hopper.tile_of(BFLOAT16, 1, s, s, s) for s in (256, 4096))
    assert small.bm * small.bn < large.bm * large.bn


@pytest.mark.skipif(not is_available(), reason="there is no NVRTC")
def test_kernels_compile() -> None:
    for dtype, precision, layout in (
        (dt.bfloat16, "default", "nn"), (dt.float16, "default", "tn"), (dt.float32, "tf32", "nt"),
        (dt.float32, "bfloat16", "nn"),
    ):  # fmt: skip
        steps, _ = launches(dtype, precision, (512, 1024), (1024, 512), layout)
        for each in steps:
            for step in [each] if isinstance(each, Step) else each:
                assert machine_code(step.source, "sm_90")


@pytest.mark.skipif(not is_available(), reason="there is no NVRTC")
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize(
    ("dtype", "precision"),
    [(dt.bfloat16, "default"), (dt.float16, "default"), (dt.float32, "tf32")],
)
def test_kernels_of_warps_compile(dtype: Any, precision: str, layout: str) -> None:
    steps, _ = launches(dtype, precision, (512, 1024), (1024, 512), layout, OLDER)
    for each in steps:
        for step in [each] if isinstance(each, Step) else each:
            assert step.function.startswith("warps_")
            for target in ("sm_80", "sm_90"):
                assert machine_code(step.source, target)


def test_tiles_of_warps_fit_any_gpu() -> None:
    for tile in (*warps.TILES, warps.PLAIN):
        shared = max(tile.shared(k, size) for k in ((0, 0), (1, 1)) for size in (2, 4))
        assert tile.resident * (shared + 1024) <= 164 << 10  # of a processor of sm_80
        assert shared <= 99 << 10  # of a thread block on sm_86, sm_89 and sm_120
    small, large = (warps.tile_of(132, BFLOAT16, 1, s, s, s) for s in (256, 4096))
    assert small.bm * small.bn < large.bm * large.bn


def test_older_gpus_have_none() -> None:
    gpu: Any = SimpleNamespace(architecture="sm_75", driver=DRIVER, processors=72)
    assert not Cores(gpu).are_there()


@needs_compiler
def test_the_emulated_gpu_has_those_of_warps() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype("f") for s in ((33, 70), (70, 41))]
    with emulated() as device:
        x, y = (pb.tensor(a, device=device).astype("bfloat16") for a in arrays)
        a, b = (pb.tensor(a).astype("bfloat16") for a in arrays)
        assert x.device.runtime.has_fast_products
        exact = np.matmul(*(np.asarray(v.astype("float64")) for v in (a, b)))
        cuda_fake.launched.clear()
        found = (x @ y).astype("float64").numpy()
        assert "warps_bf16" in cuda_fake.launched
        np.testing.assert_allclose(found, exact, rtol=2.0**-8, atol=2.0**-8)
        with pb.matmul_precision("highest"):
            assert (x @ y).numpy().tobytes() == (a @ b).numpy().tobytes()
