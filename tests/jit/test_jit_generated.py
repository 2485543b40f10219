"""Every operation, jitted, gives what it gives eagerly; so do its derivatives, inside and outside.

Integers and booleans are equal. Floats are compared to 1e-12 (float32: to 4 ulps of the largest),
because passes may reassociate.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matrix import (
    FULL,
    Case,
    accepts,
    along_line,
    arrays_of,
    cases,
    differentiable_leaves,
    function_of,
)

import pullback as pb
from pullback.core import pytrees

RTOL = {"float64": 1e-12, "complex128": 1e-12, "float32": 5e-7, "complex64": 5e-7}


def of_arrays(case: Case):
    """The operation as a function of all its arrays, and these arrays."""
    leaves, structure = pytrees.flatten((case.sample.args, case.sample.kwargs))
    places = [i for i, a in enumerate(leaves) if isinstance(a, np.ndarray)]

    def f(*arrays: Any) -> Any:
        full = list(leaves)
        for i, a in zip(places, arrays, strict=True):
            full[i] = a
        args, kwargs = pytrees.unflatten(structure, full)
        return arrays_of(case.entry.function(*args, **kwargs))

    return f, [pb.tensor(leaves[i]) for i in places]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        x, y = a.numpy(), b.numpy()
        rtol = RTOL.get(a.dtype.name)
        if rtol is None:
            np.testing.assert_array_equal(x, y)
        else:
            finite = np.abs(y[np.isfinite(y)])
            scale = float(np.max(finite, initial=0.0))
            np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * scale)
            for part in (np.real, np.imag) if a.dtype.is_complex else (np.positive,):
                zeros = (part(x) == 0) & (part(y) == 0)
                np.testing.assert_array_equal(
                    np.signbit(part(x))[zeros], np.signbit(part(y))[zeros], "signs of zeros"
                )


def skip_unless_accepted(case: Case) -> None:
    if not accepts(case.entry, case.dtype):
        pytest.skip("the record does not accept this dtype")


@pytest.mark.parametrize(
    "case", cases((pb.float64, pb.float32, pb.complex128), compiled=True), ids=str
)
def test_jit_agrees_with_eager(case: Case):
    skip_unless_accepted(case)
    f, arrays = of_arrays(case)
    expected = f(*arrays)
    try:
        found = pb.jit(f)(*arrays)
    except pb.DTypeError as error:
        # the shape of the result, or a parameter, depends on contents
        assert "traced" in str(error) or "depends on values" in str(error)
        pytest.skip("needs the contents of an argument")
    assert_same(found, expected)


def line(case: Case):
    """A scalar function that goes through the operation, of a 0-d float64 array."""
    skip_unless_accepted(case)
    leaves = differentiable_leaves(case.sample)
    if not leaves or case.sample.order == 0:
        pytest.skip("no floating operand in this sample")
    if not FULL and case.position > 1:
        pytest.skip("the fixed sample has the first two of each operation")
    f = function_of(case.entry, case.sample)
    xs = [pb.tensor(a) for a in leaves]
    if not f(*xs):
        pytest.skip("no floating output in this sample")
    try:
        pb.trace(f)(*xs)
    except pb.DTypeError as error:
        assert "traced" in str(error)
        pytest.skip("the shape of the result depends on values")
    return along_line(f, xs)


DERIVATIVES = cases((pb.float64, pb.complex128), derivative=True, compiled=True)
ZERO = pb.tensor(0.0, dtype="float64")


@pytest.mark.parametrize("case", DERIVATIVES, ids=str)
def test_derivatives_inside_jit_agree_with_eager(case: Case):
    derivative = line(case)
    for _ in range(min(case.sample.order, 2)):
        derivative = pb.grad(derivative)
        np.testing.assert_allclose(
            pb.jit(derivative)(ZERO).item(), derivative(ZERO).item(), rtol=1e-11, atol=1e-11
        )


@pytest.mark.parametrize("case", DERIVATIVES, ids=str)
def test_derivatives_through_jit_agree_with_eager(case: Case):
    eager = line(case)
    through = pb.jit(eager)
    for _ in range(min(case.sample.order, 2)):
        eager, through = pb.grad(eager), pb.grad(through)
        np.testing.assert_allclose(through(ZERO).item(), eager(ZERO).item(), rtol=1e-11, atol=1e-11)
