"""Few contributions to few rows: one launch, with the bits of sorted contributions."""

from __future__ import annotations

import numpy as np
import pytest

import cuda_fake
import pullback.runtime.cuda.scatter as sc
from cuda_emulator import COMPILER
from pullback.compile.kernel import order, scatter_order
from pullback.runtime.cuda.scatter.each_row import MOST_ROWS, each_row_fits
from pullback.runtime.cuda.scatter.recipes import Case
from scatter_emulated import INTEGERS, REALS, device, draw, same_bits, scattered

__all__ = ["device"]

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="there is no g++"),
    pytest.mark.usefixtures("device"),
]

SHARES = {  # of the contributions go to one row
    "spread": 0.0,
    "one hot row": 0.3,
    "nearly all in a row": 0.99,
    "all in a row": 1.0,
}


def both(indices, values, out, fold="add"):
    """The result of one launch, and of a sort and folds."""
    cuda_fake.launched.clear()
    found = scattered(indices, values, out, fold, strategy="ordered")
    assert cuda_fake.launched == ["each_row"]
    return found, scattered(indices, values, out, fold, strategy="ordered", planned=True)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize(
    ("n", "rows", "width"),
    [
        (1, 1, 3),
        (37, 5, 1),
        (129, 60, 16),
        (512, 100, 16),
        (256, 7, 30),
        (64, 9, 100),
        (2048, 7, 3),
    ],
)
def test_sums_have_the_bits_of_sorted_ones(n, rows, width, share):
    indices, values, out = draw("float32", n, rows, width)
    values *= 2.0 ** np.random.default_rng(1).integers(0, 40, values.shape)  # sums are rounded
    indices[np.random.default_rng(2).random(n) < SHARES[share]] = rows // 2
    same_bits(*both(indices, values, out))


@pytest.mark.parametrize("dtype", [*REALS, *INTEGERS[::3]])
def test_every_fold_of_every_dtype(dtype):
    for fold in ("add", "mul", "min", "max", "set"):
        same_bits(*both(*draw(dtype, 300, 6, 2), fold))


def test_without_a_destination_to_read_every_row_is_written():
    indices, values, _ = draw("float32", 90, 50, 4)
    indices[indices % 50 == 13] = 12
    i, v = map(cuda_fake.asarray, (indices, values))
    out = cuda_fake.empty((50, 4), "f4")  # which the kernel finds full of other things
    work = sc.adding(i.dtype, 90, v.dtype, ((90, 4), (50, 4)), None, True, 0)
    slot = sc.IndexReport("test", i, 50)
    places = {"index": i.data.ptr, "value": v.data.ptr, "out": out.data.ptr, "aligned": 3}
    slot.run(work, places)
    same_bits(out, scattered(indices, values, np.zeros((50, 4), "f4"), strategy="ordered"))
    assert not out[13].any()


def test_what_is_large_is_sorted():
    small = Case("float32", "int64", "add", 512, 100, 16)
    assert each_row_fits(small)
    larger = {"n": 1 << 12}, {"rows": MOST_ROWS + 1}, {"width": 1 << 6}, {"n": 5000, "width": 1}
    assert not any(each_row_fits(small._replace(**change)) for change in larger)


# One launch without a sort, and sorted pieces; parts of a run in slices of one and of several.
@pytest.mark.parametrize(("n", "width"), [(90, 3), (900, 1), (900, 33), (4200, 2), (1500, 40)])
def test_bits_are_those_of_the_order(n, width):
    rng, rows = np.random.default_rng(n), 7
    indices = np.where(rng.random(n) < 0.7, 3, rng.integers(0, rows, n))
    values = rng.standard_normal((n, width))
    for row in range(rows):  # what is large goes, and leaves what was rounded
        places = np.flatnonzero(indices == row)
        large, gone = rng.permutation(places)[: len(places) // 3 * 2].reshape(2, -1)
        values[large] *= 2.0 ** rng.integers(30, 60, (len(large), 1))
        values[gone] = -values[large]
    values, out = values.astype(np.float32), rng.standard_normal((rows, width)).astype(np.float32)
    want = scatter_order.scattered_by_pieces(out, indices, values)
    same_bits(scattered(indices, values, out, strategy="ordered"), want)
    if n > 100:
        assert (want != order.scattered(out, indices, values)).any()
