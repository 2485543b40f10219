"""Maps at the end of a product's kernel: which are taken in, and that no bit changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cuda_fake
import pullback as pb
from cuda_device import emulated
from cuda_emulator import COMPILER
from pullback.compile.kernel.forms import Map
from pullback.compile.schedule.fusion import fuse
from pullback.compile.schedule.groups import CallGroup, MapGroup
from pullback.core import dtypes as dt
from pullback.ir.scalar import load
from pullback.runtime.cuda import nvrtc
from pullback.runtime.cuda.code import machine_code
from pullback.runtime.cuda.gemm.endings import End
from pullback.runtime.cuda.gemm.kinds import BFLOAT16
from pullback.runtime.cuda.gemm.steps import Operand
from pullback.runtime.cuda.gemm.tensor_cores import Cores
from pullback.runtime.cuda.stages import At, Either

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no g++")


@pytest.fixture(scope="module")
def cuda() -> Iterator[Any]:
    with emulated() as device:
        yield device


def groups(f: Callable[..., Any], *shapes: tuple[int, ...]) -> list[str]:
    arrays = [pb.ones(s) for s in shapes]
    graph = pb.trace(f)(*arrays)
    found = fuse(graph, [a._aval for a in arrays], together=False, ending={"matmul"}).groups
    kinds = {CallGroup: "call", MapGroup: "map"}
    return [
        "ended" if isinstance(g, CallGroup) and g.then else kinds.get(type(g), "other")
        for g in found
    ]


SQUARE = (16, 16)


def test_what_is_taken_in() -> None:
    assert groups(lambda x, w, b: pb.tanh(x @ w + b), SQUARE, SQUARE, (16,)) == ["ended"]
    assert groups(lambda x, w: x @ w, SQUARE, SQUARE) == ["call"]
    assert groups(lambda x, w: (x @ w).T * x, SQUARE, SQUARE) == ["call", "map"]

    def other_places(x: Any, w: Any) -> Any:
        y = x @ w
        return pb.tanh(y) * pb.flip(y, axis=0)

    assert groups(other_places, SQUARE, SQUARE) == ["call", "map"]  # they are not there yet
    # the last product that a map needs; the other is one of its operands
    assert groups(lambda x, h, w: pb.tanh(x @ w + h @ w), *[SQUARE] * 3) == ["call", "ended"]
    many = [SQUARE] * 8
    assert groups(lambda x, w, *b: x @ w + sum(b), *many) == ["call", "map"]


def test_what_others_read_is_written_too() -> None:
    def f(x: Any, w: Any) -> Any:
        y = x @ w
        return pb.tanh(y), y @ w

    assert groups(f, SQUARE, SQUARE) == ["ended", "call"]
    arrays = [pb.ones(SQUARE)] * 2
    graph = pb.trace(f)(*arrays)
    first, _ = fuse(graph, [a._aval for a in arrays], ending={"matmul"}).groups
    assert isinstance(first, CallGroup)
    assert first.values_written()[1] is first.results[0]


def gelu(x: Any, w: Any, b: Any) -> Any:
    return pb.nn.gelu(x @ w + b[: w.shape[1]])


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], str]] = {
    "bias": (lambda x, w, b: pb.tanh(x @ w + b), ((37, 40), (40, 36), (36,)), "float32"),
    "ragged": (lambda x, w, b: (x @ w) * 3 + b, ((37, 33), (33, 29), (29,)), "float32"),
    "residual": (lambda x, w, b: b + 0.5 * (x @ w), ((20, 24), (24, 12), (20, 12)), "float32"),
    "heavy": (gelu, ((9, 300), (300, 20), (24,)), "float32"),
    "cast": (lambda x, w, b: ((x @ w).astype("float16"), b), ((8, 9), (9, 8), (1,)), "float32"),
    "batch": (lambda x, w, b: (x @ w + b, 2 * w), ((3, 5, 7), (3, 7, 8), (3, 1, 8)), "float32"),
    "columns": (lambda x, w, b: pb.sqrt(abs(x @ w)) - b, ((17, 8), (8, 8), (17, 1)), "float32"),
    "both": (lambda x, w, b: (x @ w, pb.nn.relu(x @ w + b)), ((9, 8), (8, 12), (12,)), "float32"),
    "units": (lambda x, w, b: pb.tanh(x @ w) + b, ((19, 30), (30, 22), (22,)), "float64"),
    "halves": (lambda x, w, b: pb.tanh(x @ w + b), ((24, 32), (32, 40), (40,)), "float16"),
    "one row": (lambda x, w, b: x @ w + b, ((1, 4000), (4000, 20), (20,)), "float32"),
    "complex": (lambda x, w, b: (x @ w) * b, ((5, 6), (6, 7), (7,)), "complex64"),
}


def drawn(shapes: tuple[tuple[int, ...], ...], dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


def leaves(x: Any) -> list[bytes]:
    return [v.numpy().tobytes() for v in (x if isinstance(x, tuple) else (x,))]


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_the_cpu(name: str, cuda: Any) -> None:
    f, shapes, dtype = CASES[name]
    arrays = drawn(shapes, dtype)
    apart = name in ("one row", "complex")  # no kernel that could end
    with pb.matmul_precision("highest"):
        expected = pb.jit(f)(*map(pb.tensor, arrays))
        given = [pb.tensor(a, device=cuda) for a in arrays]
        cuda_fake.launched.clear()
        found = pb.jit(f)(*given)
    assert leaves(found) == leaves(expected)
    maps = [n for n in cuda_fake.launched if n.startswith(("map", "multi"))]
    assert bool(maps) == (apart or name == "batch")


@needs_compiler
def test_operands_that_start_anywhere(cuda: Any) -> None:
    def f(x: Any, w: Any, b: Any) -> Any:
        return pb.tanh(x @ w + b[1:])

    arrays = drawn(((21, 16), (16, 12), (13,)), "float32")
    found = pb.jit(f)(*[pb.tensor(a, device=cuda) for a in arrays])
    assert leaves(found) == leaves(pb.jit(f)(*map(pb.tensor, arrays)))


@needs_compiler
def test_a_vector_that_starts_anywhere_does_not_slow_a_product(cuda: Any) -> None:
    def f(x: Any, w: Any, b: Any) -> Any:
        return pb.nn.relu(x @ w + b[1:])

    arrays = [
        pb.tensor(a, device=cuda).astype("bfloat16")
        for a in drawn(((32, 64), (64, 64), (65,)), "float32")
    ]
    assert leaves(pb.jit(f)(*arrays)) == leaves(f(*arrays))
    end = End(Map((dt.float32,) * 2, dt.float32, (load(0, dt.float32),)), 0, [], [], [(0, 1)])
    assert end.code(64, 4, True).kinds == "v"
    assert end.anywhere(7) == (7,)
    end = end._replace(outs=[At(1)], strides=[(64, 1), (1, 0), (0, 1)])
    assert end.code(64, 4, True).kinds == "uzv"
    assert end.anywhere(7) == (9, 10)


@needs_compiler
@pytest.mark.parametrize("n", [40, 37])
def test_tensor_cores_end_with_what_is_stored(n: int, cuda: Any) -> None:
    """The map sees elements that were rounded, as if it read them."""

    def f(x: Any, w: Any, b: Any) -> Any:
        return pb.tanh(x @ w) * b + x[:, :1]

    arrays = [
        pb.tensor(a, device=cuda).astype("bfloat16")
        for a in drawn(((33, 48), (48, n), (n,)), "float32")
    ]
    cuda_fake.launched.clear()
    found = pb.jit(f)(*arrays)
    assert cuda_fake.launched == ["warps_bf16"]
    assert leaves(found) == leaves(f(*arrays))


@needs_compiler
def test_products_of_a_loop_end_too(cuda: Any) -> None:
    """In one kernel for all rounds, on tensor cores."""
    h, w, b = (
        pb.tensor(a, device=cuda).astype("bfloat16")
        for a in drawn(((4, 16), (16, 16), (16,)), "float32")
    )

    def rounds(h: Any, w: Any, b: Any) -> Any:
        return pb.scan(lambda c, _: (pb.tanh(c @ w + b), None), h, None, length=130)[0]

    cuda_fake.launched.clear()
    found = pb.jit(rounds)(h, w, b)
    (loop,) = [n for n in cuda_fake.launched if n.startswith("loop")]
    for _ in range(130):
        h = pb.tanh(h @ w + b)
    assert leaves(found) == leaves(h)
    if nvrtc.is_available():
        (source,) = [s for s in cuda_fake.printed if f" {loop}(" in s]
        assert "#define ENDS" in source
        for target in ("sm_80", "sm_90"):
            assert nvrtc.compile_source(source, target, nvrtc.QUICK)


@pytest.mark.skipif(not nvrtc.is_available(), reason="there is no NVRTC")
def test_kernels_of_a_hopper_end_too() -> None:
    driver = SimpleNamespace(has_maps=True, tensor_map=lambda *_: bytes(120))
    gpu: Any = SimpleNamespace(architecture="sm_90", driver=driver, processors=132)
    x, y = load(0, dt.bfloat16), load(1, dt.bfloat16)
    kernel = Map((dt.bfloat16, dt.bfloat16), dt.bfloat16, (x + y,))
    end = End(kernel, 0, [At(2)], [At(3)], [(0, 1)])
    operands = Operand(At(0), (), 512, 1), Operand(At(1), (), 512, 1)
    cores = Cores(gpu)
    (step,) = cores.steps(
        BFLOAT16, dt.bfloat16, (), (512, 512, 512), *operands, At(2), lambda _: 4, end
    )
    assert isinstance(step, Either)
    for one in step:
        assert "#define ENDS out0, in0, ends" in one.source
        assert machine_code(one.source, "sm_90")


@pytest.mark.skipif(not nvrtc.is_available(), reason="there is no NVRTC")
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
def test_nvrtc_compiles_ends(target: str, cuda: Any) -> None:
    """Those that the tests before this one have printed."""
    ends = sorted(s for s in cuda_fake.printed if "#define ENDS" in s)
    for source in ends[::3]:
        if target != "sm_75" or "from sm_80 on" not in source:
            assert nvrtc.compile_source(source, target, nvrtc.QUICK)
