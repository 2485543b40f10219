"""Taylor mode of every differentiable operation, orders 1 to 4, against nested forward mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matrix import FULL, Case, along_line, cases, derivative_case

import pullback as pb

ORDER = 4 if FULL else 3  # nested derivatives take 2**ORDER times as long


def nested(f: Callable[[Any], Any], t: Any, order: int) -> list[float]:
    """The derivatives of orders 0 to `order`, each by forward mode of the one before."""
    found = [f(t).item()]
    one = pb.ones_like(t)
    for _ in range(order):
        before = f
        f = lambda t, before=before: pb.jvp(before, (t,), (one,))[1]  # noqa: E731
        found.append(f(t).item())
    return found


def agree(found: list[Any], expected: list[float]) -> None:
    for k, (x, y) in enumerate(zip(found, expected, strict=True)):
        scale = max(map(abs, expected[: k + 1]))
        assert abs(x.item() - y) <= 1e-9 * max(scale, 1.0), f"order {k}: {x.item()} != {y}"


DTYPES = (pb.float64, pb.complex128)


@pytest.mark.parametrize("case", cases(DTYPES, derivative=True, compiled=True), ids=str)
def test_taylor_mode_agrees_with_nested_forward_mode(case: Case):
    f, xs = derivative_case(case)
    order = ORDER if case.sample.order >= 3 else case.sample.order
    phi = along_line(f, xs, case.sample.order)
    t = pb.tensor(0.0, dtype="float64")
    expected = nested(phi, t, order)
    assert np.isfinite(expected).all()
    agree(pb.jet(phi, t, order=order), expected)


@pytest.mark.skipif(not FULL, reason="compiles every operation")
@pytest.mark.parametrize("case", cases((pb.float64,), derivative=True, compiled=True), ids=str)
def test_compiled_and_mapped_taylor_mode_is_that_of_eager_mode(case: Case):
    f, xs = derivative_case(case)
    order = min(case.sample.order, 3)
    phi = along_line(f, xs, case.sample.order)
    t = pb.tensor(0.0, dtype="float64")
    eager = pb.jet(phi, t, order=order)
    try:
        pb.trace(phi)(t)
    except pb.DTypeError as error:
        assert "traced" in str(error)
        pytest.skip("the shape of the result depends on values")
    for other in (
        pb.jit(lambda t: pb.jet(phi, t, order=order))(t),
        [x[1] for x in pb.vmap(lambda t: pb.jet(phi, t, order=order))(pb.stack([t + 1e-3, t]))],
    ):
        agree(other, [x.item() for x in eager])
