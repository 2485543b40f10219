"""Oracles and samples of the recurrent layers: loops over sequences, time and layers in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.core.dtypes import float32
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.recurrent.cells import KINDS, numpy_step
from pullback.ops.philox import numpy_philox, sample_key, uniform_oracle

__all__ = ["errors", "oracle", "samples"]


def _numpy_direction(
    kind: str, cell: Any, x: np.ndarray, first: tuple, lengths: Any, reverse: bool
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Outputs (length, batch, size) of a layer, and its last states, sequence by sequence."""
    outs = np.zeros((*x.shape[:2], first[0].shape[-1]), x.dtype)
    ends = [s.copy() for s in first]
    for n in range(x.shape[1]):
        state = tuple(s[n] for s in first)
        steps = range(x.shape[0] if lengths is None else int(lengths[n]))
        for t in reversed(steps) if reverse else steps:
            state = numpy_step(kind, x[t, n], state, cell)
            outs[t, n] = state[0]
        for end, s in zip(ends, state, strict=True):
            end[n] = s
    return outs, ends


def _numpy_cells(weights: Any, kind: str) -> list[tuple]:
    """The weights per layer and direction in the order of `CellWeights`."""
    fields = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    if isinstance(weights, dict):
        ends = dict.fromkeys(k[k.index("_l") :] for k in weights)
        return [tuple(weights.get(f + e) for f in fields) for e in ends]
    if isinstance(weights[0], dict):
        return [tuple(w.get(f) for f in fields) for w in weights]
    group = 4 if len(weights) > 2 and weights[2].ndim == 1 else 2
    projected = weights[1].shape[0] != KINDS[kind].gates * weights[1].shape[1]
    step = group + projected
    found = []
    for i in range(0, len(weights), step):
        own = list(weights[i : i + group])
        found.append((*own, *[None] * (4 - group), weights[i + group] if projected else None))
    return found


def _numpy_dropped(x: np.ndarray, p: float, key: Any, layer: int) -> np.ndarray:
    """Dropout with the key folded with the layer: counter (layer, 0, 0, 2)."""
    folded = np.array(numpy_philox((layer, 0, 0, 2), (key[0], key[1]))[:2])
    keep = uniform_oracle(folded, x.shape, dtype=float32) >= p
    return np.where(keep, x / (1 - p), 0.0).astype(x.dtype)


