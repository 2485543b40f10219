"""A row of a batch has the same bits at any batch size, for all that treats rows independently.

Which operations do so is found out: rows are repeated along the first axis of operands, and where
each row of the result is what the row gives alone, but for rounding, it has to be so to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from matrix import FLOATS, FULL, Case, accepts, arrays_of, cases, differentiable, function_of_arrays

import pullback as pb

COUNTS = (2, 3, 7, 40) if FULL else (3, 40)  # rows: below and above what kernels take together
COMPILED = (7,)
NEAR = 1e-3  # of the largest element: rows that differ by more are not independent of each other
# A chain of products is multiplied in the order of the fewest multiplications, which is found from
# the numbers of rows: so its contract says.
EXCEPTED = {"linalg.multi_dot"}

Function = Callable[..., list[Any]]


class Batch(NamedTuple):
    """A sample as a function of the operands whose rows are examples."""

    f: Function
    rows: list[np.ndarray]
    name: str

    def taken(self, picked: Sequence[int]) -> list[Any]:
        """The operands with these rows."""
        return [pb.tensor(np.ascontiguousarray(a[list(picked)])) for a in self.rows]

    @property
    def length(self) -> int:
        return len(self.rows[0])


def batches(case: Case) -> list[Batch]:
    """The ways to see first axes of operands as rows: each alone, and all of one length."""
    f, arrays = function_of_arrays(case.entry.function, case.sample.args, case.sample.kwargs)
    led = [i for i, a in enumerate(arrays) if a.ndim and a.shape[0] > 1 and a.size]
    groups = {(i,) for i in led}
    groups |= {tuple(j for j in led if len(arrays[j]) == len(arrays[i])) for i in led}

    def of(group: tuple[int, ...]) -> Batch:
        def rows(*xs: Any) -> list[Any]:
            full = [pb.tensor(a) for a in arrays]
            for i, x in zip(group, xs, strict=True):
                full[i] = x
            return f(*full)

        return Batch(rows, [arrays[i] for i in group], case.entry.name)

    return [of(group) for group in sorted(groups)]


def results(f: Function, given: Sequence[Any], count: int) -> list[np.ndarray] | None:
    """The results, if all have a row for each of `count`; none where an operand is refused."""
    try:
        found = [x.detach().numpy() for x in f(*given)]
    except (pb.PullbackError, TypeError, ValueError):
        return None
    return found if found and all(a.ndim and len(a) == count for a in found) else None


def is_near(a: np.ndarray, b: np.ndarray) -> bool:
    if a.shape != b.shape:
        return False
    if a.dtype.kind in "biu":
        return bool(np.array_equal(a, b))
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    a, b = a.astype(wide), b.astype(wide)
    scale = float(np.max(np.abs(b), initial=0.0, where=np.isfinite(b)))
    return bool(np.allclose(a, b, rtol=NEAR, atol=NEAR * scale, equal_nan=True))


def bits(a: np.ndarray) -> bytes:
    a = np.array(a)
    if a.dtype.kind not in "biu":
        a[a != a] = np.nan  # every NaN is as good as another
    return a.tobytes()


def check(batch: Batch, f: Function, counts: Sequence[int]) -> bool:
    """Whether rows are independent; then their bits are those that they have alone."""
    n = batch.length
    alone = [results(f, batch.taken([i]), 1) for i in range(n)]
    several = {c: results(f, batch.taken([k % n for k in range(c)]), c) for c in counts}
    known = [a for a in alone if a is not None]
    if len(known) < n or any(s is None for s in several.values()):
        return False
    pairs = [
        (c, k, out[k], known[k % n][j][0])
        for c, outs in several.items()
        for j, out in enumerate(outs or ())
        for k in range(c)
    ]
    if not all(is_near(a, b) for _, _, a, b in pairs):
        return False
    for c, k, a, b in pairs:
        assert bits(a) == bits(b), f"row {k} of {c} has other bits than alone"
    try:
        empty = [x.detach().numpy() for x in f(*batch.taken([]))]
    except (pb.ShapeError, pb.DTypeError) as error:
        # It takes no empty axis here, or no empty array where a compiled mask decides.
        assert str(error).startswith(f"{batch.name}: ")
    else:
        shapes = [(0, *a.shape[1:]) for a in known[0]]
        assert [a.shape for a in empty] == shapes, "of a batch without rows"
    return True


def pulled(batch: Batch) -> Function:
    """The derivatives by the rows, with cotangents that are those of a row in any batch."""
    moving = [i for i, a in enumerate(batch.rows) if a.dtype.kind in "fcV"]

    def gradient(*xs: Any) -> list[Any]:
        def of_moving(*ys: Any) -> list[Any]:
            full = list(xs)
            for i, y in zip(moving, ys, strict=True):
                full[i] = y
            return [o for o in batch.f(*full) if o.dtype.is_inexact]

        outs, pull = pb.vjp(of_moving, *[xs[i] for i in moving])
        # of the value of the row itself, so that it goes with it
        return arrays_of(pull([pb.cos(o * 1.5 + 0.5) for o in outs]))

    return gradient


def chosen(dtypes: tuple[Any, ...], derivative: bool, compiled: bool) -> list[Case]:
    found = cases(dtypes, derivative=derivative, compiled=compiled)
    found = [c for c in found if c.key not in EXCEPTED]
    return found if FULL or not compiled else [c for c in found if c.position == 0]


def batches_of(case: Case) -> list[Batch]:
    if not accepts(case.entry, case.dtype):
        pytest.skip("the record does not accept this dtype")
    return batches(case)


def test_the_exceptions_are_needed():
    for key in EXCEPTED:
        found = [b for c in cases((pb.float32,)) if c.key == key for b in batches(c)]
        with pytest.raises(AssertionError, match="other bits than alone"):
            for b in found:
                check(b, b.f, COUNTS)


@pytest.mark.parametrize("case", chosen(FLOATS[:2], False, False), ids=str)
def test_rows_have_the_bits_that_they_have_alone(case: Case):
    if not any([check(b, b.f, COUNTS) for b in batches_of(case)]):
        pytest.skip("no operand has rows that are independent of each other")


@pytest.mark.parametrize("case", chosen(FLOATS[1 - FULL : 2], True, False), ids=str)
def test_derivatives_by_rows_have_the_bits_that_they_have_alone(case: Case):
    if not differentiable(case.entry) or not case.sample.order:
        pytest.skip("not differentiable here")
    found = [b for b in batches_of(case) if any(a.dtype.kind in "fc" for a in b.rows)]
    if not any([check(b, pulled(b), COUNTS) for b in found]):
        pytest.skip("no operand has rows that are independent of each other")


@pytest.mark.parametrize("case", chosen(FLOATS[1:2], False, True), ids=str)
def test_compiled_rows_have_the_bits_that_they_have_alone(case: Case):
    if not any([check(b, pb.jit(b.f), COMPILED) for b in batches_of(case)]):
        pytest.skip("no operand has rows that are independent of each other")


@pytest.mark.parametrize("case", chosen(FLOATS[1:2], True, True), ids=str)
def test_compiled_derivatives_by_rows_have_the_bits_that_they_have_alone(case: Case):
    if not differentiable(case.entry) or not case.sample.order:
        pytest.skip("not differentiable here")
    found = [b for b in batches_of(case) if any(a.dtype.kind in "fc" for a in b.rows)]
    if not any([check(b, pb.jit(pulled(b)), COMPILED) for b in found]):
        pytest.skip("no operand has rows that are independent of each other")
