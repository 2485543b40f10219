"""Recurrent layers along sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from pullback.module import Module
from pullback.nn.layers.linear import check_sizes, small_uniform
from pullback.nn.recurrent import layers as recurrent
from pullback.ops.random import split

__all__ = ["GRU", "LSTM", "RNN"]


class Recurrent(Module):
    """What the recurrent layers have in common: `num_layers` of cells, in one or both directions.

    Weights are attributes under PyTorch's names: `weight_ih_l0`, `bias_hh_l1_reverse` ...
    """

    gates: ClassVar[int]
    function: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        key: Any,
        dtype: Any = None,
        **options: Any,
    ):
        name = type(self).__name__
        check_sizes(name, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        self.options = {
            "batch_first": batch_first, "dropout": dropout, "bidirectional": bidirectional,
            **options,
        }  # fmt: skip
        rows, state = self.gates * hidden_size, proj_size or hidden_size
        directions = ("", "_reverse")[: 1 + bidirectional]
        weights: dict[str, tuple[int, ...]] = {}
        for layer in range(num_layers):
            size = state * len(directions) if layer else input_size
            for end in (f"_l{layer}{d}" for d in directions):
                weights[f"weight_ih{end}"] = (rows, size)
                weights[f"weight_hh{end}"] = (rows, state)
                if bias:
                    weights[f"bias_ih{end}"] = weights[f"bias_hh{end}"] = (rows,)
                if proj_size:
                    weights[f"weight_hr{end}"] = (proj_size, hidden_size)
        self.names = tuple(weights)
        for own, (name, shape) in zip(split(key, len(weights)), weights.items(), strict=True):
            setattr(self, name, small_uniform(own, shape, hidden_size, dtype))

    def __call__(
        self,
        input: Any,
        hx: Any = None,
        *,
        lengths: Any = None,
        training: bool = False,
        key: Any = None,
    ) -> Any:
        weights = {name: getattr(self, name) for name in self.names}
        return type(self).function(
            input, weights, hx, lengths=lengths, training=training, key=key, **self.options
        )


class RNN(Recurrent):
    """`pb.nn.rnn` with its weights: (outputs, last states). `nonlinearity` is tanh or relu.

    >>> layer = pb.nn.RNN(3, 4, key=pb.random.key(0))
    >>> outputs, last = layer(pb.ones((5, 2, 3)))
    >>> outputs.shape, last.shape
    ((5, 2, 4), (1, 2, 4))
    """

    gates = 1
    function = staticmethod(recurrent.rnn)


class LSTM(Recurrent):
    """`pb.nn.lstm` with its weights: (outputs, (last hidden states, last cell states)).

    >>> layer = pb.nn.LSTM(3, 4, batch_first=True, key=pb.random.key(0))
    >>> outputs, (h, c) = layer(pb.ones((2, 5, 3)))
    >>> outputs.shape, c.shape
    ((2, 5, 4), (1, 2, 4))
    """

    gates = 4
    function = staticmethod(recurrent.lstm)


class GRU(Recurrent):
    """`pb.nn.gru` with its weights: (outputs, last states).

    >>> layer = pb.nn.GRU(3, 4, bidirectional=True, key=pb.random.key(0))
    >>> layer(pb.ones((5, 2, 3)))[0].shape
    (5, 2, 8)
    """

    gates = 3
    function = staticmethod(recurrent.gru)
