"""Passes on reading few elements, and on updates that are one for each row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from jit.pass_checks import names, optimised

ROWS, CLASSES = 6, 40
LOGITS = np.random.default_rng(1).standard_normal((ROWS, CLASSES)).astype(np.float32)
PICKED = np.array([3, 0, -1, 39, 7, 7])


def picked(x: Any, index: Any) -> Any:
    return pb.primitive.gather(x, pb.arange(ROWS), index)


def compared(f: Any, *arrays: np.ndarray) -> set[str]:
    """The operations of the optimised function, which has the bits of the eager one."""
    tensors = [pb.tensor(a) for a in arrays]
    for x, y in zip(f(*tensors), pb.jit(f)(*tensors), strict=True):
        assert x.numpy().tobytes() == y.numpy().tobytes()
    return set(names(optimised(f, *tensors)))


def test_one_update_for_each_row_is_a_choice():
    def f(x: Any, index: Any, g: Any) -> Any:
        return pb.vjp(lambda x: picked(x, index), x)[1](g)

    g = np.array([1.0, -0.0, 0.0, np.inf, np.nan, 2.5], np.float32)
    found = compared(f, LOGITS, PICKED, g)
    assert "where" in found and "scatter_add" not in found


def test_several_updates_of_a_row_are_added():
    def f(index: Any, g: Any) -> Any:
        base = pb.zeros((ROWS, CLASSES), dtype="float32")
        rows = pb.tensor(np.array([0, 1, 1, 2, 2, 5]))
        return (pb.primitive.scatter_add(base, g, rows, index),)

    assert "scatter_add" in compared(f, PICKED, np.ones(ROWS, np.float32))


def test_what_is_read_is_computed_of_what_is_read():
    def f(x: Any, index: Any) -> Any:
        best = x.max(axis=1, keepdims=True)
        return (picked(pb.exp(x - best) * 2.0, index),)

    tensors = pb.tensor(LOGITS), pb.tensor(PICKED)
    graph = optimised(f, *tensors)
    (eq,) = [eq for eq in graph.equations if eq.op.name == "exp"]
    assert eq.out.aval.shape == (ROWS,)
    compared(f, LOGITS, PICKED)


def test_a_loss_writes_neither_logarithms_nor_zeros():
    def f(x: Any, index: Any) -> Any:
        return pb.value_and_grad(lambda x: pb.nn.cross_entropy(x, index))(x)

    graph = optimised(f, pb.tensor(LOGITS), pb.tensor(PICKED % CLASSES))
    assert "scatter_add" not in names(graph)
    (read,) = [eq for eq in graph.equations if eq.op.name == "gather"]
    assert read.inputs[0] in graph.inputs


@pytest.mark.parametrize("bad", [CLASSES, -CLASSES - 1])
def test_a_bad_index_is_still_an_error(bad: int):
    def f(x: Any, index: Any, g: Any) -> Any:
        return pb.vjp(lambda x: picked(x, index), x)[1](g)

    index = PICKED.copy()
    index[4] = bad
    with pytest.raises(IndexError, match="out of range"):
        pb.jit(f)(pb.tensor(LOGITS), pb.tensor(index), pb.ones(ROWS))

    def scattered(index: Any, g: Any) -> Any:
        base = pb.zeros((ROWS, CLASSES), dtype="float32")
        return pb.primitive.scatter_add(base, g, pb.arange(ROWS), index)

    with pytest.raises(IndexError, match="out of range"):
        pb.jit(scattered)(pb.tensor(index), pb.ones(ROWS))
