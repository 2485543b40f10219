"""What eager functions refuse, jitted ones refuse too: errors of shapes, dtypes and values, also
where the result is not needed.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from matrix import function_of_arrays

import pullback as pb
from pullback.ir.op import REGISTRY
from pullback.ir.samples import Bad, Draw


def bad_calls(key: str) -> list[tuple[Any, list[Any], Bad]]:
    """The wrong calls that have arrays, as functions of these."""
    found = []
    bads: list[Bad] = REGISTRY[key].errors(Draw(zlib.crc32(key.encode()), np.dtype("float64")))
    for bad in bads:
        f, arrays = function_of_arrays(REGISTRY[key].function, bad.args, bad.kwargs)
        if arrays:
            found.append((f, list(map(pb.tensor, arrays)), bad))
    return found


@pytest.mark.parametrize("key", [key for key in sorted(REGISTRY) if bad_calls(key)])
def test_a_jitted_function_refuses_what_the_eager_one_does(key: str):
    for f, arrays, bad in bad_calls(key):
        with pytest.raises(bad.error) as eager:
            f(*arrays)
        for g in (f, lambda *xs, f=f: (f(*xs), xs[0])[1]):
            with pytest.raises((bad.error, pb.DTypeError)) as compiled:
                pb.jit(g)(*arrays)
            if "traced" in str(compiled.value):
                break  # nothing has run: it is another error where contents are needed
            assert type(compiled.value) is type(eager.value)


def test_values_that_are_allowed_pass():
    q = pb.jit(lambda x, q: pb.quantile(x, q))(pb.tensor([1.0, 2.0, 4.0]), pb.tensor([0.0, 1.0]))
    assert q.tolist() == [1.0, 4.0]
    bins = pb.jit(pb.digitize)(pb.tensor([0.2, 6.4]), pb.tensor([10.0, 1.0, 0.0]))
    assert bins.tolist() == [2, 1]
    assert pb.jit(pb.nanargmax)(pb.tensor([pb.nan, 2.0])).item() == 1


def test_the_place_of_a_wrong_value_is_named():
    with pytest.raises(pb.ShapeError, match=r"the fraction at \(1, 0\) of the batch must lie"):
        pb.jit(pb.quantile)(pb.ones(3), pb.tensor([[0.0, 1.0], [1.5, 2.0]]))
    with pytest.raises(pb.ShapeError, match=r"the fraction at 1 of the batch must lie"):
        pb.vmap(pb.quantile, in_axes=(None, 0))(pb.ones(3), pb.tensor([0.5, 1.5]))
