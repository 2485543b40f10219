"""Kernels of gather and scatter: NVRTC compiles all of them."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest

from pullback.compile.kernel.scatter_order import EXACT_ROWS
from pullback.runtime.cuda import nvrtc
from pullback.runtime.cuda.scatter import FOLDS, choose, recipes_of
from pullback.runtime.cuda.scatter.buckets import _deal, buckets_fit
from pullback.runtime.cuda.scatter.chunks import _cut, chunks_fit
from pullback.runtime.cuda.scatter.gathering import gather_recipe
from pullback.runtime.cuda.scatter.ordered import order_recipe
from pullback.runtime.cuda.scatter.recipes import Case, reciprocal_of

FULL = os.environ.get("PULLBACK_FULL") == "1"
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
WIDTHS = {"few": (1, 3), "buckets": (1, 2, 4, 3), "atomic": (3,), "ordered": (1, 2, 64, 768)}
EXACT = ("float16", "bfloat16", "float32")

needs_nvrtc = pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")


def cases(strategy):
    """Every dtype with one index dtype and the reverse, every fold with some dtypes."""
    values = EXACT if strategy in ("buckets", "atomic") else FLOATS + INTEGERS
    rows = {"few": 20}.get(strategy, 100_000)
    widths = WIDTHS[strategy] if FULL else WIDTHS[strategy][-2:]
    found = [Case(v, "int64", "add", 1 << 20, rows, w) for v in values for w in widths]
    found += [Case("float32", i, "add", 1 << 20, rows, 1) for i in INTEGERS]
    if strategy in ("few", "ordered"):
        some = FLOATS + INTEGERS if FULL else ("float32", "uint64")
        folds = [f for f in FOLDS if f != "set" or strategy == "ordered"]
        found += [Case(v, "int32", f, 1 << 20, rows, 2) for v in some for f in folds]
    if strategy == "few":
        found += [Case("float32", "int64", "add", 1 << 20, r, 1) for r in (100, 200, 400)]
        small = Case("float32", "int64", "add", 1 << 20, 400, 1, shared=49_152)  # rows in parts
        found += [small, small._replace(width=2)]
    return found


@needs_nvrtc
@pytest.mark.parametrize("strategy", WIDTHS)
def test_nvrtc_compiles_every_scatter(strategy):
    sources: dict[str, dict[str, int]] = {}
    for case in cases(strategy):
        for planned in (False, True):
            for recipe in recipes_of(case, strategy, planned):
                for step in recipe.steps:
                    sources.setdefault(step.source, {})[step.function] = len(step.arguments)
    for source, functions in sources.items():
        code = nvrtc.compile_source(source, "compute_75", nvrtc.QUICK).decode()
        for function, count in functions.items():
            entry = re.search(rf"\.entry {function}\(([^)]*)\)", code)
            assert entry
            # arguments are words of eight bytes
            assert re.findall(r"\.param \.(\w+)", entry[1]) == ["u64"] * count


@needs_nvrtc
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
def test_machine_code_for_three_generations(target):
    case = Case("float32", "int64", "add", 1 << 20, 20, 1)
    narrow = case._replace(rows=100_000)
    wanted = [(case, "few"), (narrow, "buckets"), (narrow, "atomic"), (narrow, "ordered")]
    for case, strategy in wanted:
        for recipe in recipes_of(case, strategy, True):
            assert nvrtc.compile_source(recipe.steps[0].source, target)


@needs_nvrtc
@pytest.mark.parametrize("row_bytes", [1, 2, 3, 4, 8, 12, 16, 48, 256, 3072])
def test_nvrtc_compiles_every_gather(row_bytes):
    for index in INTEGERS if FULL else ("int64", "uint8"):
        (step,) = gather_recipe(row_bytes, index, 1000, 100, 16).steps
        assert nvrtc.compile_source(step.source, "compute_75", nvrtc.QUICK)


def test_strategies_by_shape():
    case = Case("float32", "int64", "add", 1 << 24, 20, 1)
    assert choose(case) == "few"
    assert choose(case._replace(rows=1 << 20)) == "buckets"
    assert choose(case._replace(rows=1 << 20, value="float64")) == "ordered"
    assert choose(case._replace(rows=100_000, width=64)) == "ordered"
    assert choose(case._replace(rows=1 << 20, n=10)) == "ordered"
    assert choose(case._replace(fold="set")) == "ordered"
    assert choose(case._replace(rows=1 << 32, width=3)) == "atomic"
    assert choose(case._replace(rows=1 << 20, width=4)) == "buckets"
    assert choose(case._replace(rows=1 << 20, width=5)) == "ordered"
    assert choose(case._replace(rows=20, width=64)) == "ordered"
    assert choose(case._replace(rows=20, width=64, n=1 << 10)) == "few"
    assert choose(case._replace(rows=200, width=4)) == "buckets"
    assert choose(case._replace(rows=200, width=4, n=1 << 10)) == "few"
    assert choose(case._replace(rows=100, width=4, value="float64")) == "few"
    assert choose(case._replace(rows=200, width=4, value="float64")) == "ordered"
    assert choose(case._replace(rows=200, width=8, n=1 << 10)) == "ordered"


@pytest.mark.parametrize("rows", [3, 300, 5000, 1 << 20, 1_200_000, (1 << 24) - 1, 1 << 24])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_rows_are_dealt_out_to_buckets(rows, width):
    deal = _deal(Case("float32", "int64", "add", 1 << 20, rows, width))
    last = np.arange(1, deal.buckets + 1) * deal.cells - 1
    row = np.unique(np.clip(np.concatenate([last - 1, last, last + 1, [0]]), 0, rows - 1))
    found = (row.astype(np.uint64) * np.uint64(deal.reciprocal)) >> np.uint64(32 + deal.shift)
    np.testing.assert_array_equal(found, row // deal.cells)
    assert deal.reciprocal < 1 << 32
    assert found.max() < deal.buckets < 1 << 16
    nowhere = deal.cells * deal.buckets  # stands for indices that are out of range
    assert nowhere * deal.reciprocal >> (32 + deal.shift) == deal.buckets


@pytest.mark.parametrize("divisor", [2, 3, 758, 1 << 16, (1 << 16) - 1, 100_001, 1 << 30])
def test_reciprocals(divisor):
    reciprocal, shift = reciprocal_of(divisor)
    assert reciprocal < 1 << 32
    most = (1 << 31) - 1
    multiples = (0, divisor, most // 2 // divisor * divisor, most // divisor * divisor)
    for number in {min(max(m + d, 0), most) for m in multiples for d in (-1, 0, 1)}:
        assert number * reciprocal >> 32 + shift == number // divisor


@pytest.mark.parametrize("width", [3, 4])
def test_a_hopper_has_buckets_for_all_rows_whose_sums_are_exact(width):
    rows = EXACT_ROWS[width]
    case = Case("float32", "int64", "add", 1 << 22, rows, width)
    assert choose(case) == "buckets"
    assert not buckets_fit(case._replace(rows=rows + 1))


@needs_nvrtc
@pytest.mark.parametrize("limit", [65_536, 101_376, 166_912, 232_448])
@pytest.mark.parametrize("n", [1000, 200_000, 400_000, 1 << 20])
def test_the_sort_fits_in_shared_memory(n, limit):
    (step,) = order_recipe("int64", n, 100_000, limit).steps
    assert step.shared <= limit
    ranges = step.arguments[12]
    assert (ranges == 0) == ((n, limit) == (1 << 20, 65_536))
    # the kernel asserts that it uses as much
    assert nvrtc.compile_source(step.source, "compute_75", nvrtc.QUICK)


@pytest.mark.parametrize("rows", [1, 20, 24, 25, 100, 220, 454])
@pytest.mark.parametrize("width", [1, 2, 300])
@pytest.mark.parametrize("limit", [49_152, 65_536, 101_376, 232_448])
def test_columns_fit_in_shared_memory(rows, width, limit):
    case = Case("float32", "int64", "add", 1000, rows, width, shared=limit)
    for recipe in recipes_of(case, "few", False):
        assert all(step.shared <= limit for step in recipe.steps)
        (_, parts), *_ = [step.grid for step in recipe.steps]
        assert (parts == -(-width // recipe.steps[0].block)) == (
            recipe.steps[0].block * rows * 8 <= limit
        )


@pytest.mark.parametrize("limit", [48 << 10, 64 << 10, 100 << 10, 232_448])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [5000, 1 << 20, 1 << 24])
def test_buckets_are_chosen_where_they_fit(rows, width, limit):
    case = Case("float32", "int64", "add", 1 << 24, rows, width, shared=limit)
    chosen = choose(case)
    if rows * width > 1 << 25:
        assert chosen == "ordered"
        return
    assert chosen in ("buckets", "atomic")  # both exact: the device does not change the bits
    for recipe in recipes_of(case, chosen, True):
        assert all(step.shared <= limit for step in recipe.steps)
    assert chosen == "buckets" or limit < 232_448


@pytest.mark.parametrize("limit", [64 << 10, 100 << 10, 232_448])
@pytest.mark.parametrize(
    ("value", "width"),
    [("float16", 1), ("float16", 3), ("float32", 1), ("float32", 2), ("float32", 4)],
)
@pytest.mark.parametrize("n", [1, 5000, 1 << 20, (1 << 24) + 7, 1 << 25, 1 << 26])
def test_chunks_fit_in_shared_memory_and_in_sixteen_bits(n, value, width, limit):
    case = Case(value, "int64", "add", n, 1 << 20, width, shared=limit)
    if not chunks_fit(case):
        assert limit < 232_448 or n > 1 << 25
        return
    cut = _cut(case)
    assert cut.tile * cut.tiles >= n and cut.size * cut.chunks >= n
    assert max(cut.capacity, cut.pitch, cut.chunks) < 1 << 16
    for recipe in recipes_of(case, "buckets", True):
        assert all(step.shared <= limit for step in recipe.steps)
