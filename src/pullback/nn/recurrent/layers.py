"""Recurrent layers: cells along sequences, in one or both directions, several layers deep.

The input's part of all gates is one product for the whole sequence; the rest is a scan. Sequences
of different lengths are masked: past its end a sequence keeps its state and gives zeros, so that
the reverse direction begins at each sequence's own end.
"""

from __future__ import annotations

from typing import Any

from pullback.control import scan
from pullback.core.dtypes import float32, float64, int64
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array
from pullback.nn.arguments import floating, option
from pullback.nn.dropout import dropout as dropped
from pullback.nn.fused import fused
from pullback.nn.recurrent.cells import KINDS, NONLINEARITIES, CellWeights, projected
from pullback.nn.recurrent.records import errors, oracle, samples
from pullback.ops.arrangement import moveaxis, stack
from pullback.ops.creation import zeros
from pullback.ops.families import composite
from pullback.ops.movement import concat, reshape
from pullback.ops.parts import astype
from pullback.ops.random import fold_in
from pullback.ops.ranges import arange
from pullback.ops.requirements import within
from pullback.ops.selection import where

__all__ = ["gru", "lstm", "rnn"]


# -- the computation -------------------------------------------------------------------------------


def _direction(
    kind: str, cell: CellWeights, x: Any, state: tuple, inside: Any, reverse: bool
) -> tuple[Any, tuple]:
    """The outputs (length, batch, size) of one layer in one direction, and its last state."""

    def step(old: tuple, row: dict[str, Any]) -> tuple[tuple, Any]:
        new = KINDS[kind].step(cell, row["x"], old)
        if inside is None:
            return new, new[0]
        kept = tuple(where(row["inside"], a, b) for a, b in zip(new, old, strict=True))
        return kept, where(row["inside"], new[0], 0.0)

    rows = {"x": projected(KINDS[kind], cell, x)}
    if inside is not None:
        rows["inside"] = inside
    last, outputs = scan(step, state, rows, reverse=reverse)
    return outputs, last


