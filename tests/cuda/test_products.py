"""Products on the emulated GPU: every tile, every layout and every way to add up chains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cuda_fake
import pullback as pb
from cuda_device import emulated
from cuda_emulator import COMPILER, Emulator
from generated.matrix import FULL
from pullback.compile.kernel import order
from pullback.core import dtypes as dt
from pullback.runtime.cuda.gemm import shapes, units
from pullback.runtime.cuda.gemm.sources import kernel_source
from pullback.runtime.cuda.gemm.steps import Operand, Tiled
from pullback.runtime.cuda.gpu import Gpu
from pullback.runtime.cuda.stages import At, Either, Table

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")

MERGES = shapes.ALONE, shapes.CLUSTER, shapes.LAUNCH, shapes.LAST
SIDES = 37, 29, 522  # a rest of lines and of products, three chains


def tiled(kind: str, tile: int, merge: int, layout: str, sides: Any = SIDES) -> Tiled:
    """A product of matrices that lie at slots 0 and 1."""
    m, n, k = sides
    dtype = dt.float32 if kind == "floats" else dt.float64
    floats = shapes.FLOATS + shapes.THIN
    tiles = {"floats": floats, "units": shapes.UNITS, "doubles": shapes.DOUBLES}[kind]
    a = Operand(At(0), (), k, 1) if layout[0] == "n" else Operand(At(0), (), 1, m)
    b = Operand(At(1), (), 1, n) if layout[1] == "n" else Operand(At(1), (), k, 1)
    choice = shapes.TileChoice(tiles[tile], merge)
    return Tiled(dtype, dtype, (), sides, a, b, kind == "units", choice)


def run(product: Tiled, arrays: list[np.ndarray]) -> np.ndarray:
    """The product of arrays in the layouts of its operands."""
    m, n, _ = product.sides
    out = cuda_fake.asarray(np.full((m, n), np.nan, product.dtype.numpy))
    held = [*map(cuda_fake.asarray, arrays), out]

    def area(nbytes: int) -> int:
        held.append(cuda_fake.empty(nbytes, np.uint8))
        return len(held) - 1

    for each in product.steps(At(2), area):
        step = each.aligned if isinstance(each, Either) else each
        values = []
        for x in step.arguments:
            assert not isinstance(x, Table)
            values.append(held[x.slot].ctypes.data + x.nbytes if isinstance(x, At) else x)
        emulator = Emulator(step.source, "-O1")
        mode = emulator.mode(step.function)
        emulator.launch(step.function, step.grid, step.block, step.shared, values, mode)
    return np.asarray(out)


CASES = [
    (kind, tile, merge, layout)
    for kind, tiles in (("floats", [6, 0, 1, 3, 8, 9]), ("units", [4, 0, 1]), ("doubles", [1]))
    for tile in tiles
    for merge in MERGES
    for layout in ("nt", "tn", "nn")
    if kind != "floats" or tile < 8 or merge != shapes.ALONE  # these make one chain
]  # each compiles a kernel
SAMPLE = [
    ("floats", 6, shapes.ALONE, "tn"),
    ("floats", 6, shapes.CLUSTER, "nt"),
    ("floats", 3, shapes.LAST, "nn"),
    ("floats", 8, shapes.LAUNCH, "nt"),
    ("floats", 9, shapes.CLUSTER, "nn"),
    ("floats", 9, shapes.LAUNCH, "tn"),
    ("units", 1, shapes.ALONE, "tn"),
    ("units", 4, shapes.LAST, "nn"),
    ("units", 4, shapes.CLUSTER, "tn"),
    ("doubles", 1, shapes.LAUNCH, "nt"),
]


@pytest.mark.parametrize(("kind", "tile", "merge", "layout"), CASES if FULL else SAMPLE)
def test_tiles_have_the_bits_of_the_order(kind: str, tile: int, merge: int, layout: str):
    product = tiled(kind, tile, merge, layout)
    m, n, k = product.sides
    rng = np.random.default_rng(tile)
    a, b = (rng.standard_normal(s).astype(product.dtype.numpy) for s in ((m, k), (k, n)))
    arrays = [
        np.ascontiguousarray(x.T if t == "t" else x) for x, t in zip((a, b), layout, strict=True)
    ]
    np.testing.assert_array_equal(run(product, arrays), order.product(a, b))


@pytest.mark.parametrize("tile", [8, 9])
@pytest.mark.parametrize(("layout", "sides"), [("nn", (300, 64, 64)), ("nt", (259, 70, 61))])
def test_thin_tiles_make_one_chain(tile: int, layout: str, sides: tuple[int, int, int]):
    product = tiled("floats", tile, shapes.ALONE, layout, sides)
    m, n, k = sides
    rng = np.random.default_rng(tile)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    found = run(product, [a, np.ascontiguousarray(b.T if layout[1] == "t" else b)])
    np.testing.assert_array_equal(found, order.product(a, b))


VIEWS: dict[str, Any] = {
    "start anywhere": lambda x, y: x[1:, 1:] @ y[1:, 3:],
    "flipped": lambda x, y: pb.flip(x, axis=1) @ pb.flip(y, axis=0),
    "every other": lambda x, y: x[:, ::2] @ y[::2, ::3],
    "broadcast": lambda x, y: pb.broadcast_to(x[:1], (9, 300)) @ y,
    "batch of rows": lambda x, y: x.reshape((8, 1, 1500)) @ y.reshape((1, 1500, 7)),
    "nothing to add up": lambda x, y: x[:, :0] @ y[:0],
    "row times columns": lambda x, y: x[0] @ pb.concat([y] * 20, axis=1),
    "columns times row": lambda x, y: pb.concat([y.T] * 20) @ x[0],
    "many chains": lambda x, y: (
        pb.concat([x.reshape((12, 1000))] * 9, axis=1) @ pb.concat([x.reshape((3000, 4))] * 3)
    ),
    "more chains": lambda x, y: (
        pb.concat([x.reshape((2, 6000))] * 12, axis=1)[:, :71000]
        @ pb.concat([x.reshape((4000, 3))] * 18)[:71000]
    ),
    "halves": lambda x, y: x.astype("float16") @ y.astype("float16")[:, 1:],
    "complex": lambda x, y: (x + 2j * x[::-1]) @ (y * 1j - y[::-1]),
}


@pytest.fixture(scope="module")
def cuda() -> Iterator[Any]:
    with emulated() as device:
        yield device


@pytest.mark.parametrize("name", VIEWS)
def test_views_have_the_bits_of_the_cpu(name: str, cuda: Any):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype("float32") for s in ((40, 300), (300, 35))]
    with pb.matmul_precision("highest"):  # or tensor cores would make those of halves
        found, expected = (
            VIEWS[name](*[pb.tensor(a, device=d) for a in arrays]).numpy() for d in (cuda, "cpu")
        )
    np.testing.assert_array_equal(found, expected)


def test_thin_products_have_tiles_of_their_own():
    """As those of a network of 64 units for many points: few columns, few rows."""
    for sides in ((65536, 64, 64), (2, 64, 65536)):
        assert shapes.choice_of("floats", 1, *sides).tile in shapes.THIN
    for choice in shapes.choices("floats", 1, 65536, 64, 1024):
        assert choice.merge != shapes.ALONE or choice.tile in shapes.FLOATS
    for sides in ((256, 256, 256), (64, 256, 256), (2048, 2048, 2048)):
        assert shapes.choice_of("floats", 1, *sides).tile in shapes.FLOATS
    assert shapes.tile_of("floats", 1, 65536, 64, 64, totals=False) in shapes.FLOATS


def test_units_that_do_not_keep_the_order_are_not_used(cuda: Any, monkeypatch: pytest.MonkeyPatch):
    """Some that round products before they are added up: the test of the device finds them."""
    gpu = Gpu(0)
    assert units.Units(gpu).keep_order()

    def rounded(*given: Any) -> str:
        source = kernel_source(*given)
        assert "fma(x[e / 2], y[e % 2], c[e])" in source
        return source.replace("fma(x[e / 2], y[e % 2], c[e])", "x[e / 2] * y[e % 2] + c[e]")

    monkeypatch.setattr(units, "kernel_source", rounded)
    assert not units.Units(gpu).keep_order()
