"""Python numbers that change are arguments of compiled code, with the bits of eager mode."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.core.errors import DTypeError, TraceError
from pullback.ir.numbers import Number

SPECIAL = (0.1, -0.0, 0.0, 1e-320, 1e300, -7.25, 3.0, math.inf, math.nan, 1 / 3, 2.0**60 + 1)
DTYPES = (
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "int32",
    "int64",
    "uint8",
    "bool",
    "complex64",
)


def bits(x: Any) -> tuple[Any, bytes]:
    return x.dtype, x.detach().numpy().tobytes()


def of(dtype: str) -> Any:
    return (
        pb.astype(pb.tensor([0.5, -1.25, 3.0, 100.0]), dtype)
        if dtype != "uint8"
        else (pb.asarray(np.asarray([1, 2, 3, 200], np.uint8)))
    )


FUNCTIONS = {
    "product": lambda x, a: x * a,
    "all operators": lambda x, a: a - x + x / (x + a) * (a + x),
    "arithmetic of numbers": lambda x, a: x * (1.0 - a) + (2 * a - 0.3) / 7 * -a,
    "constant part": lambda x, a: pb.where(x > a, x, a),
    "full": lambda x, a: x + pb.full((4,), a),
    "power": lambda x, a: pb.abs(x) ** a,
    "linspace": lambda x, a: pb.linspace(0.0, a, 4),
    "as array": lambda x, a: pb.asarray(a) + x,
    "list": lambda x, a: pb.tensor([a, 1.0, 2.0, 3.0]) + x,
    "list of tensors": lambda x, a: pb.tensor([a, x[0]]),
    "assigned": lambda x, a: pb.tensor(np.zeros(4)) + _assigned(x, a),
    "math": lambda x, a: x * math.sqrt(abs(a)),
    "branch": lambda x, a: x * a if a > 0.5 else x - a,
    "returned": lambda x, a: x * a if isinstance(a, float) else "not a float",
    "divided by": lambda x, a: x * (2.0 / (a + 1.5)),
    "clip": lambda x, a: pb.clip(x, max=a),
}


def _assigned(x: Any, a: float) -> Any:
    y = x + 0
    y[1] = a
    return y


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_floats_have_the_bits_of_eager_mode(name: str, dtype: str) -> None:
    f = FUNCTIONS[name]
    compiled, x = pb.jit(f), of(dtype)
    for a in SPECIAL:
        try:
            expected = f(x, a)
        except Exception as error:
            with pytest.raises(type(error)):
                compiled(x, a)
        else:
            assert bits(compiled(x, a)) == bits(expected), a


@pytest.mark.parametrize("dtype", DTYPES)
def test_ints_have_the_bits_of_eager_mode(dtype: str) -> None:
    compiled, x = pb.jit(lambda x, n: x * n + n), of(dtype)
    for n in (1, 2, 3, -1, 127, 128, 2**24 + 1, 2**53 + 1, 2**62, 2**70):
        try:
            expected = x * n + n
        except Exception as error:
            with pytest.raises(type(error)):
                compiled(x, n)
        else:
            assert bits(compiled(x, n)) == bits(expected), n


def test_complex_numbers_change_too() -> None:
    x = pb.tensor([1.0, 2.0])
    f = pb.jit(lambda x, z: x * z)
    for k in range(9):
        assert bits(f(x, complex(k, -k))) == bits(x * complex(k, -k))
    assert f.cache_info().misses == 2


def test_many_values_are_two_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path))
    f = pb.jit(lambda x, rate: {"x": x * (1.0 - rate["a"]) + rate["b"][0]})
    x = pb.tensor([1.0, 2.0, 3.0])
    for k in range(800):
        f(x, {"a": 0.1 * k, "b": [k, 0.5]})
    # the first call, then `a` and `b` change at once
    assert f.cache_info().misses == 2
    assert sum(len(files) for _, _, files in os.walk(tmp_path)) < 20


def test_what_needs_its_value_is_static_and_the_rest_is_not() -> None:
    seen: list[Any] = []

    def f(x: Any, a: float, n: int) -> Any:
        seen.append((type(a), type(n)))
        return x[: n + 1] * a

    compiled, x = pb.jit(f), pb.tensor([1.0, 2.0, 3.0])
    for k in range(9):
        n = k % 3
        assert bits(compiled(x, 0.5 * k, n)) == bits(x[: n + 1] * (0.5 * k))
    assert (Number, Number) in seen  # it was tried
    assert compiled.cache_info().misses <= 5


def test_a_value_looked_at_behind_an_except_is_static() -> None:
    def f(x: Any, a: float) -> Any:
        try:
            positive = a > 1.5
        except Exception:
            positive = False
        return x * a if positive else x

    compiled, x = pb.jit(f), pb.tensor([1.0, 2.0])
    for a in (1.0, 2.0, 3.0, 0.5):
        assert bits(compiled(x, a)) == bits(f(x, a))


def test_errors_are_those_of_the_values() -> None:
    f = pb.jit(lambda x, n: x * n)
    x = pb.asarray(np.arange(3, dtype=np.int8))
    f(x, 2)
    f(x, 3)
    with pytest.raises(DTypeError, match="300 does not fit int8"):
        f(x, 300)


@pytest.mark.parametrize("order", [1, 2])
def test_derivatives(order: int) -> None:
    def loss(x: Any, a: float) -> Any:
        return pb.sum(pb.sin(x * a) * a)

    def derived(f: Any) -> Any:
        g = pb.grad(f)
        return g if order == 1 else pb.grad(lambda x, a: pb.sum(g(x, a)))

    inside, outside = pb.jit(derived(loss)), derived(jitted := pb.jit(loss))
    x = pb.tensor([0.5, 1.5])
    for a in (0.5, 0.7, 1.9):
        expected = derived(loss)(x, a).numpy()
        np.testing.assert_allclose(inside(x, a).numpy(), expected, rtol=1e-6)
        np.testing.assert_allclose(outside(x, a).numpy(), expected, rtol=1e-6)
    assert inside.cache_info().misses == jitted.cache_info().misses == 2


def test_loops_and_branches() -> None:
    def f(x: Any, a: float, n: int) -> Any:
        y = pb.fori_loop(0, n, lambda i, c: c * a + x, x)
        z, _ = pb.scan(lambda c, r: (c + r * a, None), y[0], y)
        return pb.cond(z > 0.0, lambda v: v * a, lambda v: v - a, y)

    compiled, x = pb.jit(f), pb.tensor([0.5, 1.5])
    for k in range(6):
        assert bits(compiled(x, 0.25 * k, k % 2 + 1)) == bits(f(x, 0.25 * k, k % 2 + 1))
    assert compiled.cache_info().misses < 6


def test_a_jitted_function_inside_another() -> None:
    inner = pb.jit(lambda x, a: x * a + 1.0)
    outer = pb.jit(lambda x, a: inner(x, a * 2.0) - inner(x, 3.0))
    x = pb.tensor([0.5, 1.5])
    for a in (0.1, 0.2, 0.3):
        assert bits(outer(x, a)) == bits(outer.function(x, a))
    assert outer.cache_info().misses == 2


def test_static_arguments_stay_static() -> None:
    seen: list[Any] = []
    f = pb.jit(lambda x, a: seen.append(a) or x * a, static_argnames="a")
    for a in (0.1, 0.2, 0.3):
        f(pb.tensor(1.0), a)
    assert seen == [0.1, 0.2, 0.3]


def test_in_place_updates_beside_a_number() -> None:
    def f(a: float, x: Any) -> None:
        x += a

    compiled = pb.jit(f)
    for a in (1.0, 2.0, 3.0):
        x = pb.tensor([1.0, 2.0])
        compiled(a, x)
        np.testing.assert_array_equal(x.numpy(), np.asarray([1.0, 2.0], np.float32) + a)
    with pytest.raises(TraceError, match="NumPy array in place"):
        compiled(4.0, np.ones(2, np.float32))


def test_versions_are_bounded() -> None:
    f = pb.jit(lambda x, a: x * float(a))
    x = pb.tensor(1.0)
    with pytest.warns(pb.RetraceWarning):
        for k in range(150):
            f(x, 0.5 * k)
    info = f.cache_info()
    assert info.currsize == info.maxsize


@pytest.mark.parametrize("kind", [np.float64, np.complex128])
def test_numpy_numbers_that_are_python_numbers_are_as_weak(kind):
    for dtype in ("float32", "int64"):
        x = of(dtype)
        product = pb.jit(lambda x, a: x * a)
        for value in (0.5, 0.1, 0.3, 0.7):
            assert bits(product(x, kind(value))) == bits(x * kind(value))
            assert bits(product(x, a=kind(value))) == bits(x * kind(value))
        assert product.cache_info().misses <= 4
    returned = pb.jit(lambda a: a)
    assert isinstance(returned(kind(1.5)), kind)
