"""Every operation gives handles of its own: what is done to a result changes nothing else."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from matrix import COMPLEX, FLOATS, Case, accepts, arrays_of, call, cases, tensors

import pullback as pb

# The standard lets these return their argument, by default or without a copy.
RETURNS_ITS_ARGUMENT = {"asarray": None, "astype": True}  # and what `copy` is by default


def contents(arrays: list[Any]) -> list[bytes]:
    return [np.array(x.detach().numpy()).tobytes() for x in arrays]


def called(case: Case, tracked: bool) -> tuple[list[Any], list[Any]]:
    """The arrays among the arguments of a sample, and the arrays of its result."""
    args, kwargs = tensors((case.sample.args, case.sample.kwargs))
    given = arrays_of((args, kwargs))
    for x in given:
        if tracked and x.dtype.is_inexact:
            x.requires_grad = True
    return given, arrays_of(case.entry.function(*args, **kwargs))


def update(x: Any) -> None:
    """Change a result in the three ways there are."""
    if x._node is None and x.dtype.is_inexact:
        x.requires_grad = True
    with pb.no_grad():
        x[...] = 7 if x.dtype is not pb.bool else True
        if x.dtype is not pb.bool:
            x += 1


@pytest.mark.parametrize("tracked", [False, True], ids=["plain", "tracked"])
@pytest.mark.parametrize("case", cases(FLOATS[:1] + COMPLEX[:1]), ids=str)
def test_a_result_is_nobody_elses_handle(case: Case, tracked: bool):
    if not accepts(case.entry, case.dtype):
        pytest.skip("the record does not accept this dtype")
    given, results = called(case, tracked)
    default = RETURNS_ITS_ARGUMENT.get(case.key, True)
    if not case.sample.kwargs.get("copy", default):
        return
    assert len({id(x) for x in results}) == len(results)
    assert not {id(x) for x in given} & {id(x) for x in results}
    before, first = contents(given), contents(results)
    nodes = [x._node for x in given]
    for i, x in enumerate(results):
        others = results[i + 1 :]
        kept = contents(others)
        update(x)
        assert contents(others) == kept
    assert contents(given) == before
    assert all(x._node is n for x, n in zip(given, nodes, strict=True))
    assert contents(arrays_of(call(case.entry, case.sample))) == first


def test_the_exceptions_return_their_argument():
    x = pb.tensor([1.0])
    assert pb.asarray(x) is x
    assert pb.asarray(x, copy=True) is not x
    assert pb.astype(x, x.dtype, copy=False) is x
    assert x.to_device("cpu") is x


def overwritten(x: Any) -> None:
    """Write to the memory that others get of a tensor, as those do that heed no read-only flag."""
    exports = [np.asarray] if x.dtype is pb.bfloat16 else [np.asarray, np.from_dlpack]
    for array in [export(x.detach()) for export in exports if x.size]:
        if array.flags.c_contiguous:
            ctypes.memset(array.__array_interface__["data"][0], 0x3F, array.nbytes)


@pytest.mark.parametrize("case", cases(FLOATS[:1], derivative=True), ids=str)
def test_exported_memory_is_nothing_that_a_derivative_needs(case: Case):
    if not accepts(case.entry, case.dtype):
        pytest.skip("the record does not accept this dtype")

    def gradients(spoil: bool) -> list[bytes]:
        given, results = called(case, True)
        tracked = [x for x in results if x.requires_grad]
        if spoil:
            for x in [*given, *results]:
                overwritten(x)
        total = [pb.sum(pb.real(x) * 1.5) if x.dtype.is_complex else pb.sum(x) for x in tracked]
        if total:
            pb.sum(pb.stack(total)).backward()
        found = [x.grad for x in given if x.grad is not None]
        before = contents(found)
        if spoil:
            for g in found:
                overwritten(g)
        return before

    expected = gradients(False)
    assert gradients(True) == expected
    assert gradients(False) == expected
