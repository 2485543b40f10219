"""Index plans: they change no bits, live as long as their indices, and keep to their limit."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.compile.program.index_plans import IndexPlan, PlanCache
from pullback.core.avals import dense_strides
from pullback.runtime.cpu import native
from pullback.runtime.cpu.scatter.plans import PLANS, build
from pullback.runtime.cpu.scatter.strategies import Wanted

ROWS, WIDTH, COUNT = 300, 40, 2_000
PLAN_BYTES = 4 * (COUNT + ROWS + 1)
WANTED = Wanted("order", COUNT, ROWS)


@pytest.fixture(autouse=True)
def limit(settled: None) -> Iterator[None]:
    before = PLANS.limit
    assert PLANS.nbytes == 0
    yield
    pb.scatter_plan.set_limit(before)
    gc.collect()  # compiled functions and their constants
    assert PLANS.nbytes == 0


def drawn(seed: int = 0) -> tuple[pb.Tensor, pb.Tensor]:
    rng = np.random.default_rng(seed)
    index = pb.tensor(rng.integers(-ROWS, ROWS, COUNT))
    return index, pb.tensor(rng.standard_normal((COUNT, WIDTH)).astype(np.float32))


def bits(x: pb.Tensor) -> bytes:
    return np.asarray(x).tobytes()


def test_order_is_stable_and_starts_count() -> None:
    rng = np.random.default_rng(1)
    for rows, count in ((1, 5), (9, 0), (5_000, 100_000), (70_000, 300), (300_000, 200_000)):
        index = rng.integers(-rows, rows, count)
        t = pb.tensor(index)
        plan = build(t._buf, t.dtype, Wanted("order", count, rows))
        assert isinstance(plan, IndexPlan)
        order = np.frombuffer(memoryview(plan.arrays[0]), np.int32)[:count]
        starts = np.frombuffer(memoryview(plan.arrays[1]), np.int32)[: rows + 1]
        wrapped = np.where(index < 0, index + rows, index)
        assert np.array_equal(order, np.argsort(wrapped, kind="stable"))
        assert np.array_equal(np.diff(starts), np.bincount(wrapped, minlength=rows))


def test_the_second_use_makes_a_plan_and_no_bit_changes() -> None:
    index, updates = drawn()
    x, seen, sizes = pb.zeros((ROWS, WIDTH)), set(), []
    for _ in range(4):
        seen.add(bits(pb.scatter_add(x, index, updates)))
        sizes.append(PLANS.nbytes)
    assert len(seen) == 1
    assert sizes == [0, PLAN_BYTES, PLAN_BYTES, PLAN_BYTES]


@pytest.mark.parametrize(("rows", "shape"), [(20, (140_003,)), (300, (40_000,)), (20, (70_000, 3))])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "complex64", "float16"])
def test_reading_and_adding_few_rows_share_a_narrow_plan(
    rows: int, shape: tuple[int, ...], dtype: str
) -> None:
    rng = np.random.default_rng(3)
    index = pb.tensor(rng.integers(-rows, rows, shape[0]))
    updates = pb.tensor((100 * rng.standard_normal(shape)).astype(dtype))
    x = pb.tensor((100 * rng.standard_normal((rows, *shape[1:]))).astype(dtype))
    sums = {bits(pb.scatter_add(x, index, updates))}
    assert PLANS.nbytes == 0
    rows_read = {bits(pb.take(x, index, axis=0)) for _ in range(2)}
    sums |= {bits(pb.scatter_add(x, index, updates)) for _ in range(2)}
    assert len(sums) == len(rows_read) == 1
    assert rows_read == {np.asarray(x)[np.asarray(index)].tobytes()}
    expected = shape[0] * (1 if rows <= 256 else 2)
    if len(shape) == 1 and dtype in ("float32", "float16", "int8") and rows == 20:
        expected += 2 * -(-shape[0] // 2)  # cells of pairs, which only adding can use
    assert PLANS.nbytes == expected


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("bad", [20, -21, 1 << 31, (1 << 63) - 1, -(1 << 63)])
@pytest.mark.parametrize("at", [0, 39_999, 39_998])
def test_a_bad_index_among_few_rows_is_never_narrowed(dtype: str, bad: int, at: int) -> None:
    info = np.iinfo(dtype)
    given = np.zeros(40_000, dtype)
    given[at] = min(max(bad, info.min), info.max) or info.max
    index, x = pb.tensor(given), pb.zeros(20)
    for _ in range(3):
        with pytest.raises(IndexError, match=f"out of range .* position {at} "):
            pb.scatter_add(x, index, pb.ones(40_000))
        with pytest.raises(IndexError, match=f"out of range .* position {at} "):
            pb.take(x, index)
    with pytest.raises(IndexError):
        pb.scatter_plan(index, 20)
    assert PLANS.nbytes == 0


@pytest.mark.parametrize(("rows", "width", "count"), [(3_000, 1, 140_003), (70_000, 2, 140_000),
                                                      (5_000, 3, 30_000)])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_plans_of_narrow_rows_change_no_bits(rows: int, width: int, count: int, dtype: str) -> None:
    rng = np.random.default_rng(4)
    index = pb.tensor(rng.integers(-rows, rows, count))
    updates = pb.tensor((100 * rng.standard_normal((count, width))).astype(dtype))
    x = pb.tensor((100 * rng.standard_normal((rows, width))).astype(dtype))
    seen = {bits(pb.scatter_add(x, index, updates))}
    assert PLANS.nbytes == 0
    seen |= {bits(pb.scatter_add(x, index, updates)) for _ in range(3)}
    assert len(seen) == 1
    narrow = width * np.dtype(dtype).itemsize <= 16
    assert PLANS.nbytes > 4 * count if narrow else PLANS.nbytes == 4 * (count + rows + 1)


def test_derivatives_of_all_orders_share_one_plan() -> None:
    index, updates = drawn()
    x = pb.tensor(np.ones((ROWS, WIDTH), np.float32))

    def f(x: pb.Tensor) -> pb.Tensor:
        return (pb.take(x, index, axis=0) ** 3 * updates).sum()

    for _ in range(2):
        pb.grad(f)(x)
        pb.grad(lambda x: pb.grad(f)(x).sum())(x)
    assert PLANS.nbytes == PLAN_BYTES


def test_a_plan_dies_with_its_indices() -> None:
    index, updates = drawn()
    for _ in range(3):
        pb.scatter_add(pb.zeros((ROWS, WIDTH)), index, updates)
    assert pb.scatter_plan.cached_bytes() == PLAN_BYTES
    del index
    assert pb.scatter_plan.cached_bytes() == 0


def test_the_least_recently_used_plan_goes_first() -> None:
    pb.scatter_plan.set_limit(2 * PLAN_BYTES)
    pairs = [drawn(k) for k in range(3)]
    x = pb.zeros((ROWS, WIDTH))

    def use(k: int) -> int:
        pb.scatter_add(x, *pairs[k])
        return PLANS.nbytes

    for k in (0, 0, 1, 1, 0):
        use(k)
    assert PLANS.nbytes == 2 * PLAN_BYTES
    for _ in range(2):
        use(2)
    assert PLANS.nbytes == 2 * PLAN_BYTES
    kept = {key for key, entry in PLANS._entries.items() if entry.plan is not None}
    assert kept == {(id(pairs[k][0]._buf), pb.int64, WANTED) for k in (0, 2)}
    pb.scatter_plan.set_limit(0)
    assert PLANS.nbytes == 0
    assert use(1) == use(1) == 0


def test_a_held_plan_ignores_the_limit() -> None:
    pb.scatter_plan.set_limit(0)
    index, updates = drawn()
    plan = pb.scatter_plan(index, ROWS)
    assert (plan.size, plan.count, plan.nbytes) == (ROWS, COUNT, 2 * COUNT)
    want = pb.scatter_add(pb.zeros((ROWS, WIDTH)), pb.tensor(np.asarray(index)), updates)
    assert bits(pb.scatter_add(pb.zeros((ROWS, WIDTH)), plan, updates)) == bits(want)
    assert plan.nbytes == pb.scatter_plan.cached_bytes() == 2 * COUNT + PLAN_BYTES
    assert bits(pb.segment_sum(updates, plan)) == bits(want)
    assert bits(pb.index_add(pb.zeros((ROWS, WIDTH)), plan, updates)) == bits(want)
    read = pb.take(want, plan, axis=0)
    assert bits(read) == bits(pb.take(want, index, axis=0))
    del plan
    assert pb.scatter_plan.cached_bytes() == 0


def test_a_plan_of_a_strided_array_and_of_two_dimensions() -> None:
    index, _ = drawn()
    turned = pb.permute_dims(pb.reshape(index, (20, 100)), (1, 0))
    for view in (index[::3], turned, pb.full(COUNT, ROWS - 1)):
        plan = pb.scatter_plan(view, ROWS)
        assert plan.indices._aval.strides == dense_strides(view.shape)
        x = pb.tensor(np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH))
        assert bits(pb.take(x, plan, axis=0)) == bits(pb.take(x, view, axis=0))


def test_errors() -> None:
    with pytest.raises(IndexError, match=r"scatter_plan: index 7 is out of range .* position 1 "):
        pb.scatter_plan(pb.tensor([0, 7]), 7)
    with pytest.raises(pb.DTypeError, match="integers"):
        pb.scatter_plan(pb.tensor([0.5]), 7)
    with pytest.raises(pb.ShapeError, match="negative"):
        pb.scatter_plan(pb.tensor([0]), -1)
    plan: Any = pb.scatter_plan(pb.tensor([0, 1]), 7)
    with pytest.raises(pb.ShapeError, match="take: the plan is for 7 places"):
        pb.take(pb.zeros(6), plan)
    with pytest.raises(pb.DTypeError, match="take_along_axis"):
        pb.take_along_axis(pb.zeros(7), plan)
    with pytest.raises(pb.TraceError):
        pb.jit(lambda i: pb.take(pb.zeros(7), pb.scatter_plan(i, 7)))(pb.tensor([0]))


def test_a_bad_index_is_found_at_every_use() -> None:
    index = pb.tensor(np.array([0] * (COUNT - 1) + [ROWS]))
    for _ in range(3):
        with pytest.raises(IndexError, match=f"index {ROWS} .* position {COUNT - 1} "):
            pb.scatter_add(pb.zeros((ROWS, WIDTH)), index, pb.zeros((COUNT, WIDTH)))


def test_many_threads_use_and_drop_plans() -> None:
    cache = PlanCache(build, native.is_foreign, 3 * PLAN_BYTES)
    failures = []

    def work(seed: int) -> None:
        for k in range(20):
            index, _ = drawn(seed + k % 3)
            for _ in range(2):
                cache.find(index._buf, index.dtype, WANTED)
            plan = cache.find(index._buf, index.dtype, WANTED)
            assert plan is not None
            order = np.frombuffer(memoryview(plan.arrays[0]), np.int32)[:COUNT]
            wrapped = np.asarray(index) % ROWS
            if not np.array_equal(order, np.argsort(wrapped, kind="stable")):
                failures.append(seed)

    workers = [threading.Thread(target=work, args=(10 * k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    assert cache.nbytes == 0 and not cache._entries


@pytest.mark.parametrize(("rows", "rest"), [(ROWS, (WIDTH,)), (20, ()), (70_000, ())])
def test_a_compiled_function_uses_plans_from_the_second_call_on(
    rows: int, rest: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(5)
    count = COUNT if rest else 140_000
    index, captured = (pb.tensor(rng.integers(-rows, rows, count)) for _ in range(2))
    x = pb.tensor(rng.standard_normal((rows, *rest)).astype(np.float32))
    weights = pb.tensor(rng.standard_normal((count, *rest)).astype(np.float32))

    def f(x: pb.Tensor, index: pb.Tensor) -> pb.Tensor:
        return (pb.take(x, index, axis=0) * pb.take(x, captured, axis=0) * weights).sum()

    compiled = pb.jit(pb.grad(f))
    seen, sizes = {bits(compiled(x, pb.tensor(np.asarray(index))))}, [PLANS.nbytes]
    for _ in range(3):
        seen.add(bits(compiled(x, index)))
        sizes.append(PLANS.nbytes)
    assert sizes[0] == 0 < sizes[1] < sizes[2] == sizes[3]
    want = pb.jit(pb.grad(f))
    assert bits(want(x, index)) in seen
    assert len(seen) == 1
    bad = np.array(index)
    bad[7] = rows
    wrong = pb.tensor(bad)
    for _ in range(3):
        with pytest.raises(IndexError, match="out of range"):
            compiled(x, wrong)


def test_a_compiled_sum_has_the_bits_of_a_single_operation() -> None:
    for rows, width in ((20, 1), (300, 40), (70_000, 1)):
        rng = np.random.default_rng(6)
        count = 140_000 if width == 1 else 3_000
        index = pb.tensor(rng.integers(0, rows, count))
        updates = pb.tensor(rng.standard_normal((count, width)).astype(np.float32))
        zeros = pb.zeros((rows, width))
        compiled = pb.jit(lambda z, i, u: pb.scatter_add(z, i, u))
        want = bits(pb.scatter_add(zeros, pb.tensor(np.asarray(index)), updates))
        assert {bits(compiled(zeros, index, updates)) for _ in range(3)} == {want}


def test_a_plan_inside_of_subscripts() -> None:
    rng = np.random.default_rng(7)
    x = pb.tensor(rng.standard_normal((5, 7, 3)).astype(np.float32))
    given = rng.integers(-7, 7, (4, 6))
    plan = pb.scatter_plan(pb.tensor(given), 7)
    for key, plain in (
        ((slice(None), plan), np.s_[:, given]),
        ((..., plan, 1), np.s_[..., given, 1]),
        ((2, plan, slice(1, None)), np.s_[2, given, 1:]),
    ):
        for _ in range(2):  # the second time the reading of the key is remembered
            assert np.array_equal(x[key].numpy(), np.asarray(x)[plain])
    y = pb.grad(lambda x: (x[:, plan] ** 2).sum())(x)
    want = np.zeros((5, 7, 3))
    np.add.at(want.swapaxes(0, 1), given, 2 * np.asarray(x).swapaxes(0, 1)[given])
    assert np.allclose(y.numpy(), want, rtol=1e-5)
    x[:, plan] = 0.0
    assert np.count_nonzero(np.asarray(x)) == 3 * 5 * (7 - len(np.unique(given % 7)))
    with pytest.raises(pb.ShapeError, match="the plan is for 7 places, got an axis of size 5"):
        x[plan]


def test_a_plan_of_an_embedding() -> None:
    rng = np.random.default_rng(8)
    weight = pb.tensor(rng.standard_normal((ROWS, WIDTH)).astype(np.float32))
    tokens = pb.tensor(rng.integers(0, ROWS, (50, 40)))
    plan: Any = pb.scatter_plan(tokens, ROWS)
    assert bits(pb.nn.embedding(plan, weight)) == bits(pb.nn.embedding(tokens, weight))
