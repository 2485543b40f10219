"""Loops over known arrays, compiled once their function has run for some steps."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import loop_units
from pullback.core import pytrees

MANY = loop_units.STEPS + 50


def rows(n: int = MANY) -> Any:
    return pb.tensor(np.random.default_rng(n).normal(size=(n, 3)))


def start() -> Any:
    return pb.zeros(3, dtype="float64")


def in_python(monkeypatch: pytest.MonkeyPatch, f: Callable[[], Any]) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(loop_units, "STEPS", 10**9)
        return f()


def cell(c: Any, r: Any) -> tuple[Any, Any]:
    c = pb.tanh(c * 0.5 + r)
    return c, {"sum": c.sum(), "row": c * r}


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(x.numpy()).tobytes() for x in pytrees.leaves(tree)]


@pytest.mark.parametrize("reverse", [False, True])
def test_bits_are_those_of_steps_in_python(monkeypatch, reverse: bool):
    run = lambda: pb.scan(cell, start(), rows(), reverse=reverse)  # noqa: E731
    assert bits(run()) == bits(in_python(monkeypatch, run))
    assert bits(run()) == bits(in_python(monkeypatch, run))


def test_derivatives_are_those_of_steps_in_python(monkeypatch):
    loss = lambda xs: pb.scan(cell, start(), xs)[1]["row"].sum()  # noqa: E731
    third = lambda xs: pb.jet(loss, xs, order=3)[3]  # noqa: E731
    product = lambda xs: pb.hvp(loss, (xs,), (pb.ones_like(xs),))  # noqa: E731
    for derived in (pb.grad(loss), product, third):
        found, expected = derived(rows()), in_python(monkeypatch, lambda d=derived: d(rows()))
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-12, atol=1e-12)
    assert bits(pb.grad(loss)(rows())) == bits(
        in_python(monkeypatch, lambda: pb.grad(loss)(rows()))
    )


def test_the_function_runs_in_python_once():
    calls = []

    def counted(c, r):
        calls.append(None)
        return c + r, None

    pb.scan(counted, start(), rows())
    pb.scan(counted, start(), rows())
    first = len(calls)
    pb.scan(counted, start(), rows())
    assert first < 10
    assert len(calls) == first


def test_short_loops_run_in_python_until_they_add_up():
    calls = []

    def counted(c, r):
        calls.append(None)
        return c + r, None

    for _ in range(loop_units.STEPS):
        pb.scan(counted, start(), rows(4))
    assert loop_units.STEPS - 8 <= len(calls) <= loop_units.STEPS + 8


def test_what_needs_values_runs_step_by_step():
    seen = []

    def looks(c, r):
        seen.append(r.sum().item())
        return (c + r if seen[-1] > 0 else c), None

    last, _ = pb.scan(looks, start(), rows())
    again = [r for r in rows().numpy() if r.sum() > 0]
    np.testing.assert_allclose(last.numpy(), np.sum(again, axis=0), rtol=1e-12)
    assert len(seen) >= MANY


def test_captured_weights_get_derivatives_of_any_order(monkeypatch):
    def loss(w):
        return pb.scan(lambda c, r: (pb.tanh(c @ w + r), c.sum()), start(), rows())[1].sum()

    w = pb.tensor(np.eye(3) * 0.3)
    for derived in (pb.grad(loss), lambda w: pb.grad(lambda w: pb.grad(loss)(w).sum())(w)):
        expected = in_python(monkeypatch, lambda d=derived: d(w))
        np.testing.assert_allclose(derived(w).numpy(), expected.numpy(), rtol=1e-10, atol=1e-10)


def test_captured_values_may_change():
    scale = {"by": 2.0}
    step = lambda c, r: (c + r * scale["by"], None)  # noqa: E731
    total = rows().numpy().sum(axis=0)
    for by in (2.0, 3.0, *range(20)):
        scale["by"] = float(by)
        found = pb.scan(step, start(), rows())[0].numpy()
        np.testing.assert_allclose(found, by * total, rtol=1e-10, atol=1e-10)


def test_a_wrapper_is_another_function():
    factor = 2.0

    def step(c, r):
        return c + r * factor, None

    @wraps(step)
    def doubled(c, r):
        return c + 2.0 * r * factor, None

    pb.scan(step, start(), rows())
    pb.scan(step, start(), rows())
    wraps(step)(doubled)
    once, twice = (pb.scan(f, start(), rows())[0].numpy() for f in (step, doubled))
    np.testing.assert_allclose(twice, 2.0 * once, rtol=1e-10)


def test_other_callables_and_types():
    class Step:
        def __call__(self, c, r):
            return c + r, None

    total = rows().numpy().sum(axis=0)
    for f in (Step(), partial(lambda k, c, r: (c + k * r, None), 1.0), Step().__call__):
        np.testing.assert_allclose(pb.scan(f, start(), rows())[0].numpy(), total, rtol=1e-10)
    narrow = pb.scan(lambda c, r: (c + r, None), pb.zeros(3), rows().astype("float32"))[0]
    assert narrow.dtype == "float32"


def test_fori_loop(monkeypatch):
    body = lambda i, c: pb.sin(c) + i * 0.01  # noqa: E731
    for dtype in ("float64", "float32"):
        run = lambda d=dtype: pb.fori_loop(3, MANY, body, pb.zeros(3, dtype=d))  # noqa: E731
        assert run().dtype == dtype
        assert bits(run()) == bits(in_python(monkeypatch, run))


def test_errors_of_the_function_are_its_own():
    with pytest.raises(pb.ShapeError, match="scan: carry must keep its shape"):
        pb.scan(lambda c, r: (c[:2], None), start(), rows())


def test_functions_are_not_kept():
    def made():
        big = pb.ones(1000)
        step = lambda c, r: (c + r * big[0].astype("float64"), None)  # noqa: E731
        pb.scan(step, start(), rows())
        pb.scan(step, start(), rows())
        return weakref.ref(step)

    found = made()
    gc.collect()
    assert found() is None


def test_long_scans_are_quick():
    xs = pb.ones((20_000, 4))
    run = lambda: pb.scan(lambda c, r: (pb.tanh(c + r), c.sum()), pb.zeros(4), xs)  # noqa: E731
    run()
    began = time.perf_counter()
    run()
    assert time.perf_counter() - began < 0.5
