"""The registry on webgpu: results and derivatives to order 3, eager and compiled, have the bits of
the CPU, and have them again. What the CPU leaves to LAPACK is near.

A few operations are run every time. All samples in all dtypes keep a software driver busy for
hours: `make test DEVICE=webgpu FULL=1`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from cuda_registry import distance, is_left_to_lapack, same_bits
from generated.matrix import FULL, Case, arrays_of, call, cases, determined, directional, jitted
from webgpu_device import needs_adapter

pytestmark = needs_adapter

SAMPLE = {
    *("add", "exp2", "where", "logsumexp", "cumulative_sum", "concat", "sort", "topk"),
    *("scatter_add", "take_along_axis", "matmul", "einsum", "searchsorted"),
    *("nn.conv2d", "nn.max_pool1d", "nn.layer_norm", "nn.cross_entropy"),
    *("linalg.qr", "linalg.eigh", "linalg.svdvals", "linalg.sqrtm", "nanmedian"),
}
NEAR = 1e-3  # of the largest element: derivatives of decompositions magnify rounding
WHOLE = FULL and os.environ.get("PULLBACK_TEST_DEVICE") == "webgpu"
DTYPES = (pb.float32, pb.float16, pb.bfloat16, pb.complex64) if WHOLE else (pb.float32,)
CASES = [c for c in cases(DTYPES, compiled=True) if WHOLE or (c.position == 0 and c.key in SAMPLE)]
WAYS: dict[str, Callable[[Case], Any]] = {
    "eager": lambda case: call(case.entry, case.sample),
    "jit": jitted,
    "first": lambda case: directional(case, 1, False, pb.float32),
    "second, jit": lambda case: directional(case, 2, True, pb.float32),
    "third": lambda case: directional(case, 3, False, pb.float32),
}


def values(f: Callable[[Case], Any], case: Case) -> list[np.ndarray]:
    return [x.numpy() for x in arrays_of(f(case))]


def may_be_near(case: Case) -> bool:
    """Whether the CPU leaves it to LAPACK, as it does all factorisations of complex matrices."""
    is_complex = case.dtype.is_complex and case.key.startswith(("linalg.", "primitive."))
    return is_complex or is_left_to_lapack(case) or case.key == "polyfit"  # by lstsq


def compared(case: Case, way: str, found: list[np.ndarray]) -> list[np.ndarray]:
    """The results, or what is determined of them."""
    is_result = way in ("eager", "jit") and may_be_near(case)
    return determined(case.entry, np, found) if is_result else found


def is_as_right(case: Case, way: str, found: list[np.ndarray], cpu: list[np.ndarray]) -> bool:
    """Whether results are as near to those in twice the precision as the CPU's are."""
    wide = pb.complex128 if case.dtype.is_complex else pb.float64
    right = compared(case, way, values(WAYS[way], case._replace(dtype=wide)))
    ours, theirs = (max(map(distance, compared(case, way, own), right)) for own in (found, cpu))
    return ours <= theirs


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_have_the_bits_of_the_cpu(case: Case, way: str):
    try:
        expected = values(WAYS[way], case)
    except (pb.DTypeError, pb.GradientError) as error:
        pytest.skip(str(error))
    if not expected:
        pytest.skip("nothing to differentiate in this sample")
    try:
        with pb.device("webgpu"):
            found, again = values(WAYS[way], case), values(WAYS[way], case)
    except pb.DTypeError as error:
        assert "webgpu has no" in str(error)  # a dtype that a sample holds
        pytest.skip(str(error))
    for x, y, z in zip(found, again, expected, strict=True):
        assert (x.shape, x.dtype) == (z.shape, z.dtype)
        assert same_bits(x, y), "the same bits on every run"
        assert same_bits(x, z) or may_be_near(case)
    for x, z in zip(*(compared(case, way, own) for own in (found, expected)), strict=True):
        assert same_bits(x, z) or distance(x, z) <= NEAR or is_as_right(case, way, found, expected)
