"""`fused`: a composite as one compiled unit that keeps the bits of its operations."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.nn.fused import fused


def softmax_like(x: Any, axis: Any = -1, scale: Any = 1.0, bias: Any = None, mode: Any = "plain"):
    y = x * scale if bias is None else x * scale + bias
    e = pb.exp(y - y.max(axis=axis, keepdims=True))
    total = e.sum(axis=axis, keepdims=True)
    return e / total if mode == "plain" else pb.log(e) - pb.log(total)


def drawn(*shape: int, dtype: str = "float64", seed: int = 0) -> pb.Tensor:
    return pb.tensor(np.random.default_rng(seed).normal(size=shape).astype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_gives_the_bits_of_its_operations(dtype: str):
    f = fused(softmax_like)
    x, bias = drawn(40, 300, dtype=dtype), drawn(300, dtype=dtype, seed=1)
    for kwargs in ({}, {"axis": 0}, {"bias": bias}, {"mode": "log", "scale": 0.3}):
        expected = softmax_like(x, **kwargs).numpy()
        assert f(x, **kwargs).numpy().tobytes() == expected.tobytes()
        tracked = pb.tensor(x, requires_grad=True)
        assert f(tracked, **kwargs).detach().numpy().tobytes() == expected.tobytes()


def test_a_sum_of_a_broadcast_is_summed_unless_told_otherwise():
    def f(x):
        return pb.broadcast_to(x, (1000, *x.shape)).sum(axis=0)

    x = drawn(50, dtype="float32")
    assert fused(f)(x).numpy().tobytes() == f(x).numpy().tobytes()
    assert fused(f, exact=False)(x).numpy().tobytes() == (x * 1000.0).numpy().tobytes()


def test_orders_one_to_three():
    x = drawn(4, 5)

    def along(g):
        return lambda t: (g(x * pb.cos(t) + t) ** 2 * pb.tensor(np.arange(5.0))).sum()

    plain, compiled = along(softmax_like), along(fused(softmax_like))
    t = pb.tensor(0.3, dtype="float64")
    for _ in range(3):
        plain, compiled = pb.grad(plain), pb.grad(compiled)
        np.testing.assert_allclose(compiled(t).item(), plain(t).item(), rtol=1e-11)


def test_forward_mode_and_its_mixtures():
    x, v = drawn(3, 4), drawn(3, 4, seed=2)

    def loss(g):
        return lambda x: (g(x) ** 3).sum()

    f = fused(softmax_like)
    expected = pb.hvp(loss(softmax_like), (x,), (v,)).numpy()
    np.testing.assert_allclose(pb.hvp(loss(f), (x,), (v,)).numpy(), expected, rtol=1e-11)
    pushed = pb.jvp(f, (x,), (v,))[1].numpy()
    np.testing.assert_allclose(pushed, pb.jvp(softmax_like, (x,), (v,))[1].numpy(), rtol=1e-12)


def test_inside_jit_it_is_inlined():
    f = fused(softmax_like)
    x = drawn(6, 7)
    known = drawn(6, 7, seed=3)
    g = pb.jit(lambda x: f(x) + f(known))
    expected = (softmax_like(x) + softmax_like(known)).numpy()
    assert g(x).numpy().tobytes() == expected.tobytes()
    assert f.cache_info().misses == 0
    inner = pb.grad(lambda x: (g(x) ** 2).sum())
    outer = pb.grad(lambda x: ((softmax_like(x) + softmax_like(known)) ** 2).sum())
    np.testing.assert_allclose(inner(x).numpy(), outer(x).numpy(), rtol=1e-12)


def test_inside_scan_and_another_fused_function():
    f = fused(softmax_like)
    twice = fused(lambda x: f(f(x)))
    x = drawn(3, 4)
    assert twice(x).numpy().tobytes() == softmax_like(softmax_like(x)).numpy().tobytes()
    last, _ = pb.scan(lambda c, _: (f(c), None), x, None, 3)
    jitted, _ = pb.jit(lambda x: pb.scan(lambda c, _: (f(c), None), x, None, 3))(x)
    expected = softmax_like(softmax_like(softmax_like(x))).numpy()
    assert last.numpy().tobytes() == jitted.numpy().tobytes() == expected.tobytes()


def test_each_static_value_has_its_own_trace_and_nobody_is_warned():
    f = fused(softmax_like)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(1, 40):
            x = drawn(2, n)
            scale = n / 7
            np.testing.assert_array_equal(
                f(x, scale=scale).numpy(), softmax_like(x, scale=scale).numpy()
            )
    assert f.cache_info().misses == 39
    f(drawn(2, 39), scale=39 / 7)
    assert f.cache_info().misses == 39


def test_derivatives_on_many_shapes_warn_nobody():
    f = fused(softmax_like)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(1, 20):
            pb.grad(lambda x: (f(x) ** 2).sum())(drawn(2, n))


def test_it_takes_numpy_arrays_numbers_and_trees():
    f = fused(lambda tree, factor: {"y": tree["a"] * factor + tree["b"][0]})
    a = np.arange(3.0)
    got = f({"a": a, "b": [pb.tensor(a)]}, 2)["y"]
    np.testing.assert_array_equal(got.numpy(), 3 * a)


def test_errors_are_those_of_the_operation():
    f = fused(softmax_like)
    with pytest.raises(pb.ShapeError, match=r"^max: axis 5 is out of range .* 2 dimensions\."):
        f(drawn(2, 3), axis=5)


def test_threads_share_it():
    f = fused(softmax_like)
    inputs = [drawn(30 + i % 3, 8, seed=i) for i in range(12)]
    expected = [pb.grad(lambda x: (softmax_like(x) ** 2).sum())(x).numpy() for x in inputs]
    found: dict[int, np.ndarray] = {}

    def work(i: int) -> None:
        found[i] = pb.grad(lambda x: (f(x) ** 2).sum())(inputs[i]).numpy()

    workers = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    for i, e in enumerate(expected):
        np.testing.assert_allclose(found[i], e, rtol=1e-12)


def test_the_number_of_native_threads_does_not_matter(threads):
    f = fused(softmax_like)
    x = drawn(700, 300, dtype="float32")
    seen = set()
    for n in (1, 2):
        threads(n)
        seen.add(f(x).numpy().tobytes())
    assert len(seen) == 1
