"""The definition of the exact sum, against fractions."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from pullback.compile.kernel.fixed_point import exact_scatter_add_reference, limb_bits, limb_count


def nearest(total, dtype):
    """A fraction rounded half to even, by looking at both neighbours."""
    start = np.float64(total) if abs(total) < 2**1000 else np.float64(np.sign(total) * 1e300)
    with np.errstate(over="ignore"):
        guess = np.array(start).astype(dtype)
    unsigned = np.dtype(f"u{guess.itemsize}")
    bits = int(guess.view(unsigned))
    found = []
    for near in (bits - 1, bits, bits + 1):
        value = np.array(near % (1 << 8 * guess.itemsize), unsigned).view(dtype)
        if np.isfinite(value):
            found.append((abs(Fraction(float(value)) - total), near & 1, value))
    return min(found, key=lambda f: f[:2])[2]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_the_reference_rounds_the_exact_sum(dtype):
    rng = np.random.default_rng(2)
    values = (rng.standard_normal(600) * 2.0 ** rng.integers(-24, 8, 600)).astype(dtype)
    out = rng.standard_normal(12).astype(dtype)
    indices = rng.integers(-12, 12, 600)
    got = exact_scatter_add_reference(indices, values, out)
    for d in range(12):
        own = [Fraction(float(v)) for v in values[indices % 12 == d]]
        assert got[d] == nearest(sum(own, Fraction(float(out[d]))), dtype)


def test_ties_go_to_even_and_subnormals_are_exact():
    one, half_ulp = np.float32(1), np.float32(2.0**-24)
    indices = np.array([0, 0, 1, 1, 1, 2, 2])
    values = np.array([one, half_ulp, one, half_ulp, 2.0**-60, 1e-45, 3e-45], "f4")
    got = exact_scatter_add_reference(indices, values, np.zeros(3, "f4"))
    np.testing.assert_array_equal(got, np.array([1, 1 + 2.0**-23, 4e-45], "f4"))


def test_the_order_of_contributions_does_not_matter():
    rng = np.random.default_rng(3)
    values = (rng.standard_normal(500) * 10.0 ** rng.integers(-20, 20, 500)).astype("f4")
    indices, out = rng.integers(0, 3, 500), np.zeros(3, "f4")
    want = exact_scatter_add_reference(indices, values, out)
    order = rng.permutation(500)
    got = exact_scatter_add_reference(indices[order], values[order], out)
    np.testing.assert_array_equal(got.view("u4"), want.view("u4"))


@pytest.mark.parametrize("count", [1, 2, 1000, 1 << 24, (1 << 38) - 1])
def test_pieces_do_not_overflow_a_limb(count):
    bits = limb_bits(count)
    assert bits >= 24
    assert count * ((1 << bits) - 1) < 1 << 63
    assert limb_count(count, 128, -149) * bits >= 277
