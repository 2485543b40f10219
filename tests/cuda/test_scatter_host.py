"""Gather and scatter as on a GPU, but on the host: a stand-in for CuPy and emulated kernels."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

import cuda_fake
import pullback.runtime.cuda.scatter as sc
from cuda_emulator import COMPILER
from pullback.compile.kernel.fixed_point import exact_scatter_add_reference
from pullback.core.errors import DTypeError, ShapeError
from pullback.runtime.cuda import driver, table
from pullback.runtime.cuda.scatter import executor, ordered
from scatter_emulated import (
    COMPLEX,
    EXACT,
    INTEGERS,
    REALS,
    device,
    draw,
    late,
    reference,
    same_bits,
    scattered,
)

__all__ = ["device"]

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="there is no g++"),
    pytest.mark.usefixtures("device"),
]


@pytest.mark.parametrize("strategy", ["few", "ordered"])
@pytest.mark.parametrize("dtype", REALS + COMPLEX)
def test_sums_are_within_an_ulp_of_the_exact_ones(strategy, dtype):
    indices, values, out = draw(dtype, 700, 5, 3)
    got, want = scattered(indices, values, out, strategy=strategy), reference(indices, values, out)
    eps = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "complex64": 2.0**-24}
    size = reference(indices, np.abs(values.astype(want.dtype)), np.abs(out.astype(want.dtype)))
    error = np.abs(got.astype(want.dtype) - want)
    assert np.all(error <= 1.5 * np.abs(size) * eps.get(dtype, 2.0**-53))


@pytest.mark.parametrize("strategy", ["few", "ordered"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_sums_of_integers_wrap_around(strategy, dtype):
    indices, values, out = draw(dtype, 700, 5)
    want = out.copy()
    np.add.at(want, indices, values)
    same_bits(scattered(indices, values, out, strategy=strategy), want)


@pytest.mark.parametrize("index", INTEGERS)
@pytest.mark.parametrize("strategy", sc.STRATEGIES)
def test_every_index_dtype(strategy, index):
    indices, values, out = draw("float32", 300, 40, index=index)
    values = np.round(values * 8)  # such sums are exact
    got = scattered(indices, values, out * 0, strategy=strategy)
    np.testing.assert_array_equal(got, reference(indices, values, out * 0).astype("f4"))


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["buckets", "planned", "atomic"])
def test_exact_sums_have_the_bits_of_the_reference(kind, width, dtype):
    indices, values, out = draw(dtype, 1100, 40, width)
    got = exactly(kind, indices, values, out)
    same_bits(got, exact_scatter_add_reference(indices, values, out))


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("kind", ["buckets", "planned"])
@pytest.mark.parametrize("pattern", ["sorted", "reversed", "in runs", "near"])
def test_exact_sums_of_indices_in_order(pattern, kind, width):
    indices, values, out = draw("float32", 2500, 300, width)
    rows, k = np.sort(indices % 300), np.arange(2500)
    runs = indices[k // 128] % 300  # most of which fill the lanes of a warp
    near = (k // 2 * 7 + k % 2) % 300  # lanes have neighbouring rows, but not one bucket
    back = rows[::-1].copy()
    indices = {"sorted": rows, "reversed": back, "in runs": runs, "near": near}[pattern]
    got = exactly(kind, indices, values, out)
    same_bits(got, exact_scatter_add_reference(indices, values, out))


def exactly(kind, indices, values, out):
    """The exact sums in one of three ways."""
    strategy = "buckets" if kind == "planned" else kind
    return scattered(indices, values, out, strategy=strategy, planned=kind == "planned")


@pytest.mark.parametrize("kind", ["buckets", "planned", "atomic"])
def test_exact_sums_over_the_whole_range_of_exponents(kind):
    rng = np.random.default_rng(4)
    bits = rng.integers(0, 1 << 32, 900, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    values = np.where(np.isfinite(values), values, np.float32(1e-45))
    values[::3] = -values[1::3]
    indices = np.repeat(np.arange(30), 30)
    rng.shuffle(indices)
    out = np.where(np.arange(30) % 2, np.float32(-0.0), values[:30])
    want = exact_scatter_add_reference(indices, values, out)
    same_bits(exactly(kind, indices, values, out), want)


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("kind", ["buckets", "planned", "atomic"])
def test_x_can_be_greater_than_all_contributions(kind, dtype):
    rng = np.random.default_rng(6)
    rows, each = 60, 40
    values = np.repeat(2.0 ** rng.integers(-12, 1, rows), each) * rng.choice([-1, 1], rows * each)
    values[rng.random(rows * each) < 0.1] *= 2.0**-10
    indices = np.repeat(np.arange(rows), each)
    sums = values.reshape(rows, each).sum(axis=1)
    # what nearly cancels the sum, what drowns it, and what is small beside it
    out = np.choose(np.arange(rows) % 4, [-sums, -sums * 1.01, np.full(rows, 6e4), sums * 2.0**-9])
    order = rng.permutation(rows * each)
    values = values[order]
    values[:3] *= 2.0**-14
    kind_of_value = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    values, out = values.astype(kind_of_value), out.astype(kind_of_value)
    want = exact_scatter_add_reference(indices[order], values, out)
    same_bits(exactly(kind, indices[order], values, out), want)


@pytest.mark.parametrize("kind", ["buckets", "planned", "atomic"])
def test_sums_that_go_around_words(kind):
    rng = np.random.default_rng(7)
    n, rows = 3000, 7
    values = (1.0 + rng.random(n)).astype("f4") * rng.choice([1, 1, 1, -1], n).astype("f4")
    values[::5] *= np.float32(2.0**-37)  # need all words
    values[::11] *= np.float32(2.0**-60)  # and more
    indices = rng.integers(0, rows, n)
    out = np.zeros(rows, "f4")
    want = exact_scatter_add_reference(indices, values, out)
    same_bits(exactly(kind, indices, values, out), want)
    same_bits(exactly(kind, indices, -values, -out), -want)


@pytest.mark.parametrize("kind", ["buckets", "planned", "atomic"])
def test_what_is_not_finite(kind):
    inf, nan = np.inf, np.nan
    values = np.array([inf, 1, -inf, nan, inf, -inf, 1, 3e38, 3e38, 1e-45, 0, 1, -1], "f4")
    indices = np.array([0, 0, 1, 2, 3, 3, 4, 5, 5, 6, 7, 8, 8])
    out = np.array([1, 1, 1, 1, inf, 1, 0, -0.0, -0.0, nan, -inf], "f4")
    want = exact_scatter_add_reference(indices, values, out)
    same_bits(exactly(kind, indices, values, out), want)


@pytest.mark.parametrize("capability", [75, 90])
def test_all_launches_but_the_first_may_begin_early(monkeypatch, capability):
    monkeypatch.setattr(executor, "capability", lambda device: capability)
    indices, values, out = draw("float32", 700, 40)
    got = scattered(indices, values, out, strategy="buckets")
    same_bits(got, exact_scatter_add_reference(indices, values, out))
    assert cuda_fake.launched == ["bucket_split", "bucket_share", "bucket_add"]
    early = [table.EARLY] * 2 if capability == 90 else []
    assert driver.library().attributes == early


@pytest.mark.parametrize("planned", [False, True])
def test_a_long_run_of_equal_indices_in_buckets(planned):
    _, values, out = draw("float32", 2500, 4)
    indices = np.full(2500, 2)
    got = scattered(indices, values, out, strategy="buckets", planned=planned)
    same_bits(got, exact_scatter_add_reference(indices, values, out))


@pytest.mark.parametrize("pattern", ["random", "sorted", "runs", "two", "distinct"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_chunks_of_a_plan_for_any_indices(dtype, pattern):
    n, rows = 3100, 4000
    indices, values, out = draw(dtype, n, rows)
    lengths = np.random.default_rng(5).integers(1, 900, n)  # runs longer than a chunk among them
    found = {
        "random": indices % 300,
        "sorted": np.sort(indices),
        "runs": np.repeat(np.arange(n), lengths)[:n],
        "two": np.where(np.arange(n) % 7, 5, rows - 1),
        "distinct": np.random.default_rng(5).permutation(rows)[:n],
    }[pattern]
    want = exact_scatter_add_reference(found, values, out)
    same_bits(exactly("planned", found, values, out), want)
    assert cuda_fake.launched[-3:] == ["chunk_place", "chunk_add", "chunk_settle"]


@pytest.mark.parametrize("dtype", EXACT)
def test_sums_half_way_between_neighbours(dtype):
    digits = {"float32": 24, "float16": 11, "bfloat16": 8}[dtype]
    one, half, tiny = 2.0 ** (digits - 1), 0.5, 2.0**-8
    sums = [(one, [half]), (one + 1, [half]), (one, [half, tiny]), (one + 1, [half, -tiny])]
    sums += [(-one, [-half, tiny]), (0.0, [one, half]), (one, [half, half, half]), (half, [-half])]
    sums += [(-0.0, [half, -half]), (one, [one, 1.0]), (2 * one, [tiny, 1.0, -tiny]), (tiny, [])]
    indices = np.repeat(np.arange(len(sums)), [len(values) for _, values in sums])
    values = np.array([v for _, values in sums for v in values])
    out = np.array([x for x, _ in sums])
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    values, out = values.astype(kind), out.astype(kind)
    want = exact_scatter_add_reference(indices, values, out)
    same_bits(exactly("planned", indices, values, out), want)


FOLDS = {"mul": np.multiply, "min": np.minimum, "max": np.maximum}


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint64"])
@pytest.mark.parametrize("strategy", ["few", "ordered"])
def test_other_folds(strategy, dtype, fold):
    indices, values, out = draw(dtype, 60, 9, 2)
    want = out.astype("f8") if dtype == "float32" else out.copy()
    FOLDS[fold].at(want, indices, values.astype(want.dtype))
    got = scattered(indices, values, out, fold, strategy=strategy)
    np.testing.assert_allclose(got, want.astype(dtype), rtol=2e-7 if dtype == "float32" else 0)


@pytest.mark.parametrize("fold", ["min", "max"])
def test_a_nan_wins(fold):
    values = np.array([1, np.nan, 2, 3], "f4")
    got = scattered(np.array([0, 0, 0, 1]), values, np.zeros(2, "f4"), fold, strategy="ordered")
    assert np.isnan(got[0]) and not np.isnan(got[1])


@pytest.mark.parametrize("width", [1, 5, 40])
def test_the_last_contribution_is_set(width):
    indices, values, out = draw("float32", 9000, 7, width)
    indices[100:] = 3  # a run that a whole block joins
    want = out.copy()
    want[indices] = values
    same_bits(scattered(indices, values, out, "set"), want)


@pytest.mark.parametrize("width", [1, 3, 40, 160])
@pytest.mark.parametrize("n", [1, 127, 129, 3000])
def test_ordered_sums_of_any_length_and_width(n, width):
    indices, values, out = draw("float64", n, 900, width)
    got = scattered(indices, values, out, strategy="ordered")
    np.testing.assert_allclose(got, reference(indices, values, out).astype("f8"), rtol=1e-13)


def check_order(indices, rows):
    """Sort, compare, and say how many thread blocks found a range that is too large."""
    plan = sc.make_plan(cuda_fake.asarray(indices), rows)
    places = plan.order(executor.IndexReport("test", plan.indices, rows))
    sizes = ordered.order_buffers(len(indices))
    kept, made, _ = plan._kept["order"]
    start = kept._memory._held

    def read(name):
        at = places[name] - start.ctypes.data
        return start[at : at + sizes[name]].view(np.uint32)

    wide = indices.astype(object) if indices.dtype == np.uint64 else indices
    inside = (wide >= -rows) & (wide < rows)
    keys = np.where(inside, wide % rows, rows).astype(np.int64)
    np.testing.assert_array_equal(read("order"), np.argsort(keys, kind="stable"))
    np.testing.assert_array_equal(read("keys"), np.sort(keys))
    bad = np.flatnonzero(~inside.astype(bool))
    assert made.bad_position() == (bad[0] if len(bad) else None)
    return int(made._slots.words(0)[made._number, 3]) >> 32


def sort_of(n, rows):
    return ordered._sort(n, rows, cuda_fake.PROPERTIES["sharedMemPerBlockOptin"])


# Several tiles for a thread block, one to three digits, and counts that take more than 16 bits.
@pytest.mark.parametrize(
    ("n", "rows"), [(1, 1), (700, 3), (9000, 500), (2500, 1 << 20), (140_000, 400)]
)
def test_the_order_is_stable(n, rows):
    indices = np.random.default_rng(6).integers(-rows, rows, n)
    indices[n // 3 :: 1000] = rows + 5
    assert sort_of(n, rows).ranges == 0
    check_order(indices, rows)


# One tile and several, one pass over a range and two, one range of a thread block and several.
@pytest.mark.parametrize(
    ("n", "rows", "passes"),
    [(1, 600, 2), (300, 2000, 2), (4097, 700, 1), (9000, 3000, 1), (12_000, 100_000, 2)],
)
@pytest.mark.parametrize("pattern", ["random", "sorted", "equal"])
def test_the_order_is_stable_with_ranges(n, rows, passes, pattern):
    rng = np.random.default_rng(7)
    indices = rng.integers(-rows, rows, n)
    indices[n // 3 :: 1000] = -rows - 1
    indices = {"random": indices, "sorted": np.sort(indices), "equal": np.full(n, -1)}[pattern]
    sort = sort_of(n, rows)
    (step,) = ordered.order_recipe("int64", n, rows, 65_536).steps
    numbers = [a for a in step.arguments if isinstance(a, int)]
    ranges, width, _, _, bits, digit_bits = numbers[-6:]
    assert ranges == sort.ranges > 0 and ranges * width > rows
    assert -(-bits // digit_bits) == passes
    objections = check_order(indices, rows)
    assert (objections > 0) == (pattern == "equal" and n > sort.rounds * ordered.THREADS)


@pytest.mark.parametrize("over", [0, 1])
def test_a_range_that_just_fits_in_shared_memory(over):
    n, rows = 7000, 5000
    sort = sort_of(n, rows)
    full, width = sort.rounds * ordered.THREADS, ordered._keys_of_range(rows, sort.ranges)
    assert 0 < full < n and sort.ranges > 4
    rng = np.random.default_rng(8)
    indices = rng.integers(3 * width, rows, n)
    indices[: full + over] = rng.integers(2 * width, 3 * width, full + over)
    indices[full + over :] = np.where(indices[full + over :] % 3, rows - 1, 3 * width)
    rng.shuffle(indices)
    assert check_order(indices, rows) == over


@pytest.mark.parametrize("value", [5, 999, 1000, 1 << 63, (1 << 64) - 1])
def test_the_order_of_unsigned_indices(value):
    indices = np.random.default_rng(9).integers(0, 1000, 3000).astype(np.uint64)
    indices[1234] = value
    assert sort_of(3000, 1000).ranges > 0
    assert check_order(indices, 1000) == 0


@pytest.mark.parametrize("strategy", sc.STRATEGIES)
@pytest.mark.parametrize("planned", [False, True])
def test_the_first_bad_index_is_named_and_the_rest_is_added(strategy, planned):
    indices = np.zeros(500, np.int64)
    indices[[70, 31, 400]] = [7, -8, 1 << 40]
    i, out = cuda_fake.asarray(indices), cuda_fake.zeros(7, "f4")
    plan = sc.make_plan(i, 7) if planned else None
    checked = sc.scatter_add(i, cuda_fake.asarray(np.ones(500, "f4")), out, plan, strategy)
    with pytest.raises(IndexError, match=r"^scatter_add: index -8 at position 31 .* 7 rows\.$"):
        checked.raise_if_bad()
    np.testing.assert_array_equal(out, [497, 0, 0, 0, 0, 0, 0])


def test_long_runs_that_start_anywhere_are_joined_in_the_same_order():
    rng = np.random.default_rng(3)
    values = rng.standard_normal((9000, 4)) * 2.0 ** rng.integers(0, 50, (9000, 1))
    values[1::2] = -values[::2]  # what is left are the roundings of the sums
    values = rng.permutation(values).astype("f4")
    indices, out = rng.integers(0, 2, 9000) // 2, np.zeros((2, 4), "f4")
    want = scattered(indices, values, out, strategy="ordered")
    same_bits(want, scattered(indices, values, out, strategy="ordered", planned=True))
    i, v, o = map(late, (indices, values, out))
    sc.scatter_add(i, v, o, strategy="ordered").raise_if_bad()
    same_bits(np.ascontiguousarray(o), want)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("strategy", sc.STRATEGIES)
def test_arrays_that_start_anywhere_give_the_same_bits(strategy, width):
    indices, values, out = draw("float32", 700, 30, width)
    want = scattered(indices, values, out, strategy=strategy)
    i, v, o = map(late, (indices, values, out))
    sc.scatter_add(i, v, o, strategy=strategy).raise_if_bad()
    same_bits(np.ascontiguousarray(o), want)


def test_a_plan_is_made_once_and_changes_no_bits():
    indices, values, out = draw("float32", 700, 60, 8)
    i, v = cuda_fake.asarray(indices), cuda_fake.asarray(values)
    plan = sc.make_plan(i, 60)
    assert (plan.size, plan.count, plan.nbytes) == (60, 700, 0)
    results = []
    for given in (plan, plan, None):
        o = cuda_fake.asarray(out)
        sc.scatter_add(i, v, o, given, "ordered").raise_if_bad()
        results.append(o)
    assert cuda_fake.launched.count("sort_indices") == 1
    assert cuda_fake.launched[-1] == "each_row"
    assert plan.nbytes >= 4 * 700
    same_bits(results[1], results[0])
    same_bits(results[2], results[0])


def test_few_bins_take_one_launch():
    indices, values, out = draw("float32", 3000, 20)
    scattered(indices, values, out)
    assert cuda_fake.launched == ["few_narrow"]


def test_nothing_to_add():
    out = np.ones((3, 2), "f4")
    same_bits(scattered(np.zeros(0, np.int64), np.zeros((0, 2), "f4"), out), out)
    assert cuda_fake.launched == []


@pytest.mark.parametrize("width", [1, 3, 4, 40])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "complex128"])
def test_gather(width, dtype):
    _, _, x = draw(dtype, 1, 9, width)
    indices = np.random.default_rng(1).integers(-9, 9, 400)
    x = x.reshape(9, width)
    out = cuda_fake.empty((400, width), dtype)
    sc.gather(cuda_fake.asarray(x), cuda_fake.asarray(indices), out).raise_if_bad()
    same_bits(out, x[indices])


def test_gather_names_a_bad_index():
    out, x = cuda_fake.empty((2, 2)), cuda_fake.zeros((3, 2))
    with pytest.raises(IndexError, match=r"^gather: index 3 at position 1 "):
        sc.gather(x, cuda_fake.asarray(np.array([0, 3])), out).raise_if_bad()


def test_errors_at_the_call():
    i, v = cuda_fake.asarray(np.zeros(4, np.int64)), cuda_fake.zeros((4, 2), "f4")
    with pytest.raises(DTypeError, match="one dtype"):
        sc.scatter_add(i, v, cuda_fake.zeros((3, 2), "f8"))
    with pytest.raises(DTypeError, match="indices are integers"):
        sc.scatter_add(v, v, cuda_fake.zeros((3, 2), "f4"))
    with pytest.raises(ShapeError, match="4 rows of 3"):
        sc.scatter_add(i, v, cuda_fake.zeros((2, 3), "f4"))


def test_calls_at_the_same_time_have_their_own_arguments(monkeypatch):
    indices, values, out = map(cuda_fake.asarray, draw("float32", 300, 5))
    other = cuda_fake.asarray(np.array(out))
    plain, seen = cuda_fake.Entry.launch, []

    def launch(*arguments):
        if not seen:
            seen.append(True)  # as another thread would, while this one waits for the driver
            sc.scatter_add(indices, values, other).raise_if_bad()
        plain(*arguments)

    monkeypatch.setattr(cuda_fake.Entry, "launch", launch)
    sc.scatter_add(indices, values, out).raise_if_bad()
    assert seen
    same_bits(out, other)


def test_threads_have_slots_of_their_own():
    with ThreadPoolExecutor(1) as thread:
        theirs = thread.submit(executor.StreamWords.of, 0, 0).result()
    ours = executor.StreamWords.of(0, 0)
    assert ours.take() + executor.SLOT_BYTES == ours.take()
    assert executor.StreamWords.of(0, 0) is ours and ours.address != theirs.address
    ours.used = executor.SLOTS
    assert executor.StreamWords.of(0, 0) is not ours
