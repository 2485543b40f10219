"""The same bits for any number of threads, on arrays large enough to be shared out among them."""

from __future__ import annotations

import numpy as np
import pytest
from matrix import Case, accepts, arrays_of, cases

import pullback as pb
from pullback.core import pytrees
from pullback.ir.lowering import Elementwise, Fold
from pullback.ir.op import Op

TARGET = 150_000  # elements: above the size from which kernels use several threads


def enlarged(case: Case):
    """The sample with its floating arrays repeated along a new leading axis, or None if it has no
    room for one.
    """

    def larger(a):
        if isinstance(a, np.ndarray) and a.size > 1 and a.dtype.kind == "f":
            copies = TARGET // a.size + 1
            return pb.tensor(np.concatenate([np.roll(a.reshape(-1), i) for i in range(copies)]))
        return pb.tensor(a) if isinstance(a, np.ndarray) else a

    return pytrees.map_tree(larger, case.sample.args)


def eligible() -> list[Case]:
    """First samples of operations that work on arrays of any length: elementwise ones, and folds
    over everything.
    """
    found = []
    for case in cases((pb.float32,)):
        entry = case.entry
        if (
            case.position == 0
            and isinstance(entry, Op)
            and isinstance(entry.lowering, (Elementwise, Fold))
        ):
            found.append(case)
    return found


@pytest.mark.parametrize("case", eligible(), ids=str)
def test_thread_count_does_not_change_the_bits(case: Case, threads):
    if not accepts(case.entry, case.dtype):
        pytest.skip("the record does not accept this dtype")
    args = enlarged(case)
    patterns = set()
    for n in (1, 2, 3):
        threads(n)
        try:
            result = case.entry.function(*args)
        except (pb.ShapeError, pb.DTypeError, TypeError):
            pytest.skip("this operation takes no flat arrays of this length")
        patterns.add(b"".join(x.numpy().tobytes() for x in arrays_of(result)))
    assert len(patterns) == 1
