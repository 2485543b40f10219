"""An index out of range is an error of a jitted function too, whether its result is needed or not.

Nothing else is: a check that can't fail, or that is made anyway, costs nothing.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from matrix import arrays_of

import pullback as pb
from jit.pass_checks import names
from pullback import primitive
from pullback.compile.graph.passes import optimise
from pullback.core import pytrees
from pullback.core.errors import IndexOutOfRange
from pullback.ir.op import REGISTRY
from pullback.ir.samples import Bad, Draw

X, EMPTY = pb.ones((3, 4)), pb.ones((3, 0))
BAD = pb.tensor([0, 9])


def unused(f: Any) -> Any:
    """The function that calls `f` and returns something else."""
    return lambda x, *rest: (f(x, *rest), x)[1]


def scanned(x: Any, i: Any) -> Any:
    return pb.scan(lambda c, k: (c, x[k]), pb.zeros(()), i)


FUNCTIONS = {
    "a read": unused(lambda x, i: x[i]),
    "only its shape": lambda x, i: pb.zeros(x[i].shape),
    "a choice that is not taken": lambda x, i: pb.where(pb.tensor(False), x[i].sum(), x.sum()),
    "no rows of it": lambda x, i: x[i][:0],
    "two indices": unused(lambda x, i: x[i % 2, i]),
    "along an axis": unused(
        lambda x, i: pb.take_along_axis(x, pb.broadcast_to(i, (3, 2)), axis=1)
    ),
    "a sum into places": unused(lambda x, i: pb.segment_sum(x[:2], i, 4)),
    "values set": unused(lambda x, i: primitive.scatter_set(x, x[:2], i[:, None])),
    "beside a gradient": pb.grad(lambda x, i: x.sum() + x[i].detach().sum()),
    "its gradient": pb.grad(lambda x, i: x[i].sum()),
    "a loop": unused(scanned),
    "rows of a loop": lambda x, i: scanned(x, i)[0],
    "a carry that stays": lambda x, i: pb.fori_loop(0, 2, lambda k, c: (x[i[k]], c)[1], x),
    "a while loop": lambda x, i: pb.while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, (x[i[c[0]]], c[1])[1]), (pb.tensor(0), x)
    ),
    "the test of a while loop": lambda x, i: pb.while_loop(
        lambda c: (x[i[c]], c < 1)[1], lambda c: c + 1, pb.tensor(0)
    ),
    "a branch": lambda x, i: pb.cond(x.sum() > 0, lambda: (x[i], x)[1], lambda: x),
    "a whole branch": unused(lambda x, i: pb.cond(x.sum() > 0, lambda: x[i], lambda: x[:2])),
    "a constant": unused(lambda x, i: x[pb.tensor([0, 7])]),
    "a value of a nested function": pb.jit(unused(lambda x, i: x[i])),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_unused_results(name: str) -> None:
    f = FUNCTIONS[name]
    with pytest.raises(IndexOutOfRange):
        f(X, BAD)
    with pytest.raises(IndexOutOfRange):
        pb.jit(f)(X, BAD)
    if name != "a constant":
        pb.jit(f)(X, pb.tensor([0, 1]))


EMPTIES = {
    "rows": (lambda x, i: x[i], EMPTY),
    "columns": (lambda x, i: x[:, i], pb.ones((0, 3))),
    "no row": (lambda x, i: x[i], pb.ones((0, 3))),
    "two indices": (lambda x, i: primitive.gather(x, i[:, None], i[:, None]), pb.ones((3, 3, 0))),
    "sums": (lambda x, i: pb.segment_sum(x[:2], i, 4), EMPTY),
    "values set": (lambda x, i: primitive.scatter_set(x, x[:2], i[:, None]), EMPTY),
    "maxima": (lambda x, i: primitive.scatter_max(x, x[:2], i[:, None]), EMPTY),
}


@pytest.mark.parametrize("name", EMPTIES)
def test_empty_results(name: str) -> None:
    f, x = EMPTIES[name]
    for run in (f, pb.jit(f)):
        with pytest.raises(IndexOutOfRange):
            run(x, BAD)
        if 0 not in x.shape[:1]:
            run(x, pb.tensor([0, 2]))


# -- every operation -------------------------------------------------------------------------------


def bad_calls() -> list[Any]:
    found = []
    for key, entry in sorted(REGISTRY.items()):
        bads: list[Bad] = entry.errors(Draw(zlib.crc32(key.encode()), np.dtype("float32")))
        chosen = [b for b in bads if b.error is IndexOutOfRange]
        found += [pytest.param(entry, b, id=f"{key}-{n}") for n, b in enumerate(chosen)]
    return found


@pytest.mark.parametrize("entry, bad", bad_calls())
def test_every_operation_that_checks_indices(entry: Any, bad: Bad) -> None:
    leaves, structure = pytrees.flatten((bad.args, bad.kwargs))
    places = [k for k, a in enumerate(leaves) if isinstance(a, np.ndarray)]

    def f(*arrays: Any) -> Any:
        full = list(leaves)
        for k, a in zip(places, arrays, strict=True):
            full[k] = a
        args, kwargs = pytrees.unflatten(structure, full)
        return arrays_of(entry.function(*args, **kwargs))

    given = [pb.tensor(leaves[k]) for k in places]
    for g in (f, unused(f)):
        with pytest.raises((IndexOutOfRange, pb.DTypeError)) as caught:
            pb.jit(g)(*given)
        if not isinstance(caught.value, IndexOutOfRange):
            assert "traced" in str(caught.value), caught.value
            pytest.skip("needs the contents of an argument")


# -- and what is not checked twice -----------------------------------------------------------------


def optimised(f: Any, *args: Any) -> list[str]:
    return names(optimise(pb.trace(f)(*args)))


def test_a_check_reads_no_rows() -> None:
    assert optimised(unused(lambda x, i: x[i]), X, BAD) == ["reshape", "broadcast_to", "gather"]


def test_checks_that_are_made_anyway_are_not_repeated() -> None:
    found = optimised(pb.grad(lambda x, i: (x[i] * 2.0).sum()), X, BAD)
    assert "gather" not in found and found.count("scatter_add") == 1
    assert optimised(lambda x, i: (x[i], (x * 2)[i])[0], X, BAD).count("gather") == 1


@pytest.mark.parametrize("f", [
    lambda x: x[pb.tensor([2, -3])],
    lambda x: pb.sort(x, axis=0),
    lambda x: pb.take_along_axis(x, pb.argmax(x, axis=1, keepdims=True), axis=1),
    lambda x: x[pb.arange(3)],
])  # fmt: skip
def test_indices_that_are_known_to_be_inside_are_not_checked(f: Any) -> None:
    assert optimised(unused(f), X) == []
