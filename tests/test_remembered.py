"""Remembered calls: what follows from avals and arguments alone is normalised once."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from pullback.ir.op import REGISTRY, bind
from pullback.ops.remembered import remembering


def test_a_repeated_call_does_not_normalise_again():
    op = REGISTRY["sum"]
    calls = []

    def total(x, /, *, axis):
        calls.append(axis)
        return bind(op, x, axes=(axis,), keepdims=False)

    def doubled(x, /, *, axis):
        calls.append(axis)
        return bind(op, x, axes=(axis,), keepdims=False) * 2.0

    x = pb.tensor([[1.0, 2.0], [3.0, 4.0]])
    quick = remembering(op, total, 1)
    assert [quick(x, axis=0).tolist() for _ in range(3)] == [[4.0, 6.0]] * 3
    assert calls == [0]
    quick = remembering(op, doubled, 1)  # does more than normalise: never remembered
    assert [quick(x, axis=1).tolist() for _ in range(3)] == [[6.0, 14.0]] * 3
    assert calls == [0, 1, 1, 1]


def test_arguments_of_another_type_are_still_refused():
    x = pb.tensor(np.zeros((2, 3)))
    assert pb.reshape(x, (3, 2)).shape == (3, 2)
    with pytest.raises(pb.DTypeError):
        pb.reshape(x, (3, 2.0))  # pyright: ignore[reportArgumentType]
    assert pb.sum(x, axis=1).shape == (2,)
    with pytest.raises(pb.DTypeError):
        pb.sum(x, axis=True)


def test_what_is_done_after_the_operation_is_not_lost():
    """A vector operand is reshaped before and after the product; neither may be skipped later."""
    m, v = pb.tensor([[1.0, 2.0], [3.0, 4.0]]), pb.tensor([1.0, 1.0])
    for _ in range(3):
        assert (m @ v).tolist() == [3.0, 7.0] and (v @ m).tolist() == [4.0, 6.0]
        assert (v @ v).item() == 2.0 and (m @ m).shape == (2, 2)
        assert pb.sum(pb.tensor([True, True])).dtype is pb.int64
        assert pb.argmax(m).item() == 3 and pb.max(m, axis=0, keepdims=True).shape == (1, 2)


def test_views_of_one_slice_have_their_own_data():
    x, y = pb.tensor([1.0, 2.0, 3.0]), pb.tensor([4.0, 5.0, 6.0])
    for _ in range(3):
        assert x[1:].tolist() == [2.0, 3.0] and y[1:].tolist() == [5.0, 6.0]
        assert x[-1].item() == 3.0 and y[-1].item() == 6.0
    with pytest.raises(IndexError):
        x[1.0:]  # pyright: ignore[reportArgumentType]


def test_remembered_calls_are_recorded():
    x = pb.tensor([[1.0, 2.0]], requires_grad=True)
    for _ in range(2):
        x.grad = None
        (x[:, 1:].sum() * 3.0 + x.reshape((2,)).sum()).backward()
        assert x.grad.tolist() == [[1.0, 4.0]]


@pytest.mark.parametrize("number", [0.0, -0.0, 0, 2.0, -3, float("nan")])
def test_numbers_beside_arrays_keep_their_value_and_sign(number):
    """The array of a number that was met before serves again; 0.0 and -0.0 are equal as keys."""
    values = np.array([1.0, -1.0], np.float32)
    x, condition = pb.tensor(values), pb.tensor([True, False])
    for other in (0.0, -0.0, number, number):
        chosen = np.where([True, False], np.float32(other), values)
        assert pb.where(condition, other, x).numpy().tobytes() == chosen.tobytes()
        with np.errstate(divide="ignore"):
            quotient = values / np.float32(other)
        np.testing.assert_array_equal(pb.divide(x, other).numpy(), quotient)
