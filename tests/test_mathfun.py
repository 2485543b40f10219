"""The functions of `mathfun`: accuracy by mpmath, edge values by C's rules, compiled bits."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest

import accuracy
from accuracy import BOUNDS, LEFT_BOUNDS, POLYGAMMA_BOUNDS
from pullback.compile.kernel.forms import Map
from pullback.core import dtypes as dt
from pullback.ir import mathfun
from pullback.ir.scalar import Complex, Expr, load
from runtime.programs import map_program
from scalar_evaluator import evaluate

INF, NAN, PI = float("inf"), float("nan"), float(np.pi)
DTYPES = ("float32", "float64")


def at(function: object, *points: list[float], dtype: str = "float64") -> np.ndarray:
    """A real function at points, by the evaluator."""
    d = dt.as_dtype(dtype)
    body = function(*(load(i, d) for i in range(len(points))))  # type: ignore[operator]
    return np.broadcast_to(
        evaluate([body], [np.array(p, dtype) for p in points])[0], len(points[0])
    )


def complex_at(name: str, z: np.ndarray) -> np.ndarray:
    """A complex function at points, by the evaluator."""
    part = dt.as_dtype(np.real(z).dtype)
    w = getattr(mathfun, name)(Complex(load(0, part, 0), load(0, part, 1)))
    re, im = evaluate([w.re, w.im], [z])
    result = np.empty(z.shape, z.dtype)
    result.real, result.imag = re, im
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BOUNDS)
def test_accuracy(name: str, dtype: str) -> None:
    worst = accuracy.measure(name, dtype)
    assert worst.ulps <= BOUNDS[name][DTYPES.index(dtype)], f"at {worst.at}"


@pytest.mark.parametrize("n", POLYGAMMA_BOUNDS)
def test_polygamma_accuracy(n: int) -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([np.exp(rng.uniform(-20, 20, 60)), rng.uniform(0, 30, 60)])
    got = at(lambda e: mathfun.polygamma(n, e), list(x))
    worst = accuracy.largest(got, [x], lambda v: mp.re(mp.psi(n, v)), "float64")
    assert worst.ulps <= POLYGAMMA_BOUNDS[n], f"at {worst.at}"


@pytest.mark.parametrize("name", LEFT_BOUNDS)
def test_gamma_left_of_zero(name: str) -> None:
    """The error is bounded relative to 1 + |f(x)| + |f(-x)|: zeros there are nothing special."""
    rng = np.random.default_rng(2)
    beside_poles = np.arange(-12, 0) * (1 + 10 ** rng.uniform(-12, -3, 12))
    x = np.concatenate([rng.uniform(-20, 0, 400), beside_poles])
    got = at(getattr(mathfun, name), list(x))
    for v, y in zip(x, got, strict=True):
        exact, mirrored = (accuracy.EXACT[name](mp.mpf(float(a))) for a in (v, -v))
        unit = mp.mpf(2) ** -53 * (1 + abs(exact) + abs(mirrored))
        assert abs(mp.mpf(float(y)) - exact) <= LEFT_BOUNDS[name] * unit, v


def test_polygamma_left_of_zero() -> None:
    x = [-0.3, -1.7, -2.5, -7.25]
    for n in (1, 2, 3):
        exact = [float(mp.re(mp.psi(n, mp.mpf(v)))) for v in x]
        np.testing.assert_allclose(at(lambda e, n=n: mathfun.polygamma(n, e), x), exact, 1e-12)


def test_polygamma_refuses_order_zero() -> None:
    with pytest.raises(ValueError, match="order must be at least 1, got 0"):
        mathfun.polygamma(0, load(0, dt.float64))


TINY = 5e-324
EDGES: dict[str, list[tuple[float, float]]] = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (1e9, INF), (-1e9, 0.0)],
    "exp2": [(0.0, 1.0), (10.0, 1024.0), (-1076.0, 0.0), (1024.0, INF), (-INF, 0.0)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (-INF, -1.0), (INF, INF), (-1e9, -1.0), (TINY, TINY)],
    "sigmoid": [(0.0, 0.5), (INF, 1.0), (-INF, 0.0), (-1e9, 0.0), (1e9, 1.0)],
    "log": [(1.0, 0.0), (0.0, -INF), (-0.0, -INF), (-1.0, NAN), (-INF, NAN), (INF, INF)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (-2.0, NAN), (INF, INF), (TINY, TINY)],
    "log2": [(2.0**-100, -100.0), (8.0, 3.0), (0.0, -INF), (-1.0, NAN), (INF, INF), (1.0, 0.0)],
    "log10": [(1e15, 15.0), (0.0, -INF), (-1.0, NAN), (INF, INF), (1.0, 0.0)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (TINY, TINY)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (TINY, TINY)],
    "asin": [(0.0, 0.0), (-0.0, -0.0), (1.0, PI / 2), (-1.0, -PI / 2), (2.0, NAN), (-INF, NAN)],
    "acos": [(1.0, 0.0), (-1.0, PI), (0.0, PI / 2), (2.0, NAN), (INF, NAN)],
    "atan": [(0.0, 0.0), (-0.0, -0.0), (INF, PI / 2), (-INF, -PI / 2), (1.0, PI / 4)],
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (711.0, INF), (TINY, TINY)],
    "cosh": [(0.0, 1.0), (INF, INF), (-INF, INF), (-711.0, INF)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (1e300, 1.0), (TINY, TINY)],
    "asinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (TINY, TINY)],
    "acosh": [(1.0, 0.0), (0.5, NAN), (-INF, NAN), (INF, INF)],
    "atanh": [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (2.0, NAN), (INF, NAN)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0)],
    "erfc": [(0.0, 1.0), (INF, 0.0), (-INF, 2.0), (28.0, 0.0), (-28.0, 2.0)],
    "erfinv": [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (1.5, NAN), (-INF, NAN)],
    "lgamma": [(1.0, 0.0), (2.0, 0.0), (0.0, INF), (-0.0, INF), (-1.0, INF), (-7.0, INF),
               (INF, INF), (-INF, INF)],
    "digamma": [(0.0, -INF), (-0.0, INF), (-1.0, NAN), (-5.0, NAN), (INF, INF), (-INF, NAN)],
    "cbrt": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (27.0, 3.0), (-8.0, -2.0)],
    "rsqrt": [(0.0, INF), (-0.0, -INF), (INF, 0.0), (-1.0, NAN), (4.0, 0.5)],
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EDGES)
def test_edge_values(name: str, dtype: str) -> None:
    smallest = np.finfo(dtype).smallest_subnormal
    cases = [(v if v != TINY else smallest, w if w != TINY else smallest) for v, w in EDGES[name]]
    if dtype == "float32":
        cases = [(v, w) for v, w in cases if not 0 < abs(v) < 1e-45]
    with np.errstate(over="ignore"):
        x = np.array([v for v, _ in cases] + [NAN]).astype(dtype)
        expected = np.array([w for _, w in cases] + [NAN]).astype(dtype)
    got = at(getattr(mathfun, name), list(x), dtype=dtype)
    np.testing.assert_array_equal(got, expected)
    real = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[real]), np.signbit(expected[real]))


def test_every_function_has_edge_values() -> None:
    binary = {"pow_", "atan2", "hypot"}
    assert set(BOUNDS) - binary == set(EDGES)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("name", "oracle"), [("pow_", np.float_power), ("atan2", np.arctan2), ("hypot", np.hypot)]
)
def test_edge_values_of_two(name: str, oracle: np.ufunc, dtype: str) -> None:
    """Zeros, infinities, NaN and ones in every pairing agree with NumPy, signs included."""
    v = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1e30, -1e30, INF, -INF, NAN]
    x, y = (g.ravel() for g in np.meshgrid(v, v))
    got = at(getattr(mathfun, name), list(x), list(y), dtype=dtype)
    with np.errstate(all="ignore"):
        expected = oracle(x.astype(dtype), y.astype(dtype)).astype(dtype)
    np.testing.assert_allclose(got, expected, 4 * np.finfo(dtype).eps)
    real = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[real]), np.signbit(expected[real]))


COMPLEX = {
    "exp": mp.exp, "expm1": mp.expm1, "log": mp.log, "log1p": mp.log1p, "sqrt": mp.sqrt,
    "sin": mp.sin, "cos": mp.cos, "tan": mp.tan, "sinh": mp.sinh, "cosh": mp.cosh, "tanh": mp.tanh,
    "asin": mp.asin, "acos": mp.acos, "atan": mp.atan, "asinh": mp.asinh, "acosh": mp.acosh,
    "atanh": mp.atanh,
}  # fmt: skip
_NUMPY_NAME = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh",
    "atanh": "arctanh",
}  # fmt: skip


@pytest.mark.parametrize(("name", "exact"), COMPLEX.items())
def test_complex_accuracy(name: str, exact: object) -> None:
    """|error| is at most 6 units of 2^-53 |result|, next to 1, -1, i and -i too."""
    rng = np.random.default_rng(3)

    def cloud(n: int) -> np.ndarray:
        return rng.normal(size=n) + 1j * rng.normal(size=n)

    z = np.concatenate([
        cloud(80), 3 * cloud(40), 1e-6 * cloud(20), 1e3 * cloud(20), 1 + 1e-4 * cloud(20),
        -1 + 1e-4 * cloud(20), 1j + 1e-4 * cloud(20), np.exp(1j * rng.uniform(-3, 3, 40)),
    ])  # fmt: skip
    reach = z.imag if name in ("sin", "cos") else z.real
    z = z[np.abs(reach) < 600]
    with mp.workdps(50):
        for point, got in zip(z, complex_at(name, z), strict=True):
            value = exact(mp.mpc(point))  # type: ignore[operator]
            assert abs(mp.mpc(got) - value) <= 6 * mp.mpf(2) ** -53 * abs(value), point


@pytest.mark.parametrize("name", [n for n in COMPLEX if n not in ("expm1", "log1p", "sin")])
def test_complex_edge_values(name: str) -> None:
    """Zeros, ones, infinities and NaN in every pairing agree with NumPy: cuts, poles and signs."""
    v = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 1e-310, 1e300, -1e300, 800.0, INF, -INF, NAN]
    re, im = (g.ravel() for g in np.meshgrid(v, v))
    z = np.empty(re.shape, np.complex128)
    z.real, z.imag = re, im
    got = complex_at(name, z)
    with np.errstate(all="ignore"):
        expected = getattr(np, _NUMPY_NAME.get(name, name))(z)
    # C leaves signs open where NaN or two infinities meet.
    clear = ~np.isnan(re) & ~np.isnan(im) & ~(np.isinf(re) & np.isinf(im))
    if name in ("tan", "tanh"):  # the standard fixes a sign that in C oscillates towards infinity
        clear &= ~np.isinf(re if name == "tanh" else im)
    for ours, theirs in ((f(got), f(expected)) for f in (np.real, np.imag)):
        np.testing.assert_allclose(ours, theirs, 1e-14, 1e-323)
        real = ~np.isnan(theirs) & clear
        np.testing.assert_array_equal(np.signbit(ours[real]), np.signbit(theirs[real]))


def test_complex_single_is_rounded_once() -> None:
    z = np.array([0.3 + 0.4j, -2 + 1e-3j], np.complex64)
    wide = complex_at("log", z.astype(np.complex128))
    np.testing.assert_array_equal(complex_at("log", z), wide.astype(np.complex64))


def test_complex_pow_abs_angle() -> None:
    z = Complex(load(0, dt.float64, 0), load(0, dt.float64, 1))
    w = Complex(load(1, dt.float64, 0), load(1, dt.float64, 1))
    x = np.array([1 + 2j, -3 + 0j, 0j, 0j, 2 - 1j])
    y = np.array([0.5 - 1j, 2 + 0j, 0j, 2 + 0j, -1 + 0j])
    power = mathfun.pow_(z, w)
    re, im, size, angle = evaluate([power.re, power.im, mathfun.abs(z), mathfun.angle(z)], [x, y])
    np.testing.assert_allclose(re + 1j * im, x**y, 1e-14, 1e-14)
    np.testing.assert_allclose(size, np.abs(x), 1e-15)
    np.testing.assert_allclose(angle, np.angle(x), 1e-15)


def compiled(body: Expr, x: np.ndarray) -> np.ndarray:
    """The body as a compiled kernel, over one operand."""
    from pullback.runtime.cpu import native

    kernel = Map(inputs=(body.dtype,), output=body.dtype, body=(body,))
    buffer = native.wrap(x.ctypes.data, x.nbytes, x)
    result = map_program(kernel, x.shape, [(1,)])(buffer)
    return np.frombuffer(result, x.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EDGES)
def test_compiled_bits(name: str, dtype: str) -> None:
    """The compiled kernel gives the evaluator's bits, on edges and on any pattern of bits."""
    unsigned = np.uint32 if dtype == "float32" else np.uint64
    rng = np.random.default_rng(4)
    bits = rng.integers(0, np.iinfo(unsigned).max, 500, unsigned, endpoint=True)
    x = np.concatenate([
        bits.view(dtype), rng.normal(size=500).astype(dtype), rng.uniform(-1, 1, 300).astype(dtype),
        np.array([0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 2.0, -2.0], dtype),
    ])  # fmt: skip
    body = getattr(mathfun, name)(load(0, dt.as_dtype(dtype)))
    np.testing.assert_array_equal(compiled(body, x), evaluate([body], [x])[0])
