"""Calls that do not repeat: ever new places, numbers and shapes, and values written in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.ir.plans import forget_plans


def _array(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def _key(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple:
    key: list = []
    for n in shape[: rng.integers(0, len(shape) + 1)]:
        if n and rng.integers(2):
            kind = [int, np.int64, np.int32][rng.integers(3)]
            key.append(kind(rng.integers(-n, n)))
        else:
            first, last = [
                None if rng.integers(3) == 0 else int(rng.integers(-n - 2, n + 3)) for _ in "ab"
            ]
            key.append(slice(first, last, [None, 1, 2, -1, -3][rng.integers(5)]))
    return tuple(key)


@pytest.mark.parametrize("seed", range(20))
def test_plain_keys_are_those_of_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(20):
        shape = tuple(int(n) for n in rng.integers(0, 6, rng.integers(1, 4)))
        x, reverse = _array(*shape), tuple(range(len(shape)))[::-1]
        layouts = [
            (pb.tensor(x), x),
            (pb.permute_dims(pb.tensor(x), reverse), x.T),
            (pb.tensor(x)[::-1], x[::-1]),
        ]
        for t, array in layouts:
            key = _key(rng, array.shape)
            np.testing.assert_array_equal(t[key].numpy(), array[key])
            before, expected = t.numpy().copy(), array.copy()
            value = rng.normal(size=array[key].shape).astype(np.float32)
            expected[key] = value
            written = t + 0
            written[key] = value
            np.testing.assert_array_equal(written.numpy(), expected)
            written[key] = 7
            expected[key] = 7
            np.testing.assert_array_equal(written.numpy(), expected)
            np.testing.assert_array_equal(t.numpy(), before)


def test_views_of_ever_new_places_have_gradients() -> None:
    x = pb.tensor(_array(4, 3), requires_grad=True)
    total = pb.tensor(0.0)
    for k in range(4):
        total = total + (k + 1) * (x[k] ** 2).sum() + x[k, k % 3] * x[-1 - k :, ::2].sum()
    total.backward()

    def loss(x: np.ndarray) -> float:
        rows = sum((k + 1) * (x[k] ** 2).sum() for k in range(4))
        return float(rows + sum(x[k, k % 3] * x[-1 - k :, ::2].sum() for k in range(4)))

    exact = _array(4, 3).astype(np.float64)
    for at in np.ndindex(4, 3):
        step = np.zeros((4, 3))
        step[at] = 1e-3
        slope = (loss(exact + step) - loss(exact - step)) / 2e-3
        assert float(x.grad[at]) == pytest.approx(slope, rel=1e-4)


def test_a_written_value_has_a_gradient() -> None:
    x, v = pb.tensor(_array(3, 4), requires_grad=True), pb.tensor(2.0, requires_grad=True)
    y = x * 1.0
    for k in range(3):
        y[k, 1:3] = v * (k + 1)
        y[k, 0] = x[k, 3] * v
    (y**2).sum().backward()
    # y = [3 cols] v (k + 1) twice, x[k, 3] v, and x[k, 3] itself
    last = _array(3, 4)[:, 3]
    expected = np.zeros((3, 4), np.float32)
    expected[:, 3] = 2 * last + 2 * last * 4
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-6)
    slope = sum(2 * 2 * 2.0 * (k + 1) ** 2 for k in range(3)) + (2 * 2.0 * last**2).sum()
    assert float(v.grad) == pytest.approx(float(slope), rel=1e-6)


def _address(x) -> int:
    return x._buf.address


def test_a_value_goes_into_memory_that_nobody_else_has() -> None:
    x = pb.tensor(_array(1000)) + 0
    at = _address(x)
    for k in range(10):
        x[k] = float(k) - 5
        x[k + 20 : k + 40] = pb.ones(20)
    assert _address(x) == at
    assert x[3].item() == -2.0
    assert x[45].item() == 1.0
    assert x[60].item() == 60.0


def _shared_by(how: str, x):
    """Something that has the memory of `x`, and a function that tells what it sees."""
    if how == "view":
        other = x[2:]
        return lambda: other.numpy()
    if how == "handle":
        other = x.detach()
        return lambda: other.numpy()
    if how == "numpy":
        array = x.numpy()
        return lambda: array
    if how == "reshaped":
        other = x.reshape((2, -1))
        return lambda: other.numpy()
    if how == "recorded":
        leaf = pb.tensor(3.0, requires_grad=True)
        product = x * leaf

        def slope():
            leaf.grad = None
            product.sum().backward(retain_graph=True)
            return leaf.grad.numpy()

        return slope
    if how == "list":
        other = [x._buf]
        return lambda: x.device.runtime.to_numpy(other[0], x._aval)
    function = pb.jit(lambda y: y + x)
    return lambda: function(pb.zeros(8)).numpy() - x.numpy()


@pytest.mark.parametrize("how", ["view", "handle", "numpy", "reshaped", "recorded", "list", "jit"])
def test_what_others_see_does_not_change(how: str) -> None:
    x = pb.tensor(_array(8)) + 0
    seen = _shared_by(how, x)
    before = np.array(seen())
    x[3] = 100.0
    x[4:6] = pb.tensor([7.0, 8.0])
    np.testing.assert_array_equal(np.array(seen()), before)
    np.testing.assert_array_equal(x.numpy(), [0, 1, 2, 100, 7, 8, 6, 7])


def test_memory_of_others_is_not_written_to() -> None:
    array = _array(6)
    x = pb.asarray(array, copy=False)
    x[1] = 50.0
    assert array[1] == 1.0
    assert x[1].item() == 50.0


def test_a_value_may_come_from_the_array_itself() -> None:
    x = pb.tensor(_array(6)) + 0
    x[1:] = x[:-1]
    np.testing.assert_array_equal(x.numpy(), [0, 0, 1, 2, 3, 4])


def test_large_values_too() -> None:
    n = 200_000  # beyond what one task writes at once
    x = pb.tensor(_array(n)) + 0
    x[1 : n - 1] = pb.full((n - 2,), 3.0)
    x[5] = 4.0
    expected = np.full(n, 3.0, np.float32)
    expected[[0, 5, n - 1]] = 0, 4, n - 1
    np.testing.assert_array_equal(x.numpy(), expected)


def test_a_plan_of_indices_does_not_outlive_them() -> None:
    updates, base = pb.ones((4096, 8)), pb.zeros((64, 8))
    indices = pb.tensor(np.arange(4096) % 64) + 0
    counts = [pb.scatter_add(base, indices, updates)[:, 0].numpy().copy() for _ in range(3)]
    indices[0] = 63
    after = pb.scatter_add(base, indices, updates)[:, 0].numpy()
    assert counts[2][0] == 64
    assert after[0] == 63
    assert after[63] == 65


def test_a_leaf_is_not_touched_by_a_refused_update() -> None:
    x = pb.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(pb.GradientError, match="leaf"):
        x[0] = 5.0
    np.testing.assert_array_equal(x.detach().numpy(), [1.0, 2.0])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint32", "float16"])
@pytest.mark.parametrize(
    "number", [0, 3, -7, 2**24 + 1, 2**31 - 1, 0.1, -0.0, 1e-40, float("inf"), float("nan"), True]
)
def test_new_numbers_are_those_of_numpy(dtype: str, number: float) -> None:
    x = np.ones(3, dtype)
    if isinstance(number, float) and x.dtype.kind in "iu":
        pytest.skip("the result is a float")
    if dtype == "float16" and 65504 < number < float("inf"):
        pytest.skip("NumPy warns of the infinity that is the result")
    if number == -7 and x.dtype.kind == "u":
        with pytest.raises(pb.DTypeError, match="fit"):
            pb.tensor(x) * number
        return
    with np.errstate(all="ignore"):
        expected = x * np.asarray(number).astype(dtype)
    got = (pb.tensor(x) * number).numpy()
    assert got.tobytes() == expected.astype(dtype).tobytes()


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 8, 16, 17, 182, 1024, 65537])
def test_new_shapes(n: int) -> None:
    x = _array(n)
    for shape in [(n,), (n, 1), (1, n), (2, n) if n < 2000 else (n, 1)]:
        array = np.resize(x, shape).astype(np.float32)
        t = pb.tensor(array)
        np.testing.assert_array_equal((t + 1).numpy(), array + 1)
        np.testing.assert_array_equal((t * t).numpy(), array * array)
        np.testing.assert_array_equal((t[::-1] + t).numpy(), array[::-1] + array)
        np.testing.assert_array_equal((t + pb.ones(shape)).numpy(), array + 1)
        if len(shape) == 2:
            np.testing.assert_array_equal((t.T + t.T).numpy(), array.T + array.T)
            np.testing.assert_array_equal((t.T + pb.ones(shape[::-1])).numpy(), array.T + 1)


def test_joined_sequences_are_remembered_by_what_they_join() -> None:
    a, b = pb.tensor([1.0, 2.0]), pb.tensor([3.0], requires_grad=True)
    for _ in range(3):
        out = pb.concat([a, b])
        np.testing.assert_array_equal(out.detach().numpy(), [1, 2, 3])
        assert out.requires_grad
    whole = pb.concat([a, pb.tensor([1], dtype="int64")])
    assert whole.dtype == "float32"
    assert pb.concat((a, a)).shape == (4,)
    np.testing.assert_array_equal(pb.concat([a, a], axis=-1).numpy(), [1, 2, 1, 2])
    with pytest.raises(pb.ShapeError, match="at least one"):
        pb.concat([])


def test_lists_of_floats() -> None:
    for value in ([1.5, -0.0, 3e38], (0.1,), [0.1, float("nan"), float("inf")]):
        for dtype, expected in ((None, np.float32), ("float64", np.float64)):
            x = pb.tensor(value, dtype=dtype)
            np.testing.assert_array_equal(x.numpy(), np.array(value, expected))
            assert (
                x.numpy().dtype == expected
                and x.numpy().tobytes() == np.array(value, expected).tobytes()
            )
    assert pb.tensor([1.0, 2]).dtype == "float32" and pb.tensor([1.0, 2], dtype="int32")[0] == 1
    assert pb.tensor([True, 1.0]).dtype == "float32" and pb.tensor([1.0, 1j]).dtype == "complex64"
    assert pb.tensor([np.float64(0.1), np.float64(0.2)]).dtype == "float64"
    given = [1.0, 2.0]
    x = pb.tensor(given)
    x[0] = 5.0
    assert given == [1.0, 2.0] and pb.tensor(given)[0] == 1.0


@pytest.mark.parametrize("shape", [3, (3,), [3], np.int64(3), (np.int32(3),), pb.tensor(3)])
def test_shapes_of_every_kind(shape: Any) -> None:
    assert pb.zeros(shape).shape == (3,)
    wrong: list[Any] = [True, (True,), 1.0, (2.0,), "3"]
    for bad in wrong:
        with pytest.raises(pb.DTypeError, match="a shape is made of integers"):
            pb.zeros(bad)
    for bad in (-1, (2, -1)):
        with pytest.raises(pb.ShapeError, match="no negative sizes"):
            pb.zeros(bad)


def test_keys_wherever_their_words_lie() -> None:
    keys = pb.random.split(pb.random.key(0), 3)
    wide = pb.stack([keys, keys], axis=2)[:, :, 0]
    for k in range(3):
        expected = pb.random.normal(keys[k], 5).numpy()
        for key in (wide[k], keys.numpy()[k], pb.tensor(keys.numpy()[k])):
            np.testing.assert_array_equal(pb.random.normal(key, 5).numpy(), expected)
    drawn = pb.vmap(lambda key: pb.random.normal(key, 5))(keys)
    np.testing.assert_array_equal(drawn[2].numpy(), pb.random.normal(keys[2], 5).numpy())


def test_what_replaces_all_of_an_array_does_not_depend_on_it():
    """As where it is traced: else a derivative of zero has the sign of what it is multiplied by."""

    def f(x: Any, y: Any) -> Any:
        z = x * y
        z[:] = pb.ones(3)
        return (z * 1.0).sum()

    x, y = -pb.ones(3), -pb.ones(3)
    eager, compiled = pb.grad(f)(x, y), pb.jit(pb.grad(f))(x, y)
    assert not np.signbit(eager.numpy()).any()
    np.testing.assert_array_equal(np.signbit(eager.numpy()), np.signbit(compiled.numpy()))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lists_of_floats_are_rounded_as_numpy_does(dtype):
    tiny, largest = np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max
    edges = [0.1, -0.0, np.inf, -np.inf, float(tiny) / 2, float(largest) * (1 + 2**-25), 1e39]
    for values in ([1.0, 2.0, 3.0], [float(v) for v in edges], [0.3] * 65):
        with np.errstate(over="ignore"):
            found, expected = pb.tensor(values, dtype=dtype).numpy(), np.array(values, dtype)
        assert found.tobytes() == expected.tobytes()
    assert np.isnan(pb.tensor([1.0, float("nan")], dtype=dtype).numpy()).tolist() == [False, True]


def test_a_stack_of_arrays_of_one_kind_is_that_of_others():
    x, y = (pb.tensor(v) for v in np.random.default_rng(0).standard_normal((2, 3, 4)))
    across = pb.tensor(np.asfortranarray(y.numpy()))
    for pair in ([x, y], (x, y), [x, across], [x.T, y.T], [x[0], y[1]]):
        expected = np.stack([v.numpy() for v in pair])
        np.testing.assert_array_equal(pb.stack(pair).numpy(), expected)
    g = pb.grad(lambda x: (pb.stack([x, x]) * pb.stack([y, x])).sum())(x)
    np.testing.assert_allclose(g.numpy(), y.numpy() + 2 * x.numpy(), rtol=1e-14)
    with pytest.raises(pb.ShapeError, match="stack: arrays need the same shape"):
        pb.stack([x, y[:2]])


@pytest.mark.parametrize("dtype", ["float32", "int64", "float16"])
def test_new_shapes_of_known_kinds_of_calls(dtype: str) -> None:
    one: Any = pb.ones((2, 3), dtype=dtype)
    leaf: Any = pb.tensor(2.0, requires_grad=True)
    for n in range(2, 40):
        shape = (n % 4 + 1, n)
        array = np.arange(n * (n % 4 + 1)).reshape(shape).astype(dtype)
        x = pb.tensor(array)
        for _ in range(3):  # the first of its shape, one that is kept, and one that is found
            np.testing.assert_array_equal((x + 1).numpy(), array + array.dtype.type(1))
            np.testing.assert_array_equal((x < pb.ones(shape, dtype=dtype)).numpy(), array < 1)
            np.testing.assert_array_equal((pb.ones(shape, dtype=dtype) + x).numpy(), array + 1)
            assert (x + 1).dtype == dtype and (x < x).dtype == "bool"
            assert (x * 0.5).dtype == ("float32" if dtype == "int64" else dtype)
            product = x.astype("float32") * leaf
            assert product.requires_grad and not (x + 1).requires_grad
            leaf.grad = None
            product.sum().backward()
            assert pb.asarray(leaf.grad).item() == array.sum(dtype="float64")
        with pytest.raises(pb.ShapeError, match="broadcast"):
            _ = x + pb.ones((n % 4 + 1, n + 1), dtype=dtype)
    assert (one + 1).shape == (2, 3)


def test_new_shapes_are_seen_by_who_looks_on() -> None:
    for n in range(5, 9):
        pb.exp(pb.ones(n) + 1)
    report = pb.profile(lambda: pb.exp(pb.ones(11) + 1))()
    assert {"add", "exp"} <= {row.name for row in report.rows}


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "int8", "int32", "uint64", "bool", "complex64"]
)
def test_written_numbers_are_those_of_numpy(dtype: str) -> None:
    for number in (0, 3, True, 2**53 + 1, 0.1, -0.0, 1e300, float("inf"), float("nan")):
        if isinstance(number, float) and not np.isfinite(number) and dtype[0] not in "fc":
            continue
        array = np.zeros((2, 3), dtype)
        x = pb.tensor(array) + (False if dtype == "bool" else 0)
        if dtype[0] in "iu" and number > np.iinfo(dtype).max:
            if isinstance(number, int):
                with pytest.raises(pb.DTypeError, match="fit"):
                    x[1, 2] = number
            continue
        with np.errstate(all="ignore"):
            array[1, 2] = x[1, 2] = number
        assert x.numpy().tobytes() == array.tobytes()
    if dtype[0] == "i":
        x[0, 0] = -1
        assert x[0, 0].item() == -1


def test_stacks_are_remembered_by_what_they_join() -> None:
    a, b = pb.tensor([1.0, 2.0]), pb.tensor([3.0, 4.0])
    stack: Any = pb.stack
    for _ in range(3):
        np.testing.assert_array_equal(pb.stack([a, b]).numpy(), [[1, 2], [3, 4]])
        np.testing.assert_array_equal(pb.stack([b, a], axis=1).numpy(), [[3, 1], [4, 2]])
        np.testing.assert_array_equal(stack((a, b), dim=-1).numpy(), [[1, 3], [2, 4]])
        np.testing.assert_array_equal(pb.stack([a[0], 7.0]).numpy(), [1, 7])
        assert pb.stack([a, pb.tensor([1, 2])]).dtype == "float32"
        with pytest.raises(pb.ShapeError, match="same shape"):
            pb.stack([a, pb.ones(3)])
        with pytest.raises(pb.AxisError, match="out of range"):
            pb.stack([a, b], axis=True + 2)
        leaf = pb.tensor([5.0, 6.0], requires_grad=True)
        (pb.stack([a, leaf]) * pb.tensor([[1.0, 1.0], [2.0, 3.0]])).sum().backward()
        np.testing.assert_array_equal(leaf.grad.numpy(), [2, 3])
    assert pb.jit(lambda x: pb.stack([x, x]))(a).shape == (2, 2)
    assert pb.vmap(lambda x: pb.stack([x, x]))(pb.ones((3, 2))).shape == (3, 2, 2)


def test_only_shapes_that_come_back_are_kept() -> None:
    add: Any = pb.add
    plans = add.op.plans
    plans.clear()
    for n in range(300, 305):
        x = pb.tensor(_array(n))
        _ = x + x
    before = len(plans)
    for turn in (0, 1, 1):
        for n in range(400, 410):
            x = pb.tensor(_array(n))
            np.testing.assert_array_equal((x + x).numpy(), 2 * _array(n))
        assert len(plans) - before == 10 * turn


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sum(), lambda x: x.mean(axis=0), lambda x: x.max(axis=-1),
        lambda x: x.argmax(axis=-1), lambda x: x.reshape(-1), lambda x: x.mT, lambda x: x @ x.mT,
        lambda x: pb.concat([x, x]), lambda x: x.mT + x[:1].mT, lambda x: pb.nn.softmax(x, -1),
    ],
)  # fmt: skip
def test_new_sizes_are_hardly_ever_planned_anew(
    call: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[str] = []
    runtime = pb.ones(1).device.runtime
    made = runtime.plan

    def plan(op: Any, *rest: Any) -> Any:
        planned.append(op.name)
        return made(op, *rest)

    monkeypatch.setattr(runtime, "plan", plan)
    forget_plans()
    xs = [pb.tensor(np.ones((m, n), np.float32)) for n in range(48, 120) for m in range(40, 60)]
    for x in xs[:-400]:
        call(x)
    planned.clear()
    for x in xs[-400:]:
        call(x)
    assert len(planned) <= 20


def test_new_sizes_are_seen_by_who_looks_on() -> None:
    xs = [pb.tensor(np.ones((n, 40), np.float32)) for n in range(60, 200)]
    for x in xs:
        x.sum(axis=0)
    report = pb.profile(lambda: pb.ones((201, 40)).sum(axis=0))()
    assert "sum" in {row.name for row in report.rows}
