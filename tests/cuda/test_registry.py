"""The registry on the emulated GPU: results and derivatives, eager and compiled, have the bits of
the CPU; NVRTC compiles every kernel that was printed for them.

A few operations are run every time, with PULLBACK_FULL=1 one sample of each in float32. All samples
in all dtypes keep the host's compiler busy for hours: PULLBACK_EMULATED=all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cuda_fake
import pullback as pb
from cuda_device import emulated
from cuda_emulator import COMPILER
from cuda_registry import (
    ON_MATRIX_UNITS,
    WAYS,
    determined_of,
    distance,
    is_left_to_lapack,
    same_bits,
)
from generated.matrix import FULL, Case, arrays_of, cases
from pullback.runtime.cuda import nvrtc

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")

NEAR = 1e-4  # of the largest element: roundings in float32, of derivatives too
HALVES = {pb.float16: 2.0**-11, pb.bfloat16: 2.0**-8}  # the largest relative error of rounding
SAMPLE = {
    *("add", "where", "logsumexp", "cumulative_sum", "sort", "scatter_add", "matmul"),
    *("nn.layer_norm", "nn.conv2d", "nn.max_pool1d"),
}
ALL = os.environ.get("PULLBACK_EMULATED") == "all"
DTYPES = (pb.float32, pb.float64, pb.complex128, pb.bfloat16) if ALL else (pb.float32,)
CASES = [
    c
    for c in cases(DTYPES, compiled=True)
    if ALL or (c.position == 0 and (FULL or c.key in SAMPLE))
]


@pytest.fixture(scope="module")
def cuda() -> Iterator[Any]:
    with emulated() as device:
        yield device


def values(f: Callable[[Case], Any], case: Case) -> list[np.ndarray]:
    return [x.numpy() for x in arrays_of(f(case))]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_have_the_bits_of_the_cpu(case: Case, way: str, cuda: Any):
    near, result = is_left_to_lapack(case), WAYS[way]
    if near and way in ("eager", "jit"):
        result = lambda case: determined_of(case, WAYS[way](case))  # noqa: E731
    try:
        expected = values(result, case)
    except (pb.DTypeError, pb.GradientError) as error:
        pytest.skip(str(error))
    if not expected:
        pytest.skip("nothing to differentiate in this sample")
    precision = "default" if case.key in ON_MATRIX_UNITS else "highest"
    with cuda, pb.matmul_precision(precision):
        found = values(result, case)
    for x, y in zip(found, expected, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        if near:
            assert distance(x, y) <= NEAR
        elif case.key in ON_MATRIX_UNITS and case.dtype in HALVES:
            assert distance(x, y) <= 4 * HALVES[case.dtype]
        else:
            assert same_bits(x, y)


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
def test_nvrtc_compiles_what_was_printed(target: str, cuda: Any):
    """What the tests before this one have run in this process, and some kernels at least."""
    x = pb.ones((3, 40), device=cuda)
    (pb.sort(x, axis=0) @ x.T).sum().numpy()
    for source in sorted(cuda_fake.printed)[:: 1 if FULL else 10]:
        if target == "sm_75" and "from sm_80 on" in source:
            continue  # they say so; `routines_of` gives them to no older GPU
        assert nvrtc.compile_source(source, target, nvrtc.QUICK)
