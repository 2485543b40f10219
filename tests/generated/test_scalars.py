"""A Python number among the operands of any function keeps its digits beside wider arrays, and
does not widen narrower ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matrix import Case, arrays_of, cases, tensors

import pullback as pb
from pullback.core.dtypes import DType, as_dtype

NUMBER = 0.6180339887498949  # its digits do not fit float32
# The dtype of their results is that of the operand that is replaced, whatever the others are.
OWN_DTYPE = ("broadcast_arrays", "histogram", "pad", "quantile")


def places(case: Case) -> dict[int | str, DType]:
    """Where the sample has floating arrays, if it has several, and the dtype of the others."""
    given = {**dict(enumerate(case.sample.args)), **case.sample.kwargs}
    found = {
        k: a.dtype for k, a in given.items() if isinstance(a, np.ndarray) and a.dtype.kind == "f"
    }
    return {
        k: as_dtype(np.result_type(*[d for other, d in found.items() if other != k]))
        for k in found
        if len(found) > 1
    }


def called_with(case: Case, place: int | str, value: Any) -> list[np.ndarray]:
    args, kwargs = list(tensors(case.sample.args)), dict(tensors(case.sample.kwargs))
    if isinstance(place, int):
        args[place] = value
    else:
        kwargs[place] = value
    return [x.numpy() for x in arrays_of(case.entry.function(*args, **kwargs))]


CASES = [
    case
    for case in cases((pb.float64, pb.float32))
    if case.key not in OWN_DTYPE and not case.key.startswith("primitive.") and places(case)
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_number_is_an_array_of_the_dtype_beside_it(case: Case):
    tried = 0
    for place, dtype in places(case).items():
        try:
            expected = called_with(case, place, pb.tensor(NUMBER, dtype=dtype))
        except (pb.PullbackError, TypeError):
            continue  # takes no array without axes there
        found = called_with(case, place, NUMBER)
        assert [x.dtype for x in found] == [x.dtype for x in expected]
        assert [x.tobytes() for x in found] == [x.tobytes() for x in expected]
        tried += 1
    if not tried:
        pytest.skip("takes no array without axes")
