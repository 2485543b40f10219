"""Products on the emulated GPU: every tile, every layout and every way to add up chains."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest

import cuda_fake
from cuda_emulator import COMPILER, Emulator
from pullback.compile.kernel import order
from pullback.core import dtypes as dt
from pullback.runtime.cuda import nvrtc
from pullback.runtime.cuda.gemm import shapes
from pullback.runtime.cuda.gemm.steps import Operand, Tiled
from pullback.runtime.cuda.stages import At, Either, Step

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")

MERGES = shapes.ALONE, shapes.CLUSTER, shapes.LAUNCH, shapes.LAST
SIDES = 37, 29, 522  # a rest of lines and of products, three chains


def tiled(kind: str, tile: int, merge: int, layout: str, sides: Any = SIDES) -> Tiled:
    """A product of matrices that lie at slots 0 and 1."""
    m, n, k = sides
    dtype = dt.float32 if kind == "floats" else dt.float64
    tiles = {"floats": shapes.FLOATS, "units": shapes.UNITS, "doubles": shapes.DOUBLES}[kind]
    a = Operand(At(0), (), k, 1) if layout[0] == "n" else Operand(At(0), (), 1, m)
    b = Operand(At(1), (), 1, n) if layout[1] == "n" else Operand(At(1), (), k, 1)
    choice = shapes.Choice(tiles[tile], merge)
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
        values = [
            held[x.slot].ctypes.data + x.nbytes if isinstance(x, At) else x for x in step.arguments
        ]
        emulator = Emulator(step.source, "-O1")
        mode = emulator.mode(step.function)
        emulator.launch(step.function, step.grid, step.block, step.shared, values, mode)
    return np.asarray(out)


CASES = [
    *itertools.product(["floats"], [1, 3, 4, 5], MERGES),
    ("floats", 0, shapes.ALONE),
    *itertools.product(["doubles"], [1], MERGES),
    *itertools.product(["units"], [3], MERGES),
    ("units", 0, shapes.ALONE),
]


@pytest.mark.parametrize(("kind", "tile", "merge"), CASES)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_tiles_have_the_bits_of_the_order(kind: str, tile: int, merge: int, layout: str):
    product = tiled(kind, tile, merge, layout)
    m, n, k = product.sides
    rng = np.random.default_rng(tile)
    a, b = (rng.standard_normal(s).astype(product.dtype.numpy) for s in ((m, k), (k, n)))
    arrays = [
        np.ascontiguousarray(x.T if t == "t" else x) for x, t in zip((a, b), layout, strict=True)
    ]
    np.testing.assert_array_equal(run(product, arrays), order.product(a, b))
