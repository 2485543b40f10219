"""Activations along an axis: softmax and its relatives, and gated linear units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.dtypes import as_dtype
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import detached, floating, inexact, when_large
from pullback.ops import random
from pullback.ops.arrangement import split
from pullback.ops.exponential import exp, log
from pullback.ops.extrema import argmax, max
from pullback.ops.families import composite, normalise_axis
from pullback.ops.movement import reshape
from pullback.ops.parts import astype
from pullback.ops.philox import key_words, sample_key, uniform_oracle
from pullback.ops.ranges import positions
from pullback.ops.reductions import sum
from pullback.ops.special import sigmoid
from pullback.ops.statistics import logsumexp

__all__ = ["glu", "gumbel_softmax", "log_softmax", "softmax", "softmin", "swiglu"]


# -- softmax ---------------------------------------------------------------------------------------


def _prepared(name: str, input: Any, dim: int, dtype: Any) -> tuple[Any, int]:
    """The operand in the dtype asked for, and its axis; a 0-d array counts as one element."""
    (x,) = floating(name, input)
    if dtype is not None:
        dtype = as_dtype(dtype, name)
        if not dtype.is_float:
            raise DTypeError(f"{name}: expected a floating dtype, got {dtype.name}.")
        x = astype(x, dtype)
    if x._aval.ndim == 0:
        normalise_axis(name, dim, 1)
        return x, -1
    return x, normalise_axis(name, dim, x._aval.ndim)


def _shifted(x: Any, axis: int) -> Any:
    """x minus its largest element along the axis: softmax does not change, exp does not overflow.

    The shift is a constant in derivatives, to which it adds exactly nothing.
    """
    return x - detached(max(x, axis=axis, keepdims=True))


@when_large
def _softmax(x: Any, axis: int) -> Any:
    if axis < 0 or x._aval.size == 0:
        return exp(x - x) if axis < 0 else x
    powers = exp(_shifted(x, axis))
    return powers / sum(powers, axis=axis, keepdims=True)


@when_large
def log_probabilities(x: Any, axis: int) -> Any:
    """`x - log(sum(exp(x)))` along an axis."""
    if axis < 0 or x._aval.size == 0:
        return x - x if axis < 0 else x
    shifted = _shifted(x, axis)
    if x._aval.dtype.itemsize < 4:  # the sum is more than 16 bits hold
        return shifted - logsumexp(shifted, axis=axis, keepdims=True)
    return shifted - log(sum(exp(shifted), axis=axis, keepdims=True))


def _oracle(finish: Callable[..., np.ndarray], sign: float = 1.0) -> Callable[..., np.ndarray]:
    def oracle(input: np.ndarray, dim: int, dtype: Any = None) -> np.ndarray:
        x = sign * (input if dtype is None else input.astype(dtype.numpy))
        if x.size == 0:
            return x
        rows = np.moveaxis(np.atleast_1d(x), dim, -1)
        out = np.empty_like(rows)
        for place in np.ndindex(rows.shape[:-1]):
            out[place] = finish(rows[place] - rows[place].max())
        return np.moveaxis(out, -1, dim).reshape(x.shape)

    return oracle


def _samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(3, 4), 1)),
        Sample((d.real(2, 3, 2), -2)),
        Sample((d.real(3, 2), 0), {"dtype": dt.float64}),
        Sample((d.real(3) + d.dtype.type(1000.0), 0), order=1),
        Sample((d.real(), 0)),
        Sample((d.real(0, 3), 1)),
        Sample((d.real(3, 0), 1)),
        Sample((d.integers(2, 3), 1), {"dtype": dt.float64}),
    ]


def _errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(2, 3), 2), {}, ShapeError, "axis 2 is out of range"),
        Bad((d.real(2, 3), 0.5), {}, DTypeError, "an axis must be an integer"),
        Bad((d.real(2, 3), 0), {"dtype": dt.int64}, DTypeError, "expected a floating dtype"),
        Bad((np.ones(3, np.complex64), 0), {}, DTypeError, "got complex64"),
    ]


@composite(
    oracle=_oracle(lambda row: np.exp(row) / np.exp(row).sum()),
    samples=_samples,
    errors=_errors,
    namespace="nn",
)
def softmax(input: Any, dim: int, *, dtype: Any = None) -> Any:
    """`exp(x) / sum(exp(x))` along the axis `dim`, after a cast to `dtype`.

    >>> pb.nn.softmax(pb.tensor([[0.0, 0.0], [1000.0, 1000.0]]), dim=1)
    tensor([[0.5, 0.5],
            [0.5, 0.5]], float32, cpu)
    """
    return _softmax(*_prepared("softmax", input, dim, dtype))


@composite(
    oracle=_oracle(lambda row: np.exp(row) / np.exp(row).sum(), -1.0),
    samples=_samples,
    errors=_errors,
    namespace="nn",
)
def softmin(input: Any, dim: int, *, dtype: Any = None) -> Any:
    """The softmax of -x.

    >>> pb.nn.softmin(pb.tensor([0.0, 1.0]), dim=0)
    tensor([0.7310586 , 0.26894143], float32, cpu)
    """
    x, axis = _prepared("softmin", input, dim, dtype)
    return _softmax(-x, axis)


@composite(
    oracle=_oracle(lambda row: row - np.log(np.exp(row).sum())),
    samples=_samples,
    errors=_errors,
    namespace="nn",
)
def log_softmax(input: Any, dim: int, *, dtype: Any = None) -> Any:
    """`x - log(sum(exp(x)))` along the axis `dim`, after a cast to `dtype`.

    >>> pb.nn.log_softmax(pb.tensor([0.0, 0.0]), dim=0)
    tensor([-0.6931472, -0.6931472], float32, cpu)
    """
    return log_probabilities(*_prepared("log_softmax", input, dim, dtype))


def _gumbel_softmax_oracle(
    logits: np.ndarray, tau: float = 1.0, hard: bool = False, *, dim: int = -1, key: Any
) -> np.ndarray:
    noise = -np.log(-np.log1p(-uniform_oracle(key, logits.shape, dtype=as_dtype(logits.dtype))))
    x = np.moveaxis((logits + noise) / tau, dim, -1)
    soft = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    if hard:
        soft = (np.arange(x.shape[-1]) == x.argmax(-1, keepdims=True)).astype(x.dtype)
    return np.moveaxis(soft, -1, dim)


@composite(
    oracle=_gumbel_softmax_oracle,
    samples=lambda d: [
        Sample((d.real(2, 3),), {"key": sample_key(d)}),
        Sample((d.real(3, 2),), {"key": sample_key(d), "tau": 0.7, "dim": 0}),
        Sample((d.distinct(2, 3),), {"key": sample_key(d), "hard": True}, order=0),
        Sample((d.real(0, 3),), {"key": sample_key(d)}),
    ],
    errors=lambda d: [
        Bad((d.real(2),), {"key": np.zeros(3, np.uint32)}, DTypeError, "a key is"),
        Bad((d.real(2),), {"key": sample_key(d), "dim": 1}, ShapeError, "axis 1 is out of range"),
        Bad((d.real(2),), {"key": sample_key(d), "tau": 0.0}, ShapeError, "tau must be positive"),
        Bad((np.ones(3, np.complex64),), {"key": sample_key(d)}, DTypeError, "got complex64"),
    ],
    namespace="nn",
    tolerance=4.0,  # fewer random bits in a narrower dtype
)
def gumbel_softmax(
    logits: Any, tau: float = 1.0, hard: bool = False, *, dim: int = -1, key: Any
) -> Any:
    """The softmax of `(logits + gumbel noise) / tau`: a differentiable draw of one class.

    With `hard` the result is one-hot, with the derivative of the soft one.

    >>> pb.nn.gumbel_softmax(pb.tensor([1.0, 2.0]), hard=True, key=pb.random.key(0))
    tensor([1., 0.], float32, cpu)
    """
    x, axis = _prepared("gumbel_softmax", logits, dim, None)
    if tau <= 0:
        raise ShapeError(f"gumbel_softmax: tau must be positive, got {tau}.")
    drawn = dt.promote(x._aval.dtype, dt.float32)
    key_words("gumbel_softmax", key)
    noise = random.gumbel(key, x._aval.shape, dtype=drawn)
    soft = astype(_softmax((astype(x, drawn) + noise) / tau, axis), x._aval.dtype)
    if not hard or axis < 0 or x._aval.size == 0:
        return soft
    classes = positions(x._aval.shape[axis], x._aval.device)
    classes = reshape(classes, (-1,) + (1,) * (x._aval.ndim - 1 - axis))
    chosen = classes == argmax(soft, axis=axis, keepdims=True)
    return astype(chosen, soft._aval.dtype) + (soft - detached(soft))


# -- gates -----------------------------------------------------------------------------------------


def _halves(name: str, input: Any, dim: int) -> tuple[Any, Any]:
    (x,) = inexact(name, input)
    if x._aval.ndim == 0:
        raise ShapeError(f"{name}: a 0-d array has no halves.")
    axis = normalise_axis(name, dim, x._aval.ndim)
    if x._aval.shape[axis] % 2:
        raise ShapeError(
            f"{name}: the axis must have an even size, got {x._aval.shape[axis]} along axis {axis}."
        )
    first, second = split(x, 2, axis=axis)
    return first, second


def _gate_oracle(gate: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def oracle(input: np.ndarray, dim: int = -1) -> np.ndarray:
        return gate(*np.split(input, 2, axis=dim))

    return oracle


def _gate_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(3, 4),)),
        Sample((d.real(4, 3),), {"dim": 0}),
        Sample((d.real(2, 2, 2),), {"dim": -2}),
        Sample((d.real(0, 4),)),
    ]


def _gate_errors(d: Draw) -> list[Bad]:
    return [
        Bad((d.real(2, 3),), {}, ShapeError, "even size"),
        Bad((d.real(2, 4),), {"dim": 2}, ShapeError, "axis 2 is out of range"),
        Bad((d.real(),), {}, ShapeError, "0-d"),
    ]


@composite(
    oracle=_gate_oracle(lambda a, b: a / (1.0 + np.exp(-b))),
    samples=_gate_samples,
    errors=_gate_errors,
    namespace="nn",
)
def glu(input: Any, dim: int = -1) -> Any:
    """`a * sigmoid(b)` of the two halves of the array along the axis `dim`.

    >>> pb.nn.glu(pb.tensor([1.0, 2.0, 0.0, 100.0]))
    tensor([0.5, 2. ], float32, cpu)
    """
    a, b = _halves("glu", input, dim)
    return a * sigmoid(b)


@composite(
    oracle=_gate_oracle(lambda a, b: a / (1.0 + np.exp(-a)) * b),
    samples=_gate_samples,
    errors=_gate_errors,
    namespace="nn",
)
def swiglu(input: Any, dim: int = -1) -> Any:
    """`silu(a) * b` of the two halves of the array along the axis `dim`.

    >>> pb.nn.swiglu(pb.tensor([0.0, 100.0, 3.0, 2.0]))
    tensor([  0., 200.], float32, cpu)
    """
    a, b = _halves("swiglu", input, dim)
    return a * sigmoid(a) * b
