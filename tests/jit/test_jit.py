"""`pb.jit`: signatures and the cache, captured state, derivatives, and what can't be traced."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest

import pullback as pb
from jit.jit_checks import Layer, Pair, close, equal, here, tensor, wave
from pullback import compiled
from pullback.ir.numbers import Number

# -- arguments and results -------------------------------------------------------------------------


def test_trees_of_arguments_and_results():
    def f(params, pair, *, scale):
        (layer, [c]) = params["net"], params["rest"]
        y = pb.tanh(pair.first @ layer.weight + layer.bias) * scale
        return {
            "y": y,
            "pair": Pair(pair.second, [c + 1, None]),
            "layer": Layer(c, y.sum()),
            "n": 3,
        }

    x = {"net": Layer(tensor(4, 2), tensor(2)), "rest": [tensor(3)]}
    args = (x, Pair(tensor(5, 4), tensor(2, 2, dtype="float32")))
    equal(pb.jit(f)(*args, scale=tensor()), f(*args, scale=tensor()))


def test_one_trace_per_signature():
    traces = []

    @pb.jit
    def f(x, n=2):
        traces.append(x.shape)
        return x * n

    for shape in [(3,), (3,), (4,), (3,)]:
        f(tensor(*shape))
    assert traces == [(3,), (4,)]
    f(tensor(3, dtype="float32"))
    f(tensor(3), 2)
    f(tensor(3), 2)
    f(tensor(3), n=3)
    assert len(traces) == 5
    assert f.cache_info() == (3, 5, compiled.CACHE_SIZE, 5)
    f.clear()
    assert f.cache_info() == (0, 0, compiled.CACHE_SIZE, 0)
    equal(f(tensor(3)), tensor(3) * 2)


def test_strides_are_no_part_of_the_signature():
    f = pb.jit(lambda x: pb.sin(x) + 1)
    x = tensor(4, 5)
    for view in (x, pb.permute_dims(x, (1, 0))[:4], x[:, ::-1], pb.broadcast_to(x[0], (4, 5))):
        equal(f(view[:4, :4]), pb.sin(view[:4, :4]) + 1)
    assert f.cache_info().misses == 1


def test_python_values_that_are_looked_at_are_static():
    seen = []

    @pb.jit
    def f(x, power, name):
        seen.append((power, name))
        return x**power if name == "power" else x

    x = tensor(3, dtype="float32")
    for power in (2, 2, 2.0, True, 0.0, -0.0, float("nan"), float("nan")):
        equal(f(x, power, "power").dtype, (x**power).dtype)
    static = [type(p) for p, _ in seen if type(p) is not Number]
    assert static == [int, float, bool, float, float, float]
    equal(f(x, 2, "other"), x)


def test_python_numbers_keep_weak_promotion():
    f = pb.jit(lambda x, s: x * s)
    for dtype in (pb.float16, pb.float32, pb.float64, pb.int32, pb.complex64):
        x = pb.ones(2, dtype=dtype)
        for s in (2, 2.5, True):
            assert f(x, s).dtype is (x * s).dtype


def test_numpy_arguments_are_traced():
    f = pb.jit(lambda x, s: x * s)
    a = np.arange(3.0)
    equal(f(a, np.float32(2)), pb.tensor(a * 2))
    equal(f(a + 1, np.float32(3)), pb.tensor((a + 1) * 3))
    assert f.cache_info().misses == 1


def test_static_arguments():
    traces = []

    @pb.jit(static_argnums=1, static_argnames="mode")
    def f(x, shape, mode="plus"):
        traces.append((shape, mode))
        return pb.reshape(x, shape) + (1 if mode == "plus" else 0)

    x = tensor(6)
    equal(f(x, (2, 3)), pb.reshape(x, (2, 3)) + 1)
    equal(f(x, shape=(2, 3)), pb.reshape(x, (2, 3)) + 1)
    equal(f(x, (2, 3), "zero"), pb.reshape(x, (2, 3)) + 0)
    f(x, (2, 3), mode="zero")
    assert len(traces) == 4
    f(x, (2, 3), mode="zero")
    assert len(traces) == 4
    with pytest.raises(pb.DTypeError, match="hashable"):
        f(x, [2, 3])
    with pytest.raises(pb.DTypeError, match="static_argnames"):
        pb.jit(lambda x: x, static_argnames="y")
    with pytest.raises(pb.DTypeError, match="static_argnums"):
        pb.jit(lambda x: x, static_argnums=3)
    with pytest.raises(pb.DTypeError, match="got int"):
        pb.jit(3)  # pyright: ignore[reportArgumentType]


def test_objects_are_static_by_identity_or_refused():
    f = pb.jit(lambda x, g: g(x))
    x = tensor(3)
    equal(f(x, pb.sin), pb.sin(x))
    equal(f(x, pb.cos), pb.cos(x))
    with pytest.raises(pb.DTypeError, match="hashable"):
        f(x, {1, 2})


def test_outputs_that_need_no_computing():
    c = tensor(2, seed=3)

    def f(x, y):
        s = x + y
        return x, y, c, s, s, (x, 7, "text", None), pb.zeros((2, 2)), y[::2]

    x, y = tensor(4), pb.permute_dims(tensor(2, 4), (1, 0))[:, 0]
    equal(pb.jit(f)(x, y), f(x, y))
    equal(pb.jit(lambda x: x)(x), x)
    equal(pb.jit(lambda x: 5)(x), 5)
    equal(pb.jit(lambda: pb.ones(3))(), pb.ones(3))


def test_outputs_that_are_views_of_values_used_otherwise():
    def f(x):
        m = x * x
        first, second = m[:, 0:1], m[:, 1:2]
        return pb.concat([second, first], axis=1), first, second

    equal(pb.jit(f)(tensor(3, 2)), f(tensor(3, 2)))


def test_a_value_that_two_sums_read_in_different_ways():
    def f(x, y):
        m = x * y
        return m.sum(axis=1), m.sum(), m.sum(axis=0)

    args = (tensor(4, 5), tensor(4, 1, seed=1))
    for a, b in zip(pb.jit(f)(*args), f(*args), strict=True):
        close(a, b)


def test_results_are_new_handles():
    c = tensor(3)
    f = pb.jit(lambda x: (x, c))
    x = tensor(3, seed=1)
    before = x.numpy().copy()
    for _ in range(2):
        a, b = f(x)
        a[0] = 9.0
        b[0] = 9.0
        np.testing.assert_array_equal(x.numpy(), before)
        np.testing.assert_array_equal(c.numpy(), tensor(3).numpy())


def test_zero_size_and_zero_dimensions():
    f = pb.jit(lambda x: (x * 2, x.sum(), pb.exp(x)[..., None]))
    for x in (pb.zeros((0, 3)), pb.tensor(2.0), pb.zeros((2, 0))):
        equal(f(x), (x * 2, x.sum(), pb.exp(x)[..., None]))


def test_complex_values():
    def f(z):
        return (pb.abs(pb.exp(z) * z) ** 2).sum()

    z = pb.tensor(np.asarray([1 + 2j, 0.5 - 1j]))
    close(pb.jit(f)(z), f(z))
    close(pb.jit(pb.grad(f))(z), pb.grad(f)(z))
    close(pb.grad(pb.jit(f))(z), pb.grad(f)(z))


def test_setitem_inside():
    def f(x, i):
        y = pb.zeros(4, dtype="float64")
        y[1] = x.sum()
        y[i] = x[0] * 2
        y[y > 1] = 0.5
        y += 1
        return y

    args = (tensor(3), pb.tensor(2))
    equal(pb.jit(f)(*args), f(*args))


def test_updates_of_arguments_reach_the_caller():
    def f(x, y):
        x[0] = y.sum()
        x *= 2
        return x + 1

    a, b = tensor(3), tensor(3)
    jitted = pb.jit(f)
    for _ in range(2):
        equal(jitted(a, tensor(2)), f(b, tensor(2)))
        equal(a, b)
    with pytest.raises(pb.TraceError, match="NumPy array in place"):
        jitted(np.ones(3), tensor(2))


def test_random_keys_inside():
    def f(key, x):
        a, b = pb.random.split(key)
        return x + pb.random.normal(a, x.shape), pb.random.uniform(b, (2,))

    jitted = pb.jit(f)
    for seed in (1, 2):
        key = pb.random.key(seed)
        equal(jitted(key, tensor(3, dtype="float32")), f(key, tensor(3, dtype="float32")))
    assert jitted.cache_info().misses == 1


def test_methods_can_be_jitted():
    class Model:
        def __init__(self, scale):
            self.scale = scale

        @pb.jit
        def run(self, x):
            return x * self.scale

    a, b = Model(2.0), Model(3.0)
    x = tensor(3)
    equal(a.run(x), x * 2.0)
    equal(b.run(x), x * 3.0)


def test_defaults_are_part_of_the_signature():
    f = pb.jit(lambda: pb.ones(2) * 1.5)
    assert f().dtype is pb.float32
    pb.set_default_float(pb.float64)
    try:
        assert f().dtype is pb.float64
    finally:
        pb.set_default_float(pb.float32)


def test_the_cache_is_bounded_and_forgets_what_was_not_used():
    f = pb.jit(lambda x: x + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.RetraceWarning)
        for n in range(1, compiled.CACHE_SIZE + 10):
            f(pb.zeros(n))
            f(pb.zeros(1))
    info = f.cache_info()
    assert info.currsize == compiled.CACHE_SIZE
    misses = info.misses
    f(pb.zeros(1))
    assert f.cache_info().misses == misses


def test_retracing_is_warned_about_and_says_what_changed():
    f = pb.jit(lambda x, step: x * float(step), name="update")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(compiled.MANY_TRACES + 1):
            f({"w": tensor(2)}["w"], step)
        line = here(-1)
    (warning,) = caught
    assert warning.category is pb.RetraceWarning
    text = str(warning.message)
    assert "`update`" in text and f"traced {compiled.MANY_TRACES + 1} times" in text
    assert "step was 15, now 16" in text and "x was" not in text
    assert f"{warning.filename}:{warning.lineno}" == line


def test_traces_that_fail_are_not_counted():
    f = pb.jit(lambda x: pb.reshape(x, (2,)))
    for _ in range(compiled.MANY_TRACES + 2):  # a RetraceWarning would be raised instead
        with pytest.raises(pb.ShapeError, match="reshape"):
            f(pb.zeros(3))


def test_kinds_of_arrays_are_not_warned_about_while_all_are_kept():
    f = pb.jit(lambda x: x + 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(compiled.CACHE_SIZE):
            f([pb.zeros(n), np.zeros(n)][n % 2])
        assert not caught
        f(pb.zeros(compiled.CACHE_SIZE))
    (warning,) = caught
    assert "x was float64[63], now float32[64]" in str(warning.message)


def test_captured_values_that_change_are_warned_about():
    box = {"scale": 0.0}
    f = pb.jit(lambda x: x * box["scale"])
    with pytest.warns(pb.RetraceWarning, match="a captured array or value was changed"):
        for n in range(compiled.MANY_TRACES + 1):
            box["scale"] = float(n)
            f(tensor(2))


# -- looking, threads ------------------------------------------------------------------------------


def test_lower_shows_everything_and_runs_nothing():
    f = pb.jit(pb.value_and_grad(wave))
    lowered = f.lower(tensor(100))
    assert lowered.graph.equations and lowered.optimised.equations
    text = lowered.text()
    for part in ("traced:", "optimised:", "compiled:", "sin", "trace ", "compile ", "ms"):
        assert part in text
    assert repr(lowered).startswith("traced:")
    assert f.cache_info() == (0, 1, compiled.CACHE_SIZE, 1)
    f(tensor(100))
    assert f.cache_info().misses == 1


def test_python_threads_share_a_function():
    f = pb.jit(pb.value_and_grad(wave))
    inputs = [tensor(n % 3 + 1000, seed=n % 3) for n in range(12)]
    expected = [pb.value_and_grad(wave)(x) for x in inputs]
    results: list[Any] = [None] * len(inputs)
    start = threading.Barrier(len(inputs))

    def work(k: int) -> None:
        start.wait()
        for _ in range(5):
            results[k] = f(inputs[k])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(inputs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert f.cache_info().misses == 3
    once = [f(x) for x in inputs]
    for a, b, c in zip(results, once, expected, strict=True):
        equal(a, b)
        close(a[0], c[0])
        close(a[1], c[1])


def test_thread_count_does_not_change_the_bits(threads):
    x = tensor(300_000, dtype="float32")
    f = pb.jit(pb.value_and_grad(wave))
    patterns = set()
    for n in (1, 2, 3):
        threads(n)
        patterns.add(b"".join(o.numpy().tobytes() for o in f(x)))
    assert len(patterns) == 1
