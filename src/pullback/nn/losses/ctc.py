"""Connectionist temporal classification (Graves et al., 2006): the likelihood of a label sequence
summed over all its alignments to a longer sequence.
"""

from __future__ import annotations

from itertools import product
from math import inf
from typing import Any

import numpy as np

from pullback.control import scan
from pullback.core import dtypes as dt
from pullback.core.errors import DTypeError, IndexOutOfRange, ShapeError
from pullback.ir.convert import as_array, to_numpy
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import class_numbers, floating, option, reduced, reported_by, wide
from pullback.ops.arrangement import expand_dims, stack
from pullback.ops.creation import constant
from pullback.ops.cumulative import cumsum
from pullback.ops.families import composite
from pullback.ops.indexing import take, take_along_axis
from pullback.ops.movement import concat, reshape
from pullback.ops.parts import astype
from pullback.ops.ranges import positions
from pullback.ops.requirements import within
from pullback.ops.selection import clip, where
from pullback.ops.special import logaddexp

__all__ = ["ctc_loss"]

NAME = "ctc_loss"


# -- arguments -------------------------------------------------------------------------------------


def _lengths(what: str, given: Any, batch: int | None, most: int, dev: Any) -> Any:
    """Lengths as an int64 array with an element for each of the batch."""
    x = as_array(given, NAME, dev=dev)
    if isinstance(given, (list, tuple)) and not given:
        x = astype(x, dt.int64)
    if not x._aval.dtype.is_integer:
        raise DTypeError(f"{NAME}: {what} are integers, got {x._aval.dtype.name}.")
    if x._aval.shape != (batch,) and not (batch is None and x._aval.size == 1):
        raise ShapeError(f"{NAME}: {what} must have the shape ({batch},), got {x._aval.shape}.")
    x = within(NAME, f"number in {what}", astype(x, dt.int64), 0, most)
    return reshape(x, (1 if batch is None else batch,))


def _padded(targets: Any, lengths: Any) -> Any:
    """Concatenated targets in rows of one length."""
    known = not lengths._aval.is_symbolic
    width = int(to_numpy(lengths).max(initial=0)) if known else targets._aval.size
    starts = cumsum(lengths, axis=0) - lengths
    columns = positions(width, targets._aval.device)
    places = expand_dims(starts, 1) + columns
    places = where(columns < expand_dims(lengths, 1), places, 0)
    return reported_by(NAME, take, targets, places, axis=0) if width else places


def _labels(targets: Any, lengths: Any, classes: int, blank: int) -> Any:
    """The target classes in rows, with blanks after their end."""
    inside = positions(targets._aval.shape[1], targets._aval.device) < expand_dims(lengths, 1)
    return where(inside, class_numbers(NAME, targets, classes)[0], blank)


# -- the recursion ---------------------------------------------------------------------------------


def _states(labels: Any, blank: int) -> tuple[Any, Any]:
    """The classes of the states, labels between blanks, and which states may follow the state two
    before them: labels that differ from the one before.
    """
    n, width = labels._aval.shape
    dev = labels._aval.device
    blanks = constant(blank, (n, width), dt.int64, dev)
    pairs = reshape(stack([blanks, labels], axis=2), (n, 2 * width))
    states = concat([pairs, constant(blank, (n, 1), dt.int64, dev)], axis=1)
    if width == 0:
        return states, constant(False, (n, 1), dt.bool_, dev)
    skips = (states[:, 2:] != states[:, :-2]) & (states[:, 2:] != blank)
    return states, concat([constant(False, (n, 2), dt.bool_, dev), skips], axis=1)


