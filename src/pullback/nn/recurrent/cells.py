"""Recurrent cells: one step from a state and an input to the next state, with torch's weights.

The gates stand one under the other in the weights: (input, forget, cell, output) of an LSTM,
(reset, update, new) of a GRU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import floating, option
from pullback.nn.rectifiers import relu
from pullback.ops.creation import zeros
from pullback.ops.families import composite
from pullback.ops.movement import reshape
from pullback.ops.products import matmul, matrix_transpose
from pullback.ops.special import sigmoid
from pullback.ops.trigonometry import tanh

__all__ = [
    "KINDS",
    "CellKind",
    "CellWeights",
    "gru_cell",
    "lstm_cell",
    "numpy_step",
    "projected",
    "rnn_cell",
]


class CellWeights(NamedTuple):
    """The weights of one layer in one direction, of which the last three may be None."""

    weight_ih: Any
    weight_hh: Any
    bias_ih: Any = None
    bias_hh: Any = None
    weight_hr: Any = None


State = tuple[Any, ...]


class CellKind(NamedTuple):
    """A kind of cell: how many gates and arrays of state it has, and its step.

    `step(cell, x, state)` gives the next state, whose first array is the output; `x` is the input's
    part of the gates. `joined` says that the other bias can be added to that part beforehand.
    """

    gates: int
    states: int
    step: Callable[[CellWeights, Any, State], State]
    joined: bool


def projected(kind: CellKind, cell: CellWeights, x: Any) -> Any:
    """The input's part of the gates, for any number of inputs at once."""
    # as one matrix: the gradient of the weight is then one product, not one per step
    flat = matmul(reshape(x, (-1, x.shape[-1])), matrix_transpose(cell.weight_ih))
    out = reshape(flat, (*x.shape[:-1], flat.shape[-1]))
    biases = [cell.bias_ih, cell.bias_hh if kind.joined else None]
    present = [b for b in biases if b is not None]
    if not present:
        return out
    return out + (present[0] if len(present) == 1 else present[0] + present[1])


def _gates(x: Any, count: int) -> list[Any]:
    size = x.shape[-1] // count
    return [x[..., i * size : (i + 1) * size] for i in range(count)]


def _plain_step(function: Callable[[Any], Any]) -> Callable[[CellWeights, Any, State], State]:
    def step(cell: CellWeights, x: Any, state: State) -> State:
        return (function(x + matmul(state[0], matrix_transpose(cell.weight_hh))),)

    return step


def _lstm_step(cell: CellWeights, x: Any, state: State) -> State:
    h, c = state
    i, f, g, o = _gates(x + matmul(h, matrix_transpose(cell.weight_hh)), 4)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    h = sigmoid(o) * tanh(c)
    return h if cell.weight_hr is None else matmul(h, matrix_transpose(cell.weight_hr)), c


def _gru_step(cell: CellWeights, x: Any, state: State) -> State:
    (h,) = state
    own = matmul(h, matrix_transpose(cell.weight_hh))
    own = own if cell.bias_hh is None else own + cell.bias_hh
    (xr, xz, xn), (hr, hz, hn) = _gates(x, 3), _gates(own, 3)
    n = tanh(xn + sigmoid(xr + hr) * hn)
    return (n + sigmoid(xz + hz) * (h - n),)


KINDS = {
    "tanh": CellKind(1, 1, _plain_step(tanh), True),
    "relu": CellKind(1, 1, _plain_step(relu), True),
    "lstm": CellKind(4, 2, _lstm_step, True),
    "gru": CellKind(3, 1, _gru_step, False),
}
NONLINEARITIES = ("tanh", "relu")


# -- one step --------------------------------------------------------------------------------------


