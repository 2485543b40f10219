"""Memory that other libraries get never is that of a kept constant, or of a value that a recorded
graph needs, unless it can't be written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from matrix import (
    COMPLEX,
    FLOATS,
    Case,
    accepts,
    arrays_of,
    call,
    called,
    cases,
    contents,
    determined,
)

import pullback as pb
from pullback.ir import dlpack


def exports(x: Any) -> Iterator[np.ndarray]:
    """Everything that others can have of a tensor without asking for its own memory."""
    yield dlpack.from_capsule(x, copy=None)
    yield x.numpy()
    yield np.asarray(x)
    if x.dtype is not pb.bfloat16:  # no format of the buffer protocol
        yield np.asarray(memoryview(x.numpy()))


def overwrite(array: np.ndarray) -> None:
    """Write to memory as one does who does not care: wherever NumPy can be talked into it."""
    if not array.flags.writeable:
        try:
            array.flags.writeable = True
        except ValueError:
            return
    array[...] = 77 if array.dtype != bool else ~array


def gradients(case: Case, given: list[Any], results: list[Any]) -> list[bytes]:
    """The gradients of the recorded graph behind the results."""
    tracked = [y for y in determined(case.entry, pb, results) if y.requires_grad and not y.is_leaf]
    for y in tracked:
        with suppress(pb.LinAlgError):  # a factor that is not unique has no derivative
            y.backward(pb.tensor(np.ones(y.shape), dtype=y.dtype), retain_graph=True)
    leaves = [x.grad for x in given if x.requires_grad]
    return contents([g for g in leaves if g is not None])


@pytest.mark.parametrize("tracked", [False, True], ids=["plain", "tracked"])
@pytest.mark.parametrize("case", cases(FLOATS[:1] + COMPLEX[:1]), ids=str)
def test_what_is_exported_is_nobody_elses(case: Case, tracked: bool):
    if not accepts(case.entry, case.dtype):
        pytest.skip("the record does not accept this dtype")
    if tracked and case.sample.order == 0:
        pytest.skip("there is no derivative at this point")
    expected = gradients(case, *called(case, tracked))
    first = contents(arrays_of(call(case.entry, case.sample)))
    given, results = called(case, tracked)
    before = contents(given + results)
    with pb.no_grad():
        for x in given + results:
            for array in exports(x):
                overwrite(array)
        assert contents(given + results) == before
        own = {id(x): x for x in given + results}
        for x in own.values():
            others = [y for y in own.values() if y is not x]
            kept = contents(others)
            try:
                shared = dlpack.from_capsule(x, copy=False)
            except BufferError:
                continue
            overwrite(shared)
            assert contents(others) == kept
    assert gradients(case, given, results) == expected
    assert contents(arrays_of(call(case.entry, case.sample))) == first