def _last_forward(emitted: Any, skips: Any, lengths: Any) -> Any:
    """The log-probabilities of being in each state after the last step of each sequence.

    `emitted` (T, N, S) holds what every state emits. Before the first step all mass is in state 0.
    """
    steps, n, width = emitted._aval.shape
    dtype, dev = emitted._aval.dtype, emitted._aval.device
    nothing = constant(-inf, (n, 2), dtype, dev)
    start = concat([constant(0, (n, 1), dtype, dev), constant(-inf, (n, width - 1), dtype, dev)],
                   axis=1)  # fmt: skip
    barred = where(skips, constant(0, (), dtype, dev), -inf)
    running = expand_dims(positions(steps, dev), (1, 2)) < expand_dims(lengths, 1)

    def step(alpha: Any, row: tuple[Any, Any]) -> tuple[Any, None]:
        emission, runs = row
        before = concat([nothing, alpha], axis=1)
        reached = logaddexp(logaddexp(alpha, before[:, 1:-1]), before[:, :-2] + barred)
        return where(runs, reached + emission, alpha), None

    return scan(step, start, (emitted, running))[0]


def _likelihoods(alpha: Any, lengths: Any) -> Any:
    """The log-probability of ending in the last label, or in the blank after it."""
    ends = stack([lengths * 2, clip(lengths * 2 - 1, 0)], axis=1)
    last = reported_by(NAME, take_along_axis, alpha, ends, axis=1)
    return logaddexp(last[:, 0], where(lengths > 0, last[:, 1], -inf))


# -- the loss --------------------------------------------------------------------------------------


def _collapsed(path: tuple[int, ...], blank: int) -> list[int]:
    """A path without repetitions, then without blanks."""
    kept = [c for i, c in enumerate(path) if i == 0 or c != path[i - 1]]
    return [c for c in kept if c != blank]


def _oracle(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0,
    reduction: str = "mean", zero_infinity: bool = False,
) -> np.ndarray:  # fmt: skip
    """Every path is tried."""
    single = log_probs.ndim == 2
    x = log_probs[:, None] if single else log_probs
    lengths = np.reshape(target_lengths, -1)
    losses, start = [], 0
    for n in range(x.shape[1]):
        own = targets[n] if targets.ndim == 2 else targets[start:]
        wanted = own[: lengths[n]].tolist()
        start += lengths[n]
        total = 0.0
        for path in product(range(x.shape[2]), repeat=int(np.reshape(input_lengths, -1)[n])):
            if _collapsed(path, blank) == wanted:
                total += np.exp(sum(x[t, n, c] for t, c in enumerate(path)))
        with np.errstate(divide="ignore"):
            losses.append(-np.log(total) if total or not zero_infinity else 0.0)
    loss = np.asarray(losses, x.dtype)
    if reduction == "mean":
        return np.asarray((loss / np.maximum(lengths, 1)).mean()).astype(x.dtype)
    if reduction == "sum":
        return np.asarray(loss.sum())
    return loss[0] if single else loss


def _log_probs(d: Draw, *shape: int) -> np.ndarray:
    x = d.real(*shape)
    return x - np.log(np.exp(x).sum(-1, keepdims=True)).astype(x.dtype)


def _samples(d: Draw) -> list[Sample]:
    x = _log_probs(d, 4, 3, 3)
    t = np.array([[1, 2], [1, 1], [2, 2]])
    return [
        Sample((x, t, np.array([4, 4, 3]), np.array([2, 2, 1]))),
        Sample((x, np.array([1, 2, 2, 1]), (4, 3, 4), (2, 0, 2)), {"reduction": "none"}),
        Sample((x, t * 0 + [[0, 1]], (4, 4, 4), (2, 1, 2), 2, "sum"), order=2),
        Sample((x[:, 0], t[0], np.array(4), np.array(2)), {"reduction": "none"}),
        Sample((x, t, (2, 2, 0), (2, 2, 0), 0, "none", True)),
        Sample((x, t, (2, 2, 2), (2, 2, 2), 0, "none"), order=0),
        Sample((x, t[:, :0], (4, 3, 2), (0, 0, 0)), {"reduction": "sum"}),
        Sample((x[:, :0], t[:0], (), ()), {"reduction": "sum"}),
    ]


