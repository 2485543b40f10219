"""What tests of `jit` share: arrays, comparisons, containers."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import pullback as pb
from pullback.core import pytrees


def tensor(*shape: int, seed: int = 0, dtype: str = "float64") -> Any:
    return pb.tensor(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def equal(a: Any, b: Any) -> None:
    """The same tree with the same bits."""
    first, structure = pytrees.flatten(a)
    second, other = pytrees.flatten(b)
    assert structure == other
    for x, y in zip(first, second, strict=True):
        if isinstance(x, pb.Tensor):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
            np.testing.assert_array_equal(x.numpy(), y.numpy())
        else:
            assert x == y


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-12, atol=1e-12)


def here(offset: int = 0) -> str:
    """This file and the line of the caller, moved by `offset`, as messages name them."""
    frame = inspect.currentframe().f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno + offset}"


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Layer:
    weight: Any
    bias: Any


def wave(x: Any) -> Any:
    return (pb.sin(x * x) * pb.exp(-x)).sum()
