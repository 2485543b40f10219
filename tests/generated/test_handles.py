"""Every operation gives handles of its own: what is done to a result changes nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from matrix import COMPLEX, FLOATS, Case, accepts, arrays_of, call, called, cases, contents

import pullback as pb

# The standard lets these return their argument, by default or without a copy.
RETURNS_ITS_ARGUMENT = {"asarray": None, "astype": True}  # and what `copy` is by default


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
    assert x.to_device(x.device) is x
    assert x.to(x.device) is x
    here = pb.tensor([1.0], device="cpu")
    assert here.cpu() is here