def _errors(d: Draw) -> list[Bad]:
    x, t = d.real(4, 2, 3), np.array([[1, 2], [1, 1]])
    return [
        Bad((d.real(4), t, (4, 4), (2, 2)), {}, ShapeError, "(T, N, C) or (T, C)"),
        Bad((x, t, (4, 4, 4), (2, 2)), {}, ShapeError, "input_lengths must have the shape (2,)"),
        Bad(
            (x, t, (4, 5), (2, 2)),
            {},
            ShapeError,
            "input_lengths must lie between 0 and 4",
        ),
        Bad(
            (x, t, (4, 4), (2, 3)),
            {},
            ShapeError,
            "target_lengths must lie between 0 and 2",
        ),
        Bad((x, t, (4.0, 4.0), (2, 2)), {}, DTypeError, "input_lengths are integers"),
        Bad((x, t[:1], (4, 4), (2, 2)), {}, ShapeError, "targets"),
        Bad((x, t[0], (4, 4), (2, 2)), {}, IndexOutOfRange, "out of range"),
        Bad((x, t * 3, (4, 4), (2, 2)), {}, IndexOutOfRange, "out of range"),
        Bad((x, -t, (4, 4), (2, 2)), {}, IndexOutOfRange, "out of range"),
        Bad((x, d.real(2, 2), (4, 4), (2, 2)), {}, DTypeError, "class indices are integers"),
        Bad((x, t, (4, 4), (2, 2), 3), {}, ShapeError, "blank must be a class"),
        Bad((x, t, (4, 4), (2, 2)), {"reduction": "max"}, DTypeError, "reduction is one of"),
        Bad((x + 0j, t, (4, 4), (2, 2)), {}, DTypeError, "got complex128"),
    ]


@composite(oracle=_oracle, samples=_samples, errors=_errors, namespace="nn")
def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """`-log` of the probability that a sequence, without repetitions and blanks, is the target.

    `log_probs` is (T, N, C), or (T, C) of one sequence; targets are rows (N, S), or one after the
    other in one row. The mean is that of losses over their target lengths. The loss of a target
    that is too long is infinite, or with `zero_infinity` 0, as are its derivatives then.

    >>> x = pb.log(pb.tensor([[[0.5, 0.5]], [[0.5, 0.5]]]))
    >>> pb.nn.ctc_loss(x, pb.tensor([[1]]), [2], [1])
    tensor(0.2876821, float32, cpu)
    """
    (x,) = floating(NAME, log_probs)
    if x._aval.ndim not in (2, 3):
        raise ShapeError(f"{NAME}: expected (T, N, C) or (T, C), got shape {x._aval.shape}.")
    batch = x._aval.shape[1] if x._aval.ndim == 3 else None
    x = x if batch is not None else expand_dims(x, 1)
    classes, dev = x._aval.shape[2], x._aval.device
    if not 0 <= blank < classes:
        raise ShapeError(f"{NAME}: blank must be a class below {classes}, got {blank}.")
    option(NAME, "reduction", reduction, ("none", "mean", "sum"))
    rows = as_array(targets, NAME, dev=dev)
    if (rows._aval.ndim == 2 and rows._aval.shape[0] != x._aval.shape[1]) or rows._aval.ndim > 2:
        raise ShapeError(
            f"{NAME}: targets are ({x._aval.shape[1]}, S) or in one row, got {rows._aval.shape}."
        )
    until = _lengths("input_lengths", input_lengths, batch, x._aval.shape[0], dev)
    most = rows._aval.shape[-1] if rows._aval.ndim else 0
    ends = _lengths("target_lengths", target_lengths, batch, most, dev)
    rows = rows if rows._aval.ndim == 2 else _padded(rows, ends)
    loss = _losses(wide(x), *_states(_labels(rows, ends, classes, blank), blank), until, ends)
    if zero_infinity:
        loss = where(loss == inf, 0.0, loss)
    if reduction == "mean":
        loss = loss / clip(astype(ends, loss._aval.dtype), 1.0)
    loss = reduced(NAME, reshape(loss, ()) if batch is None else loss, reduction)
    return astype(loss, x._aval.dtype)


def _losses(x: Any, states: Any, skips: Any, until: Any, ends: Any) -> Any:
    emitted = reported_by(NAME, take_along_axis, x, expand_dims(states, 0), axis=2)
    return -_likelihoods(_last_forward(emitted, skips, until), ends)
