"""The special values of the Array API standard: of complex functions, and of quotients.

A row of a table reads: real part, imaginary part, real part of the result, imaginary part. The
first row that fits counts. Where the standard leaves the sign of a result open, it is not compared.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import cos, inf, nan, pi, sin
from typing import Any

import numpy as np
import pytest

import pullback as pb

POSITIVE = [1.0, 0.5, 2.0, 710.0, 2.0**-100, 2.0**100]
ZEROS = [0.0, -0.0]
NONZERO = POSITIVE + [-x for x in POSITIVE]
FINITE = NONZERO + ZEROS
INFINITE = [inf, -inf]
ANY = [*FINITE, inf, -inf, nan]
ZERO, ONE, INF, MINUS, NAN = [0.0], [1.0], [inf], [-inf], [nan]


class Unsigned(float):
    """A result whose sign the standard leaves open."""


OPEN, OPEN_INF, OPEN_ONE = Unsigned(0.0), Unsigned(inf), Unsigned(1.0)
Part = float | Callable[[float], float]


def on_circle(size: float) -> tuple[Part, Part]:
    """`size * cis(b)`; a part of the direction that is exactly 0 stays 0."""
    return lambda b: size * cos(b), lambda b: size * sin(b) if b else b


GROWS, VANISHES = on_circle(inf), on_circle(0.0)
TABLES: dict[str, list[tuple[list[float], list[float], Part, Part]]] = {
    "acos": [
        (ZEROS, ZERO, pi / 2, -0.0),
        (ZEROS, NAN, pi / 2, nan),
        (FINITE, INF, pi / 2, -inf),
        (NONZERO, NAN, nan, nan),
        (MINUS, POSITIVE, pi, -inf),
        (INF, POSITIVE, 0.0, -inf),
        (MINUS, INF, 3 * pi / 4, -inf),
        (INF, INF, pi / 4, -inf),
        (INFINITE, NAN, nan, OPEN_INF),
        (NAN, FINITE, nan, nan),
        (NAN, INF, nan, -inf),
        (NAN, NAN, nan, nan),
    ],
    "acosh": [
        (ZEROS, ZERO, 0.0, pi / 2),
        (FINITE, INF, inf, pi / 2),
        (NONZERO, NAN, nan, nan),
        (ZERO, NAN, nan, Unsigned(pi / 2)),
        (MINUS, POSITIVE, inf, pi),
        (INF, POSITIVE, inf, 0.0),
        (MINUS, INF, inf, 3 * pi / 4),
        (INF, INF, inf, pi / 4),
        (INFINITE, NAN, inf, nan),
        (NAN, FINITE, nan, nan),
        (NAN, INF, inf, nan),
        (NAN, NAN, nan, nan),
    ],
    "asinh": [
        (ZERO, ZERO, 0.0, 0.0),
        (POSITIVE, INF, inf, pi / 2),
        (FINITE, NAN, nan, nan),
        (INF, POSITIVE, inf, 0.0),
        (INF, INF, inf, pi / 4),
        (NAN, ZERO, nan, 0.0),
        (NAN, NONZERO, nan, nan),
        (NAN, INF, OPEN_INF, nan),
        (NAN, NAN, nan, nan),
    ],
    "atanh": [
        (ZERO, ZERO, 0.0, 0.0),
        (ZERO, NAN, 0.0, nan),
        (ONE, ZERO, inf, 0.0),
        (POSITIVE, INF, 0.0, pi / 2),
        (NONZERO, NAN, nan, nan),
        (INF, POSITIVE, 0.0, pi / 2),
        (INF, INF, 0.0, pi / 2),
        (INF, NAN, 0.0, nan),
        (NAN, FINITE, nan, nan),
        (NAN, INF, OPEN, pi / 2),
        (NAN, NAN, nan, nan),
    ],
    "cosh": [
        (ZERO, ZERO, 1.0, 0.0),
        (ZERO, INF, nan, OPEN),
        (ZERO, NAN, nan, OPEN),
        (NONZERO, [inf, nan], nan, nan),
        (INF, ZERO, inf, 0.0),
        (INF, NONZERO, *GROWS),
        (INF, INF, OPEN_INF, nan),
        (INF, NAN, inf, nan),
        (NAN, ZEROS, nan, OPEN),
        (NAN, [*NONZERO, nan], nan, nan),
    ],
    "sinh": [
        (ZERO, ZERO, 0.0, 0.0),
        (ZERO, [inf, nan], OPEN, nan),
        (POSITIVE, [inf, nan], nan, nan),
        (INF, ZERO, inf, 0.0),
        (INF, POSITIVE, *GROWS),
        (INF, [inf, nan], OPEN_INF, nan),
        (NAN, ZERO, nan, 0.0),
        (NAN, [*NONZERO, nan], nan, nan),
    ],
    "tanh": [
        (ZERO, ZERO, 0.0, 0.0),
        (NONZERO, [inf, nan], nan, nan),
        (ZERO, [inf, nan], 0.0, nan),
        (INF, POSITIVE, 1.0, 0.0),
        (INF, [inf, nan], 1.0, OPEN),
        (NAN, ZERO, nan, 0.0),
        (NAN, [*NONZERO, nan], nan, nan),
    ],
    "exp": [
        (ZEROS, ZERO, 1.0, 0.0),
        (FINITE, [inf, nan], nan, nan),
        (INF, ZERO, inf, 0.0),
        (MINUS, FINITE, *VANISHES),
        (INF, NONZERO, *GROWS),
        (MINUS, [inf, nan], OPEN, OPEN),
        (INF, [inf, nan], OPEN_INF, nan),
        (NAN, ZERO, nan, 0.0),
        (NAN, [*NONZERO, inf, nan], nan, nan),
    ],
    "expm1": [
        (ZEROS, ZERO, 0.0, 0.0),
        (FINITE, [inf, nan], nan, nan),
        (INF, ZERO, inf, 0.0),
        (MINUS, FINITE, -1.0, VANISHES[1]),
        (INF, NONZERO, *GROWS),
        (MINUS, [inf, nan], -1.0, OPEN),
        (INF, [inf, nan], OPEN_INF, nan),
        (NAN, ZERO, nan, 0.0),
        (NAN, [*NONZERO, inf, nan], nan, nan),
    ],
    "log": [
        ([-0.0], ZERO, -inf, pi),
        (ZERO, ZERO, -inf, 0.0),
        (FINITE, INF, inf, pi / 2),
        (FINITE, NAN, nan, nan),
        (MINUS, POSITIVE, inf, pi),
        (INF, POSITIVE, inf, 0.0),
        (MINUS, INF, inf, 3 * pi / 4),
        (INF, INF, inf, pi / 4),
        (INFINITE, NAN, inf, nan),
        (NAN, FINITE, nan, nan),
        (NAN, INF, inf, nan),
        (NAN, NAN, nan, nan),
    ],
    "log1p": [
        ([-1.0], ZERO, -inf, 0.0),
        (FINITE, INF, inf, pi / 2),
        (FINITE, NAN, nan, nan),
        (MINUS, POSITIVE, inf, pi),
        (INF, POSITIVE, inf, 0.0),
        (MINUS, INF, inf, 3 * pi / 4),
        (INF, INF, inf, pi / 4),
        (INFINITE, NAN, inf, nan),
        (NAN, FINITE, nan, nan),
        (NAN, INF, inf, nan),
        (NAN, NAN, nan, nan),
    ],
    "sqrt": [
        (ZEROS, ZERO, 0.0, 0.0),
        (ANY, INF, inf, inf),
        (FINITE, NAN, nan, nan),
        (MINUS, POSITIVE, 0.0, inf),
        (INF, POSITIVE, inf, 0.0),
        (MINUS, NAN, nan, OPEN_INF),
        (INF, NAN, inf, nan),
        (NAN, [*FINITE, nan], nan, nan),
    ],
    "sign": [
        (ZEROS, ZEROS, OPEN, OPEN),
        (NAN, ANY, nan, nan),
        (ANY, NAN, nan, nan),
    ],
}  # fmt: skip
ODD, EVEN = ("asinh", "atanh", "sinh", "tanh"), ("cosh",)


def expected_at(name: str, a: float, b: float) -> tuple[float, float] | None:
    """The parts of the result that the table of a function gives, if it gives one."""

    def fits(value: float, listed: list[float]) -> bool:
        return any(repr(value) == repr(x) for x in listed)  # tells zeros apart, and finds NaN

    for res, ims, re, im in TABLES[name]:
        if fits(a, res) and fits(b, ims):
            return tuple(v(b) if callable(v) else v for v in (re, im))  # type: ignore[return-value]
    return None


def points(name: str) -> list[tuple[complex, complex, tuple[bool, bool]]]:
    """Arguments with their results, and whether the sign of a part is open: those of the table, and
    those that follow from it by symmetry.
    """
    found = []
    for a, b in product(ANY, ANY):
        result = expected_at(name, a, b)
        if result is None:
            continue
        unsigned = (isinstance(result[0], Unsigned), isinstance(result[1], Unsigned))
        for s, t in product((1.0, -1.0), (1.0, -1.0)):
            if s < 0 and name not in ODD + EVEN:
                continue
            # conj(f(z)) = f(conj(z)); f(-z) = -f(z) or f(z)
            re, im = (s, t) if name in ODD else (1.0, s * t)
            z = complex(s * a, t * b)
            if (s, t) == (1.0, 1.0) or expected_at(name, z.real, z.imag) is None:
                found.append((z, complex(re * result[0], im * result[1]), unsigned))
    return found


def assert_part(z: np.ndarray, got: np.ndarray, wanted: np.ndarray, unsigned: np.ndarray) -> None:
    compared = np.where(unsigned, np.abs(got), got), np.where(unsigned, np.abs(wanted), wanted)
    eps = np.finfo(got.dtype).eps
    equal = np.isclose(*compared, rtol=4 * eps, atol=0, equal_nan=True)
    signs = (np.signbit(got) == np.signbit(wanted)) | unsigned | np.isnan(wanted)
    wrong = ~(equal & signs)
    assert not wrong.any(), list(zip(z[wrong], got[wrong], wanted[wrong], strict=True))


@pytest.mark.parametrize("dtype", ["complex128", "complex64"])
@pytest.mark.parametrize("name", sorted(TABLES))
def test_complex_functions(name: str, dtype: str):
    z, wanted, unsigned = map(np.array, zip(*points(name), strict=True))
    got = getattr(pb, name)(pb.tensor(z, dtype=dtype)).numpy()
    for k, part in enumerate((np.real, np.imag)):
        assert_part(z, part(got), part(wanted).astype(part(got).dtype), unsigned[:, k])


@pytest.mark.parametrize("name", ["sin", "tan", "asin", "atan"])
def test_circular_functions_are_hyperbolic_ones_turned(name: str):
    """f(z) = -i fh(iz), and cos(z) = cosh(iz), with signs and NaN."""
    z = np.array([complex(a, b) for a, b in product(ANY, ANY)])
    turned = np.array([complex(-c.imag, c.real) for c in z])
    h = getattr(pb, f"{name}h")(pb.tensor(turned)).numpy()
    got = getattr(pb, name)(pb.tensor(z)).numpy()
    open_signs = np.zeros(z.shape, bool)
    assert_part(z, np.real(got), np.imag(h), open_signs)
    assert_part(z, np.imag(got), -np.real(h), open_signs)


def test_cos_is_cosh_turned():
    z = np.array([complex(a, b) for a, b in product(ANY, ANY)])
    turned = np.array([complex(-c.imag, c.real) for c in z])
    got, h = pb.cos(pb.tensor(z)).numpy(), pb.cosh(pb.tensor(turned)).numpy()
    for part in (np.real, np.imag):
        assert_part(z, part(got), part(h), np.zeros(z.shape, bool))


def test_abs_of_complex():
    z = np.array([complex(a, b) for a, b in product(ANY, ANY)])
    got = pb.abs(pb.tensor(z)).numpy()
    a, b = np.real(z), np.imag(z)
    infinite = np.isinf(a) | np.isinf(b)
    assert np.isposinf(got[infinite]).all()
    assert np.isnan(got[~infinite & np.isnan(z)]).all()
    on_axis = (a == 0) & ~np.isnan(b)
    np.testing.assert_array_equal(got[on_axis], np.abs(b[on_axis]))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_magnitudes_and_bounds(dtype: str):
    """copysign, hypot and clip for every pair of special values."""
    values = [0.0, -0.0, 1.0, -2.5, inf, -inf, nan, float(np.copysign(nan, -1.0))]
    pairs = np.array(list(product(values, values)))
    x, y = (pb.tensor(v, dtype=dtype) for v in pairs.T)

    def wide(result: Any) -> np.ndarray:
        return pb.astype(result, pb.float64).numpy()

    signed = wide(pb.copysign(x, y))
    np.testing.assert_array_equal(np.signbit(signed), np.signbit(pairs[:, 1]))
    np.testing.assert_array_equal(np.abs(signed), np.abs(pairs[:, 0]))
    sizes = wide(pb.hypot(x, y))
    infinite = np.isinf(pairs).any(axis=1)
    assert np.isposinf(sizes[infinite]).all()
    assert np.isnan(sizes[np.isnan(pairs).any(axis=1) & ~infinite]).all()
    on_axis = (pairs == 0).any(axis=1) & ~infinite
    np.testing.assert_array_equal(sizes[on_axis], np.abs(pairs[on_axis]).max(axis=1))
    for bounds in ({"min": y}, {"max": y}, {"min": y, "max": inf}, {"min": -inf, "max": y}):
        clipped = wide(pb.clip(x, **bounds))
        assert np.isnan(clipped[np.isnan(pairs).any(axis=1)]).all()


def test_predicates_and_sums_of_complex():
    z = np.array([complex(a, b) for a, b in product(ANY, ANY)])
    x, (a, b) = pb.tensor(z), (np.real(z), np.imag(z))
    wanted = np.isnan(a) | np.isnan(b), np.isinf(a) | np.isinf(b)
    np.testing.assert_array_equal(pb.isnan(x).numpy(), wanted[0])
    np.testing.assert_array_equal(pb.isinf(x).numpy(), wanted[1])
    np.testing.assert_array_equal(pb.isfinite(x).numpy(), ~(wanted[0] | wanted[1]))
    np.testing.assert_array_equal((x == x).numpy(), ~wanted[0])
    np.testing.assert_array_equal((x != x).numpy(), wanted[0])
    zeros = np.array([complex(a, b) for a, b in product(ZEROS, ZEROS)])
    total = (pb.tensor(zeros[:, None]) + pb.tensor(zeros)).numpy()
    for part in (np.real, np.imag):  # only -0 with -0 is -0
        both = np.signbit(part(zeros))[:, None] & np.signbit(part(zeros))
        np.testing.assert_array_equal(np.signbit(part(total)), both)


def quotient(x: float, y: float) -> tuple[float, float]:
    """What the standard says of x // y and x % y where an operand is infinite, zero or NaN."""
    if x != x or y != y or (abs(x) == abs(y) and x in (0, inf, -inf)):
        return nan, nan
    sign = np.copysign(1.0, x) * np.copysign(1.0, y)
    if y == 0:
        return sign * inf, nan
    if abs(x) == inf:
        return sign * inf, nan
    if x == 0:
        return sign * 0.0, np.copysign(0.0, y)
    return sign * 0.0, x if sign > 0 else y


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_quotients_with_infinities_and_zeros(dtype: str):
    special = [0.0, -0.0, inf, -inf, nan]
    values = [*special, 1.0, -1.0, 2.5, -3e4]
    pairs = [(x, y) for x, y in product(values, values) if x in special or y in special]
    pairs = [(x, y) for x, y in pairs if {abs(x), abs(y)} & {0.0, inf} or x != x or y != y]
    x, y = (pb.tensor(np.array(v), dtype=dtype) for v in zip(*pairs, strict=True))
    wanted = np.array([quotient(*p) for p in pairs])
    for k, got in enumerate((x // y, x % y)):
        values_ = pb.astype(got, pb.float64).numpy()
        rounded = pb.astype(pb.tensor(wanted[:, k], dtype=dtype), pb.float64).numpy()
        assert_part(np.array(pairs), values_, rounded, np.zeros(len(pairs), bool))


def test_the_derivative_of_a_remainder_by_an_infinite_divisor():
    """x % y is x, or x + y where the signs differ."""
    x, y = pb.tensor([1.0, -1.0, 1.0, -1.0, 0.0]), pb.tensor([inf, inf, -inf, -inf, inf])
    by_x, by_y = pb.grad(lambda x, y: (x % y).sum(), (0, 1))(x, y)
    assert by_x.tolist() == [1.0] * 5
    assert by_y.tolist() == [0.0, 1.0, 1.0, 0.0, 0.0]


def test_jit_agrees():
    z = pb.tensor(np.array([complex(inf, 2.0), complex(-inf, -1.0), complex(-0.0, 0.0)]))
    for f in (pb.tanh, pb.expm1):
        assert str(pb.jit(f)(z).tolist()) == str(f(z).tolist())
