"""Hessians of every differentiable operation, by each order of the two modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matrix import Case, cases, derivative_case, weights

import pullback as pb


def hessians(f: Callable[..., Any], k: int) -> dict[str, Callable[..., Any]]:
    """The Hessian of a scalar function by argument `k`, computed in four ways."""
    return {
        "reverse over reverse": pb.jacrev(pb.grad(f, k), k),
        "reverse over forward": pb.jacrev(pb.jacfwd(f, k), k),
        "forward over forward": pb.jacfwd(pb.jacfwd(f, k), k),
    }


@pytest.mark.parametrize("case", cases((pb.float64,), derivative=True, compiled=True), ids=str)
def test_hessians_of_all_modes_agree(case: Case):
    f, xs = derivative_case(case)
    if case.sample.order < 2:
        pytest.skip("not differentiable twice here")
    ws = weights(f(*xs), 11)

    def phi(*xs: Any) -> Any:
        total = pb.zeros((), dtype=pb.float64)
        for w, out in zip(ws, f(*xs), strict=True):
            product = (w * (out + out * out * 0.25)).sum()
            total = total + (pb.real(product) if product.dtype.is_complex else product)
        return total

    for k in range(len(xs)):
        expected = pb.hessian(phi, k)(*xs).numpy()
        scale = max(float(np.max(np.abs(expected), initial=0.0)), 1.0)
        size = xs[k].size
        matrix = expected.reshape(size, size)
        np.testing.assert_allclose(matrix, matrix.T, rtol=0, atol=1e-10 * scale)
        for name, other in hessians(phi, k).items():
            found = other(*xs).numpy()
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * scale, err_msg=name)


@pytest.mark.parametrize("case", cases((pb.float64,), derivative=True, compiled=True), ids=str)
def test_the_pattern_of_a_jacobian_has_a_place_for_each_entry(case: Case):
    f, xs = derivative_case(case)
    for k in range(len(xs)):
        for i in range(len(f(*xs))):
            one = lambda *xs, i=i: f(*xs)[i]  # noqa: E731
            try:
                rows, columns = pb.jacobian_sparsity(one, k)(*xs)
            except pb.DTypeError:
                pytest.skip("the operation needs the values of its operands")
            dense = pb.jacfwd(one, k)(*xs).numpy()
            places = np.zeros((dense.size // max(xs[k].size, 1), xs[k].size), bool)
            places[rows, columns] = True
            assert not dense.reshape(places.shape)[~places].any()