def oracle(kind: str) -> Callable[..., Any]:
    """The layers in loops."""

    def layers(
        input, weights, hx=None, *, nonlinearity=kind, bidirectional=False, batch_first=False,
        dropout=0.0, training=True, key=None, lengths=None,
    ):  # fmt: skip
        cells = _numpy_cells(weights, kind)
        flat = input.ndim == 2
        x = input[:, None] if flat else np.swapaxes(input, 0, 1) if batch_first else input
        directions = 1 + bidirectional
        sizes = [cells[0][1].shape[1], cells[0][1].shape[0] // KINDS[kind].gates]
        if hx is None:
            blank = [np.zeros((len(cells), x.shape[1], s), x.dtype) for s in sizes]
            hx = tuple(blank[: KINDS[kind].states])
        hx = hx if isinstance(hx, tuple) else (hx,)
        hx = tuple(h[:, None] for h in hx) if flat else hx
        ends = []
        for layer in range(len(cells) // directions):
            if layer and dropout and training:
                x = _numpy_dropped(x, dropout, key, layer)
            found = []
            for d in range(directions):
                n = layer * directions + d
                first = tuple(h[n] for h in hx)
                out, end = _numpy_direction(nonlinearity, cells[n], x, first, lengths, d == 1)
                found.append(out)
                ends.append(end)
            x = np.concatenate(found, axis=-1)
        last = [np.stack(s) for s in zip(*ends, strict=True)]
        if flat:
            return (x[:, 0], *[s[:, 0] for s in last])
        return (np.swapaxes(x, 0, 1) if batch_first else x, *last)

    return layers


def samples(kind: str) -> Callable[[Draw], list[Sample]]:
    """One sample for every option."""
    gates, states = KINDS[kind].gates, KINDS[kind].states

    def cell(d: Draw, taken: int, size: int = 1) -> list[np.ndarray]:
        rows = gates * size
        return [d.real(rows, taken), d.real(rows, size), d.real(rows), d.real(rows)]

    def state(d: Draw, *shape: int) -> Any:
        return d.real(*shape) if states == 1 else (d.real(*shape), d.real(*shape))

    def drawn(d: Draw) -> list[Sample]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        one = dict(zip(names, cell(d, 2, 2), strict=True))
        ends = ("_l0", "_l0_reverse")
        both = {n + e: w for e in ends for n, w in zip(names, cell(d, 2), strict=True)}
        deep = [*cell(d, 2), *cell(d, 1)]
        bare = cell(d, 2)[:2]
        found = [
            Sample((d.real(3, 2, 2), [one], state(d, 1, 2, 2))),
            Sample(
                (d.real(3, 2, 2), both), {"bidirectional": True, "lengths": np.array([2, 3])}, 2
            ),
            Sample((d.real(2, 2, 2), deep), {"dropout": 0.5, "key": sample_key(d)}, 2),
            Sample((d.real(2, 3, 2), bare), {"batch_first": True, "lengths": np.array([3, 1])}, 2),
            Sample((d.real(2, 2), deep, state(d, 2, 1)), {"dropout": 0.5, "training": False}, 1),
            Sample((d.real(2, 0, 2), bare)),
        ]
        if kind == "tanh":
            found.append(Sample((d.real(2, 1, 2), bare), {"nonlinearity": "relu"}))
        if kind == "lstm":
            ih, hh, b, c = d.real(8, 2), d.real(8, 1), d.real(8), d.real(8)
            found.append(Sample((d.real(2, 1, 2), [ih, hh, b, c, d.real(1, 2)])))
        return found

    return drawn


def errors(kind: str) -> Callable[[Draw], list[Bad]]:
    """Wrong ranks, sizes, weights, states and lengths."""
    gates, states = KINDS[kind].gates, KINDS[kind].states

    def drawn(d: Draw) -> list[Bad]:
        x, ih, hh = d.real(3, 2, 4), d.real(gates * 2, 4), d.real(gates * 2, 2)
        state = d.real(1, 2, 3) if states == 1 else (d.real(1, 2, 2), d.real(1, 2, 3))
        whole = np.ones((3, 2, 4), np.complex64)
        found = [
            Bad((d.real(4), [ih, hh]), {}, ShapeError, "2 or 3 dimensions"),
            Bad((d.real(0, 2, 4), [ih, hh]), {}, ShapeError, "must not be empty"),
            Bad((x, ih), {}, DTypeError, "weights must be a dict"),
            Bad((x, [{"weight_ih": ih}]), {}, DTypeError, "a layer has weight_ih"),
            Bad((x, {"weight": ih}), {}, DTypeError, "called like weight_ih_l0"),
            Bad((x, {"weight_ih_l1": ih, "weight_hh_l1": hh}), {}, DTypeError, "must be 0, 1"),
            Bad((x, [ih]), {}, ShapeError, "begins with the matrices"),
            Bad((x, [d.real(gates * 2, 3), hh]), {}, ShapeError, "weight_ih of layer 0"),
            Bad((x, [ih, d.real(gates * 2, 3)]), {}, ShapeError, "weight_hh of layer 0"),
            Bad((x, [ih, hh]), {"bidirectional": True}, ShapeError, "two sets of weights"),
            Bad((x, [ih, hh], state), {}, ShapeError, "hx must have the shape (1, 2, 2)"),
            Bad((x, [ih, hh], (state,) * 3), {}, ShapeError, f"hx must be {states} arrays"),
            Bad((x, [ih, hh]), {"lengths": np.array([1, 2, 3])}, ShapeError, "2 integers"),
            Bad((x, [ih, hh]), {"lengths": np.array([1, 4])}, ShapeError, "between 0 and 3"),
            Bad((x, [ih, hh, d.real(gates * 2, 2), hh]), {"dropout": 0.5}, DTypeError, "a key"),
            Bad((whole, [ih, hh]), {}, DTypeError, "got complex"),
        ]
        if kind != "lstm":
            extra = {"weight_ih": ih, "weight_hh": hh, "weight_hr": d.real(2, 2)}
            found.append(Bad((x, [extra]), {}, ShapeError, "only an lstm projects"))
        return found

    return drawn
