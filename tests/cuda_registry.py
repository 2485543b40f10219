"""The registry's samples run in several ways, for tests on another device and for their table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import pullback as pb
from generated.matrix import (
    Case,
    along_line,
    arrays_of,
    call,
    differentiable,
    differentiable_leaves,
    function_of,
)
from pullback.core import pytrees

__all__ = ["WAYS", "same_bits"]


def compiled(case: Case) -> Any:
    """The result of the function under `jit`."""
    leaves, structure = pytrees.flatten((case.sample.args, case.sample.kwargs))
    at = [i for i, a in enumerate(leaves) if isinstance(a, np.ndarray)]

    def f(*arrays: Any) -> Any:
        full = list(leaves)
        for i, a in zip(at, arrays, strict=True):
            full[i] = a
        args, kwargs = pytrees.unflatten(structure, full)
        return arrays_of(case.entry.function(*args, **kwargs))

    return pb.jit(f)(*[pb.tensor(leaves[i]) for i in at])


def derivative(case: Case, order: int, jit: bool) -> Any:
    """A derivative along a line, nothing where the sample has none."""
    if not differentiable(case.entry) or not case.sample.order:
        return []
    f = function_of(case.entry, case.sample)
    xs = [pb.tensor(a) for a in differentiable_leaves(case.sample)]
    if not xs or not f(*xs):
        return []
    phi = along_line(f, xs)
    for _ in range(min(order, case.sample.order)):
        phi = pb.grad(phi)
    return (pb.jit(phi) if jit else phi)(pb.tensor(0.0, dtype="float64"))


WAYS: dict[str, Callable[[Case], Any]] = {
    "eager": lambda case: call(case.entry, case.sample),
    "jit": compiled,
    "first": lambda case: derivative(case, 1, False),
    "second, jit": lambda case: derivative(case, 2, True),
}


def same_bits(x: Any, y: Any) -> bool:
    """Whether two arrays are equal to the bit, but for the bits of NaN."""
    if x.dtype.kind == "c":
        return all(same_bits(*pair) for pair in ((x.real, y.real), (x.imag, y.imag)))
    if x.dtype.kind not in "fV":
        return np.array_equal(x, y)
    nan = np.isnan(x.astype(np.float64))
    raw = [np.frombuffer(a.tobytes(), f"u{a.dtype.itemsize}").reshape(a.shape) for a in (x, y)]
    return bool(np.all((raw[0] == raw[1]) | (nan & np.isnan(y.astype(np.float64)))))
