"""Loops over scalars are one kernel, with the bits that they have step by step."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.compile.program.stages import Stage
from pullback.compiled import Jitted
from pullback.core import pytrees

DTYPES = ("float32", "float64", "float16", "bfloat16", "complex64", "complex128", "int32", "uint8")


class Exact(Jitted):
    """Compiled without the passes that round otherwise."""

    exact = True


def stages(f: Any, *args: Any) -> list[Any]:
    """The stages of a compiled function."""
    found: list[Any] = []
    executable = f.lower(*args).executable
    if executable is None:  # there is nothing to compute
        return []
    target = type(executable.target)
    real = target.encode

    def encode(program: Any, *rest: Any) -> Any:
        found.extend(program.stages)
        return real(program, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "encode", staticmethod(encode))
        type(f)(f.__wrapped__)(*args)
    assert found
    return found


def nested(x: Any, y: Any) -> Any:
    def inner(s: Any) -> Any:
        k, a = s
        return k + 1, pb.cond(a > 0.5, lambda a: a * 0.7 - y, lambda a: pb.sin(a) + 0.3, a)

    def outer(s: Any) -> Any:
        k, a, found = s
        _, a = pb.while_loop(lambda s: s[0] < 5, inner, (pb.zeros((), dtype="int32"), a))
        found = pb.cond(a < 0.2, lambda a, found: a + found, lambda a, found: a * a, a, found)
        return k + 1, a, found

    zero = pb.zeros((), dtype="int32")
    return pb.while_loop(lambda s: s[0] < 7, outer, (zero, x, x * 0.5))[1:]


def powers(x: Any) -> Any:
    return pb.fori_loop(0, 12, lambda i, s: (s[0] * x + s[1], s[0]), (x, x))


def repeated(x: Any) -> Any:
    def step(i: Any, a: Any) -> Any:
        return pb.fori_loop(0, 3, lambda k, b: b * x + b, a)

    return pb.fori_loop(0, 4, step, x)


def along(x: Any, rows: Any) -> Any:
    return pb.scan(lambda a, r: (a * x + r, (a + r, a)), x, rows)


def backwards(x: Any, rows: Any) -> Any:
    return pb.scan(lambda a, r: (a * x + r, a - r), x, rows, reverse=True)


def bits(tree: Any) -> list[bytes]:
    return [np.array(a.numpy()).tobytes() for a in pytrees.leaves(tree)]


def same(f: Callable[..., Any], *args: Any) -> None:
    compiled = Exact(f)
    found = stages(compiled, *args)
    assert all(isinstance(s, Stage) for s in found)  # no loop of stages
    assert bits(compiled(*args)) == bits(f(*args))


@pytest.mark.parametrize("f", [powers, repeated])
@pytest.mark.parametrize("dtype", DTYPES)
def test_counted_loops_are_one_kernel(f: Callable[..., Any], dtype: str):
    same(f, pb.tensor(3 if dtype in ("int32", "uint8") else 0.7, dtype=dtype))


@pytest.mark.parametrize("f", [along, backwards])
@pytest.mark.parametrize("n", [0, 1, 57])
@pytest.mark.parametrize("dtype", DTYPES)
def test_scans_of_rows_with_one_element(f: Callable[..., Any], n: int, dtype: str):
    rows = pb.tensor(np.arange(n) % 5).astype(dtype)
    same(f, pb.tensor(3 if dtype in ("int32", "uint8") else 0.7, dtype=dtype), rows)
    same(f, pb.ones((), dtype=dtype), pb.flip(pb.repeat(rows, 2))[::2])


@pytest.mark.parametrize("dtype", DTYPES[:4])
def test_loops_and_choices_in_each_other_are_one_kernel(dtype: str):
    x, y = pb.tensor(0.4, dtype=dtype), pb.tensor(0.1, dtype=dtype)
    same(nested, x, y)
    one = pb.ones((), dtype=dtype)
    slope = lambda x: pb.jvp(lambda x: nested(x, y), (x,), (one,))[1]  # noqa: E731
    same(lambda x: pb.jvp(slope, (x,), (one,))[1], x)


def test_flags_and_choices_without_numbers_are_carried():
    def f(x: Any) -> Any:
        step = lambda s: (s[0] - 1, ~s[1], pb.where(s[1], s[2] * 2, s[2] + 1))  # noqa: E731
        return pb.while_loop(lambda s: s[0] > 0, step, (x, x > 3, x))

    same(f, pb.tensor(9))


def test_a_loop_with_an_array_is_none():
    def f(x: Any) -> Any:
        return pb.fori_loop(0, 4, lambda i, a: a * 0.5 + x, x)

    compiled = Exact(f)
    x = pb.ones(3)
    assert not all(isinstance(s, Stage) for s in stages(compiled, x))
    assert bits(compiled(x)) == bits(f(x))


def test_a_gradient_of_a_scan_of_scalars():
    rows = pb.linspace(0.0, 1.0, 40)
    g = lambda x: pb.grad(lambda x: along(x, rows)[1][0].sum())(x)  # noqa: E731
    np.testing.assert_allclose(pb.jit(g)(pb.tensor(0.3)).item(), g(pb.tensor(0.3)).item(), 1e-5)


class Alarm(Exception):
    pass


def test_an_endless_loop_in_registers_is_interrupted():
    def forever(x: Any) -> Any:
        inner = lambda a: pb.fori_loop(0, 100, lambda i, b: b * 0.5 + 1.0, a)  # noqa: E731
        return pb.while_loop(lambda a: a > -1.0, inner, x)

    def ring(number: int, frame: Any) -> None:
        raise Alarm

    f = pb.jit(forever)
    f.lower(pb.tensor(1.0)).executable  # noqa: B018
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        began = time.perf_counter()
        with pytest.raises(Alarm):
            f(pb.tensor(1.0))
        assert time.perf_counter() - began < 2.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert pb.jit(lambda x: x + 1.0)(pb.tensor(1.0)).item() == 2.0
