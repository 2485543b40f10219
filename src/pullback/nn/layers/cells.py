"""One step of a recurrent layer, for loops of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from pullback.core.errors import ShapeError
from pullback.module import Module
from pullback.nn.layers.linear import check_sizes, small_uniform
from pullback.nn.recurrent import cells
from pullback.ops.creation import zeros
from pullback.ops.random import split

__all__ = ["GRUCell", "LSTMCell", "RNNCell"]


class Cell(Module):
    """What the cells have in common: weights under PyTorch's names, a state of zeros at first."""

    gates: ClassVar[int]
    states: ClassVar[int] = 1
    function: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        key: Any,
        dtype: Any = None,
        **options: Any,
    ):
        name = type(self).__name__
        check_sizes(name, input_size=input_size, hidden_size=hidden_size)
        self.hidden_size, self.options = hidden_size, options
        rows, keys = self.gates * hidden_size, split(key, 4)
        self.weight_ih = small_uniform(keys[0], (rows, input_size), hidden_size, dtype)
        self.weight_hh = small_uniform(keys[1], (rows, hidden_size), hidden_size, dtype)
        self.bias_ih = small_uniform(keys[2], (rows,), hidden_size, dtype) if bias else None
        self.bias_hh = small_uniform(keys[3], (rows,), hidden_size, dtype) if bias else None

    def __call__(self, input: Any, hx: Any = None) -> Any:
        if input.ndim not in (1, 2):
            raise ShapeError(
                f"{type(self).__name__}: takes vectors, one or a batch, got shape {input.shape}."
            )
        if hx is None:
            hx = zeros((*input.shape[:-1], self.hidden_size), dtype=self.weight_hh.dtype)
            hx = (hx, hx) if self.states == 2 else hx
        return type(self).function(
            input, hx, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh, **self.options
        )


class RNNCell(Cell):
    """`pb.nn.rnn_cell` with its weights: the next state. `nonlinearity` is tanh or relu.

    >>> cell = pb.nn.RNNCell(3, 4, key=pb.random.key(0))
    >>> cell(pb.ones((2, 3))).shape
    (2, 4)
    """

    gates = 1
    function = staticmethod(cells.rnn_cell)


class LSTMCell(Cell):
    """`pb.nn.lstm_cell` with its weights: (next hidden state, next cell state).

    >>> cell = pb.nn.LSTMCell(3, 4, key=pb.random.key(0))
    >>> h, c = cell(pb.ones((2, 3)))
    >>> h, c = cell(pb.ones((2, 3)), (h, c))
    >>> h.shape, c.shape
    ((2, 4), (2, 4))
    """

    gates, states = 4, 2
    function = staticmethod(cells.lstm_cell)


class GRUCell(Cell):
    """`pb.nn.gru_cell` with its weights: the next state.

    >>> cell = pb.nn.GRUCell(3, 4, key=pb.random.key(0))
    >>> cell(pb.ones(3)).shape
    (4,)
    """

    gates = 3
    function = staticmethod(cells.gru_cell)