def _checked(name: str, kind: CellKind, x: Any, state: State, cell: CellWeights) -> None:
    """Refuse arrays of which the shapes do not fit."""
    rows = cell.weight_hh.shape[0]
    size = rows // kind.gates
    if cell.weight_hh.shape != (kind.gates * size, size):
        raise ShapeError(
            f"{name}: weight_hh must have the shape ({kind.gates} * size, size), got"
            f" {cell.weight_hh.shape}."
        )
    if x.ndim not in (1, 2) or cell.weight_ih.shape != (rows, x.shape[-1]):
        raise ShapeError(
            f"{name}: weight_ih must have the shape ({rows}, input size), got"
            f" {cell.weight_ih.shape} and an input of shape {x.shape}."
        )
    for what, b in (("bias_ih", cell.bias_ih), ("bias_hh", cell.bias_hh)):
        if b is not None and b.shape != (rows,):
            raise ShapeError(f"{name}: {what} must have {rows} elements, got shape {b.shape}.")
    for h in state:
        if h.shape != (*x.shape[:-1], size):
            raise ShapeError(
                f"{name}: the state must have the shape {(*x.shape[:-1], size)}, got {h.shape}."
            )


def _stepped(name: str, kind: CellKind, x: Any, hx: Any, *weights: Any) -> State:
    given = list(hx) if isinstance(hx, (tuple, list)) else [hx] * kind.states
    if len(given) != kind.states:
        raise ShapeError(f"{name}: the state is {kind.states} arrays, got {len(given)}.")
    x, *rest = floating(name, x, *weights, *given)
    cell = CellWeights(*rest[:4])
    if cell.weight_ih.ndim != 2 or cell.weight_hh.ndim != 2:
        raise ShapeError(
            f"{name}: weight_ih and weight_hh must be matrices, got shapes {cell.weight_ih.shape}"
            f" and {cell.weight_hh.shape}."
        )
    blank = (*x.shape[:-1], cell.weight_hh.shape[-1])
    state = tuple(zeros(blank, dtype=x.dtype) if h is None else h for h in rest[4:])
    _checked(name, kind, x, state, cell)
    return kind.step(cell, projected(kind, cell, x), state)


def _logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def numpy_step(kind: str, x: np.ndarray, state: tuple, cell: Any) -> tuple[np.ndarray, ...]:
    """One step, for oracles; `cell` has the weights in the order of `CellWeights`."""
    w, u, b, d, r = cell
    h = state[0]
    zero = np.zeros(len(w), np.asarray(x).dtype)
    own, fed = h @ u.T + (zero if d is None else d), x @ w.T + (zero if b is None else b)
    if kind in NONLINEARITIES:
        return (np.tanh(own + fed) if kind == "tanh" else np.maximum(own + fed, 0),)
    if kind == "gru":
        (hr, hz, hn), (xr, xz, xn) = np.split(own, 3, -1), np.split(fed, 3, -1)
        z, n = _logistic(xz + hz), np.tanh(xn + _logistic(xr + hr) * hn)
        return ((1 - z) * n + z * h,)
    i, f, g, o = np.split(own + fed, 4, -1)
    c = _logistic(f) * state[1] + _logistic(i) * np.tanh(g)
    h = _logistic(o) * np.tanh(c)
    return h if r is None else h @ r.T, c


def _oracle(kind: str) -> Callable[..., Any]:
    def oracle(input, hx, weight_ih, weight_hh, bias_ih=None, bias_hh=None, nonlinearity=kind):
        size = weight_hh.shape[1]
        blank = np.zeros((*input.shape[:-1], size), input.dtype)
        state = (blank, blank) if hx is None else hx if isinstance(hx, tuple) else (hx,)
        cell = (weight_ih, weight_hh, bias_ih, bias_hh, None)
        found = numpy_step(nonlinearity, input, state, cell)
        return found if kind == "lstm" else found[0]

    return oracle


def _samples(kind: str) -> Callable[[Draw], list[Sample]]:
    gates, states = KINDS[kind][:2]

    def samples(d: Draw) -> list[Sample]:
        rows = gates * 2
        weights = (d.real(rows, 3), d.real(rows, 2))
        biases = (d.real(rows), d.real(rows))
        first = d.real(2, 2) if states == 1 else (d.real(2, 2), d.real(2, 2))
        found = [
            Sample((d.real(2, 3), first, *weights, *biases)),
            Sample((d.real(3), None, *weights)),
            Sample((d.real(0, 3), None, *weights, *biases)),
        ]
        if kind == "tanh":
            relu = {"nonlinearity": "relu"}
            found.append(Sample((d.real(2, 3), d.real(2, 2), *weights, *biases), relu))
        return found

    return samples


