"""The elementary functions on a machine without float64: the bits of their definition."""

from __future__ import annotations

import numpy as np
import pytest

import accuracy
from cuda_registry import same_bits
from webgpu_device import needs_adapter
from webgpu_functions import computed

SAMPLE = (
    "exp",
    "sin",
    "pow_",
    "hypot",
)  # without doubles, on the slow side, everywhere, two arguments


@needs_adapter
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in SAMPLE else pytest.mark.full) for n in accuracy.BOUNDS],
)
def test_functions_have_the_bits_of_their_definition(name: str) -> None:
    xs = accuracy.points(name, "float32")
    found, wanted = computed(name, xs), accuracy.values(name, xs)
    normal = ~(np.abs(wanted) < np.finfo(np.float32).tiny)  # adapters may flush others to zero
    assert same_bits(found[normal], wanted[normal])