def _recurrent(
    x: Any,
    cells: list[CellWeights],
    states: tuple[Any, ...],
    lengths: Any,
    key: Any,
    kind: str,
    directions: int,
    dropout: float,
) -> tuple[Any, tuple[Any, ...]]:
    """Outputs (length, batch, directions * size) and last states (layers * directions, batch, .).

    Half precision is computed in float32.
    """
    dtype = x.dtype
    if dtype is not float32 and dtype is not float64:
        x = astype(x, float32)
        cells = [
            CellWeights(*[None if w is None else astype(w, float32) for w in c]) for c in cells
        ]
        states = tuple(astype(s, float32) for s in states)
    inside = None
    if lengths is not None:
        inside = reshape(arange(x.shape[0]), (-1, 1, 1)) < reshape(lengths, (1, -1, 1))
    ends: list[tuple] = []
    for layer in range(len(cells) // directions):
        if layer and dropout:
            x = dropped(x, dropout, key=fold_in(key, layer))
        outputs = []
        for d in range(directions):
            n = layer * directions + d
            first = tuple(s[n] for s in states)
            found, last = _direction(kind, cells[n], x, first, inside, d == 1)
            outputs.append(found)
            ends.append(last)
        x = outputs[0] if directions == 1 else concat(outputs, axis=-1)
    last = tuple(stack(s) for s in zip(*ends, strict=True))
    return astype(x, dtype, copy=False), tuple(astype(s, dtype, copy=False) for s in last)


_compiled = fused(_recurrent, exact=False)


# -- weights ---------------------------------------------------------------------------------------


def _cells(name: str, weights: Any, gates: int) -> list[CellWeights]:
    """The weights of all cells, given as a state dict, as dicts, or flat, as torch keeps them."""
    if isinstance(weights, dict):
        return _named(name, weights)
    if not isinstance(weights, (list, tuple)) or not len(weights):
        raise DTypeError(
            f"{name}: weights must be a dict of arrays, or a list of arrays or dicts, got"
            f" {type(weights).__name__}."
        )
    if isinstance(weights[0], (dict, CellWeights)):
        cells = [w if isinstance(w, CellWeights) else _of_dict(name, w) for w in weights]
    else:
        cells = _of_flat(name, [as_array(w, name) for w in weights], gates)
    return cells


def _of_dict(name: str, weights: dict[str, Any]) -> CellWeights:
    unknown = set(weights) - set(CellWeights._fields)
    if unknown or not {"weight_ih", "weight_hh"} <= set(weights):
        raise DTypeError(
            f"{name}: a layer has weight_ih, weight_hh, and perhaps bias_ih, bias_hh and weight_hr,"
            f" got {sorted(weights)}."
        )
    return CellWeights(**weights)


def _named(name: str, weights: dict[str, Any]) -> list[CellWeights]:
    """The cells of a state dict: names end in _l0, _l0_reverse, _l1 ..."""
    layers: dict[str, dict[str, Any]] = {}
    for full, w in weights.items():
        short, mark, rest = full.rpartition("_l")
        if not mark or not rest.removesuffix("_reverse").isdigit():
            raise DTypeError(f"{name}: a weight must be called like weight_ih_l0, got {full!r}.")
        layers.setdefault(rest, {})[short] = w
    count = len({k.removesuffix("_reverse") for k in layers})
    order = [f"{n}{d}" for n in range(count) for d in ("", "_reverse") if f"{n}{d}" in layers]
    if len(order) != len(layers):
        raise DTypeError(f"{name}: the layers of weights must be 0, 1 ..., got {sorted(layers)}.")
    return [_of_dict(name, layers[k]) for k in order]


def _of_flat(name: str, weights: list[Any], gates: int) -> list[CellWeights]:
    """The cells of a flat list: two matrices, two biases if any, a projection if sizes say so."""
    cells = []
    rest = weights
    while rest:
        if len(rest) < 2 or rest[0].ndim != 2 or rest[1].ndim != 2:
            raise ShapeError(
                f"{name}: a layer begins with the matrices weight_ih and weight_hh, got shapes"
                f" {[w.shape for w in rest[:2]]}."
            )
        (ih, hh), rest = rest[:2], rest[2:]
        biases: list[Any] = []
        if len(rest) >= 2 and rest[0].ndim == rest[1].ndim == 1:
            biases, rest = rest[:2], rest[2:]
        hr = None
        if rest and hh.shape[0] != gates * hh.shape[1]:
            hr, *rest = rest
        cells.append(CellWeights(ih, hh, *biases, weight_hr=hr))
    return cells


def _checked_cells(
    name: str, cells: list[CellWeights], gates: int, directions: int, width: int, projects: bool
) -> tuple[int, int]:
    """The sizes of the outputs and of the inner states, if the weights fit each other."""
    if len(cells) % directions:
        raise ShapeError(
            f"{name}: a bidirectional layer has two sets of weights, got {len(cells)} in all."
        )
    size = cells[0].weight_hh.shape[0] // gates
    outer = cells[0].weight_hh.shape[-1]
    if any(c.weight_hr is not None for c in cells) and not projects:
        raise ShapeError(f"{name}: only an lstm projects its output, got weight_hr.")
    for n, c in enumerate(cells):
        taken = width if n < directions else directions * outer
        wanted = {
            "weight_ih": (gates * size, taken),
            "weight_hh": (gates * size, outer),
            "bias_ih": (gates * size,),
            "bias_hh": (gates * size,),
            "weight_hr": (outer, size),
        }
        for field, w in zip(CellWeights._fields, c, strict=True):
            if w is not None and w.shape != wanted[field]:
                raise ShapeError(
                    f"{name}: {field} of layer {n // directions} must have the shape"
                    f" {wanted[field]}, got {w.shape}."
                )
        if c.weight_hr is None and outer != size:
            raise ShapeError(
                f"{name}: weight_hh of layer {n // directions} must have the shape"
                f" {(gates * size, size)}, got {c.weight_hh.shape}, and there is no weight_hr."
            )
    return outer, size


# -- arguments -------------------------------------------------------------------------------------


def _checked_states(
    name: str, hx: list[Any], shapes: list[tuple[int, ...]], flat: bool, dtype: Any
) -> tuple[Any, ...]:
    """The initial states (layers * directions, batch, size): zeros if there are none."""
    if not hx:
        return tuple(zeros(s, dtype=dtype) for s in shapes)
    found = []
    for h, shape in zip(hx, shapes, strict=True):
        wanted = (shape[0], *shape[2:]) if flat else shape
        if h.shape != wanted:
            raise ShapeError(f"{name}: hx must have the shape {wanted}, got {h.shape}.")
        found.append(reshape(h, shape))
    return tuple(found)


def _checked_lengths(name: str, lengths: Any, batch: int, most: int) -> Any:
    if lengths is None:
        return None
    lengths = as_array(lengths, name)
    if not lengths.dtype.is_integer or lengths.shape != (batch,):
        raise ShapeError(
            f"{name}: lengths must be {batch} integers, one per sequence, got {lengths._aval}."
        )
    return within(name, "length", astype(lengths, int64, copy=False), 0, most)


def _run(
    name: str,
    kind: str,
    input: Any,
    weights: Any,
    hx: Any,
    bidirectional: bool,
    batch_first: bool,
    dropout: float,
    training: bool,
    key: Any,
    lengths: Any,
) -> tuple[Any, tuple[Any, ...]]:
    """The checked call; the result without a batch, or with the batch first, if the input is so."""
    gates, count = KINDS[kind][:2]
    cells = _cells(name, weights, gates)
    given = list(hx) if isinstance(hx, (tuple, list)) else [] if hx is None else [hx]
    if given and len(given) != count:
        raise ShapeError(f"{name}: hx must be {count} arrays, got {len(given)}.")
    x, *arrays = floating(name, input, *[w for c in cells for w in c], *given)
    cells = [CellWeights(*arrays[i : i + 5]) for i in range(0, 5 * len(cells), 5)]
    hx = arrays[5 * len(cells) :]
    if x.ndim not in (2, 3):
        raise ShapeError(f"{name}: the input must have 2 or 3 dimensions, got shape {x.shape}.")
    flat = x.ndim == 2
    x = reshape(x, (x.shape[0], 1, x.shape[1])) if flat else moveaxis(x, 1, 0) if batch_first else x
    if x.shape[0] == 0:
        raise ShapeError(f"{name}: the sequence must not be empty, got shape {input.shape}.")
    directions = 2 if bidirectional else 1
    outer, size = _checked_cells(name, cells, gates, directions, x.shape[-1], kind == "lstm")
    shapes = [(len(cells), x.shape[1], outer), (len(cells), x.shape[1], size)][:count]
    states = _checked_states(name, hx, shapes, flat, x.dtype)
    lengths = _checked_lengths(name, lengths, x.shape[1], x.shape[0])
    p = float(dropout) if training and len(cells) > directions else 0.0
    if p and key is None:
        raise DTypeError(f"{name}: dropout needs a key, got None. Pass key=random.key(seed).")
    out, last = _compiled(x, cells, states, lengths, key if p else None, kind, directions, p)
    if flat:
        return out[:, 0], tuple(s[:, 0] for s in last)
    return moveaxis(out, 0, 1) if batch_first else out, last


# -- the public functions --------------------------------------------------------------------------


@composite(
    oracle=oracle("tanh"), samples=samples("tanh"), errors=errors("tanh"), namespace="nn",
    tolerance=16,
)  # fmt: skip
def rnn(
    input: Any,
    weights: Any,
    hx: Any = None,
    *,
    nonlinearity: str = "tanh",
    bidirectional: bool = False,
    batch_first: bool = False,
    dropout: float = 0.0,
    training: bool = True,
    key: Any = None,
    lengths: Any = None,
) -> Any:
    """Layers of h = tanh(weight_ih @ x + bias_ih + weight_hh @ h + bias_hh): (outputs, last h).

    Inputs are (length, batch, size), with `batch_first` (batch, length, size), or (length, size).
    `weights` is the state dict of torch's module, its arrays in order, or a dict per layer and
    direction. `lengths` gives each sequence its own end: outputs after it are 0. Dropout acts
    between layers.

    >>> x, w = pb.ones((2, 1, 1)), {"weight_ih": pb.ones((1, 1)), "weight_hh": pb.ones((1, 1))}
    >>> pb.nn.rnn(x, [w])[1]
    tensor([[[0.9426808]]], float32, cpu)
    """
    option("rnn", "nonlinearity", nonlinearity, NONLINEARITIES)
    out, (h,) = _run(
        "rnn", nonlinearity, input, weights, hx, bidirectional, batch_first, dropout, training,
        key, lengths,
    )  # fmt: skip
    return out, h


@composite(
    oracle=oracle("lstm"), samples=samples("lstm"), errors=errors("lstm"), namespace="nn",
    tolerance=16,
)  # fmt: skip
def lstm(
    input: Any,
    weights: Any,
    hx: Any = None,
    *,
    bidirectional: bool = False,
    batch_first: bool = False,
    dropout: float = 0.0,
    training: bool = True,
    key: Any = None,
    lengths: Any = None,
) -> Any:
    """Layers of `lstm_cell` along sequences: (outputs, (last hidden states, last cell states)).

    Arguments are those of `rnn`; `hx` is a pair. A layer with weight_hr projects its output.

    >>> x, w = pb.ones((2, 1, 1)), {"weight_ih": pb.ones((4, 1)), "weight_hh": pb.ones((4, 1))}
    >>> pb.nn.lstm(x, [w])[0]
    tensor([[[0.36960638]],
    <BLANKLINE>
            [[0.6505352 ]]], float32, cpu)
    """
    return _run(
        "lstm", "lstm", input, weights, hx, bidirectional, batch_first, dropout, training, key,
        lengths,
    )  # fmt: skip


@composite(
    oracle=oracle("gru"), samples=samples("gru"), errors=errors("gru"), namespace="nn",
    tolerance=16,
)  # fmt: skip
def gru(
    input: Any,
    weights: Any,
    hx: Any = None,
    *,
    bidirectional: bool = False,
    batch_first: bool = False,
    dropout: float = 0.0,
    training: bool = True,
    key: Any = None,
    lengths: Any = None,
) -> Any:
    """Layers of `gru_cell` along sequences: (outputs, last states). Arguments are those of `rnn`.

    >>> x, w = pb.ones((2, 1, 1)), {"weight_ih": pb.ones((3, 1)), "weight_hh": pb.ones((3, 1))}
    >>> pb.nn.gru(x, [w])[1]
    tensor([[[0.3467531]]], float32, cpu)
    """
    out, (h,) = _run(
        "gru", "gru", input, weights, hx, bidirectional, batch_first, dropout, training, key,
        lengths,
    )  # fmt: skip
    return out, h