def _errors(kind: str) -> Callable[[Draw], list[Bad]]:
    gates, states = KINDS[kind][:2]

    def errors(d: Draw) -> list[Bad]:
        rows = gates * 2
        x, w, u = d.real(4, 3), d.real(rows, 3), d.real(rows, 2)
        h = d.real(4, 3) if states == 1 else (d.real(4, 2), d.real(4, 3))
        whole = np.ones((4, 3), np.complex64)
        return [
            Bad((x, None, w, d.real(rows, 3)), {}, ShapeError, "weight_hh must have the shape"),
            Bad((x, None, d.real(rows, 4), u), {}, ShapeError, "weight_ih must have the shape"),
            Bad((x, None, w, u, d.real(rows + 1)), {}, ShapeError, "bias_ih must have"),
            Bad((x, h, w, u), {}, ShapeError, "the state must have the shape (4, 2)"),
            Bad((x, (h, h, h), w, u), {}, ShapeError, f"the state is {states} arrays, got 3"),
            Bad((whole, None, w, u), {}, DTypeError, "got complex"),
        ]

    return errors


@composite(oracle=_oracle("tanh"), samples=_samples("tanh"), errors=_errors("tanh"), namespace="nn")
def rnn_cell(
    input: Any,
    hx: Any,
    weight_ih: Any,
    weight_hh: Any,
    bias_ih: Any = None,
    bias_hh: Any = None,
    nonlinearity: str = "tanh",
) -> Any:
    """The next state, tanh (or relu) of `weight_ih @ x + bias_ih + weight_hh @ h + bias_hh`.

    Arrays are (batch, size) or (size,); a state of None is zero.

    >>> pb.nn.rnn_cell(pb.ones((1, 2)), None, pb.eye(2), pb.eye(2))
    tensor([[0.7615942, 0.7615942]], float32, cpu)
    """
    option("rnn_cell", "nonlinearity", nonlinearity, NONLINEARITIES)
    kind = KINDS[nonlinearity]
    return _stepped("rnn_cell", kind, input, hx, weight_ih, weight_hh, bias_ih, bias_hh)[0]


@composite(oracle=_oracle("lstm"), samples=_samples("lstm"), errors=_errors("lstm"), namespace="nn")
def lstm_cell(
    input: Any,
    hx: Any,
    weight_ih: Any,
    weight_hh: Any,
    bias_ih: Any = None,
    bias_hh: Any = None,
) -> Any:
    """The next (hidden, cell) state: `c = f * c + i * g`, `h = o * tanh(c)`.

    The gates i, f and o are sigmoids and g is a tanh of `weight_ih @ x + bias_ih + weight_hh @ h +
    bias_hh`.

    >>> pb.nn.lstm_cell(pb.ones((1, 1)), None, pb.ones((4, 1)), pb.ones((4, 1)))
    (tensor([[0.36960638]], float32, cpu), tensor([[0.55676997]], float32, cpu))
    """
    kind = KINDS["lstm"]
    return _stepped("lstm_cell", kind, input, hx, weight_ih, weight_hh, bias_ih, bias_hh)


@composite(oracle=_oracle("gru"), samples=_samples("gru"), errors=_errors("gru"), namespace="nn")
def gru_cell(
    input: Any,
    hx: Any,
    weight_ih: Any,
    weight_hh: Any,
    bias_ih: Any = None,
    bias_hh: Any = None,
) -> Any:
    """The next state, `(1 - z) * n + z * h`, where the new part n sees the state through a gate.

    >>> pb.nn.gru_cell(pb.ones((1, 1)), None, pb.ones((3, 1)), pb.ones((3, 1)))
    tensor([[0.20482421]], float32, cpu)
    """
    kind = KINDS["gru"]
    return _stepped("gru_cell", kind, input, hx, weight_ih, weight_hh, bias_ih, bias_hh)[0]
