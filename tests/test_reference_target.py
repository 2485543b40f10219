"""The compiler names no device: all of the registry runs on a target made of NumPy.

Results and derivatives, eager and compiled, are those of the CPU up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from generated.matrix import Case, arrays_of, call, cases, directional, jitted
from pullback.core import avals
from reference_target import ReferenceRuntime

# Kept in step with what `reference_target` has: libraries of their own, and kernels of many lines.
MISSING = {
    *("fft", "rfft", "irfft", "host", "det", "cofactors", "ldl", "ldl_solve"),
    *(
        "cholesky",
        "solve_triangular",
        "lu",
        "lu_solve",
        "qr",
        "svd",
        "svdvals",
        "schur",
        "sylvester",
    ),
    *("eig", "eigvals", "eigh", "eigvalsh", "expm", "sqrtm", "logm", "require"),
    *("conv", "conv_dx", "conv_dw", "window_max", "window_argmax", "pick", "place"),
}
CASES = [c for c in cases((pb.float64, pb.complex128), compiled=True) if c.position == 0]


@pytest.fixture(scope="module")
def reference() -> Iterator[Any]:
    avals.register_runtime("reference", lambda index: ReferenceRuntime())
    yield pb.device("reference")
    avals._loaders.pop("reference")
    avals._devices.pop(("reference", 0))


def here(device: Any, f: Callable[[], Any]) -> list[np.ndarray]:
    """The results of a function whose arrays are made on a device."""
    try:
        with device:
            found = arrays_of(f())
    except NotImplementedError as error:
        name = str(error).removeprefix("reference: ")
        assert name in MISSING, name
        pytest.skip(f"the reference has no {name}")
    except (pb.DTypeError, pb.GradientError) as error:
        pytest.skip(str(error))
    return [x.numpy() for x in found]


def compare(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for x, y in zip(found, expected, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        scale = float(np.max(np.abs(y[np.isfinite(y)]), initial=0.0)) if y.dtype.kind in "fc" else 0
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-10 * scale)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_those_of_the_cpu(case: Case, reference: Any):
    run = lambda: call(case.entry, case.sample)  # noqa: E731
    expected = here(pb.device("cpu"), run)
    compare(here(reference, run), expected)
    compare(here(reference, lambda: jitted(case)), expected)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(
    "case", [c for c in CASES if getattr(c.entry, "differentiable", True)], ids=str
)
def test_derivatives_are_those_of_the_cpu(case: Case, order: int, reference: Any):
    expected = here(pb.device("cpu"), lambda: directional(case, order, False))
    if not expected:
        pytest.skip("nothing to differentiate in this sample")
    compare(here(reference, lambda: directional(case, order, False)), expected)
    compare(here(reference, lambda: directional(case, order, True)), expected)
