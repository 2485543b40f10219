"""Random omission of elements or of whole channels. The same key omits the same ones, each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.core import dtypes as dt
from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import LAYOUTS, floating, inexact, option
from pullback.nn.rectifiers import SELU_ALPHA, SELU_SCALE
from pullback.ops.families import composite
from pullback.ops.parts import astype
from pullback.ops.philox import drawn, key_words, sample_key, uniform_oracle, unit_uniform
from pullback.ops.selection import where

__all__ = [
    "alpha_dropout", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout",
    "rrelu",
]  # fmt: skip

LOWEST = -SELU_SCALE * SELU_ALPHA  # what selu tends to on the left


# -- masks -----------------------------------------------------------------------------------------


def _kept(name: str, key: Any, p: float, shape: tuple[int, ...]) -> Any:
    """A mask that is true with probability 1 - p."""
    if key is None:
        raise DTypeError(
            f"{name}: needs a key while training, got None. Pass key=random.key(seed)."
        )
    u = drawn(unit_uniform, *key_words(name, key), shape, dt.float32)
    return u >= p


def _checked(name: str, p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ShapeError(f"{name}: p must be a probability in [0, 1], got {p}.")


def _scaled(name: str, x: Any, p: float, training: bool, key: Any, shape: tuple[int, ...]) -> Any:
    """x with elements omitted and the rest divided by 1 - p; `shape` is that of the mask."""
    _checked(name, p)
    if not training or p == 0:
        return +x
    if p == 1:
        return x * 0.0
    return where(_kept(name, key, p, shape), x / (1.0 - p), 0.0)


def _saturated(
    name: str, x: Any, p: float, training: bool, key: Any, shape: tuple[int, ...]
) -> Any:
    """x with elements set to the lower limit of selu, then made affine: mean and variance stay."""
    _checked(name, p)
    if not training or p == 0:
        return +x
    if p == 1:
        return x * 0.0
    a = ((1.0 - p) * (1.0 + p * LOWEST**2)) ** -0.5
    return where(_kept(name, key, p, shape), x, LOWEST) * a - a * LOWEST * p


def _channels(name: str, x: Any, ranks: tuple[int, int], layout: str) -> tuple[int, ...]:
    """The shape of a mask over channels; the smaller rank is that of an array without batch."""
    option(name, "layout", layout, LAYOUTS)
    shape = x._aval.shape
    if len(shape) not in ranks:
        raise ShapeError(
            f"{name}: expected an array of {ranks[0]} or {ranks[1]} dimensions, got shape {shape}."
        )
    lead = len(shape) - ranks[0]
    channel = lead if layout == "channels_first" else len(shape) - 1
    return tuple(n if d < lead or d == channel else 1 for d, n in enumerate(shape))


def _slopes(name: str, key: Any, lower: float, upper: float, shape: tuple[int, ...]) -> Any:
    """Random slopes of a rectifier."""
    if key is None:
        raise DTypeError(
            f"{name}: needs a key while training, got None. Pass key=random.key(seed)."
        )
    u = drawn(unit_uniform, *key_words(name, key), shape, dt.float32)
    return u * (upper - lower) + lower


# -- records ---------------------------------------------------------------------------------------


def _oracle(mask_shape: Callable[..., tuple[int, ...]], saturated: bool) -> Callable[..., Any]:
    def oracle(
        input: np.ndarray,
        p: float = 0.5,
        training: bool = not saturated,
        *,
        key: Any = None,
        layout: str = "channels_first",
    ) -> np.ndarray:
        if not training or p == 0:
            return input
        if p == 1:
            return np.zeros_like(input)
        keep = uniform_oracle(key, mask_shape(input, layout), dtype=dt.float32) >= p
        if not saturated:
            return np.where(keep, input / (1.0 - p), 0.0).astype(input.dtype)
        low = -1.7580993408473766
        scale = 1.0 / np.sqrt((1.0 - p) * (1.0 + p * low * low))
        return (scale * (np.where(keep, input, low) - low * p)).astype(input.dtype)

    return oracle


def _every_element(input: np.ndarray, layout: str) -> tuple[int, ...]:
    return input.shape


def _every_channel(lead_of: Callable[[int], int]) -> Callable[..., tuple[int, ...]]:
    def shape(input: np.ndarray, layout: str) -> tuple[int, ...]:
        lead = lead_of(input.ndim)
        own = [1] * input.ndim
        own[:lead] = input.shape[:lead]
        channel = lead if layout == "channels_first" else -1
        own[channel] = input.shape[channel]
        return tuple(own)

    return shape


def _samples(*shapes: tuple[int, ...], layout: bool = True) -> Callable[[Draw], list[Sample]]:
    def samples(d: Draw) -> list[Sample]:
        on = {"training": True}
        found = [Sample((d.real(*s),), {"key": sample_key(d), **on}) for s in shapes]
        found += [
            Sample((d.real(*shapes[0]), 0.3), {"key": sample_key(d), **on}),
            Sample((d.real(*shapes[0]), 1.0), on),
            Sample((d.real(*shapes[0]), 0.0), on),
            Sample((d.real(*shapes[0]),), {"training": False}),
            Sample((d.real(0, *shapes[0][1:]),), {"key": sample_key(d), **on}),
        ]
        if layout:
            own = {"layout": "channels_last"}
            found += [Sample((d.real(*s),), {"key": sample_key(d), **on, **own}) for s in shapes]
        return found

    return samples


def _errors(*shape: int, wrong: tuple[int, ...] | None = None) -> Callable[[Draw], list[Bad]]:
    def errors(d: Draw) -> list[Bad]:
        on = {"training": True}
        key = {"key": np.zeros(2, np.uint32)}
        found = [
            Bad((d.real(*shape),), on, DTypeError, "needs a key"),
            Bad((d.real(*shape),), {**on, "key": np.zeros(3, np.uint32)}, DTypeError, "a key is"),
            Bad((d.real(*shape), 1.5), {**on, **key}, ShapeError, "p must be a probability"),
            Bad((object(),), {**on, **key}, DTypeError, "expected an array"),
        ]
        if wrong is not None:
            found.append(Bad((d.real(*wrong),), {**on, **key}, ShapeError, "dimensions"))
        return found

    return errors


@composite(
    oracle=_oracle(_every_element, False),
    samples=_samples((3, 4), (5,), (), layout=False),
    errors=_errors(3),
    namespace="nn",
)
def dropout(input: Any, p: float = 0.5, training: bool = True, *, key: Any = None) -> Any:
    """Every element is 0 with probability p, else it is divided by 1 - p; only while `training`.

    >>> pb.nn.dropout(pb.tensor([1.0, 2.0, 3.0, 4.0]), key=pb.random.key(0))
    tensor([0., 4., 0., 8.], float32, cpu)
    """
    (x,) = inexact("dropout", input)
    return _scaled("dropout", x, p, training, key, x._aval.shape)


@composite(
    oracle=_oracle(_every_channel(lambda ndim: ndim - 2), False),
    samples=_samples((2, 3, 2), (3, 2)),
    errors=_errors(2, 3, wrong=(3,)),
    namespace="nn",
)
def dropout1d(
    input: Any,
    p: float = 0.5,
    training: bool = True,
    *,
    key: Any = None,
    layout: str = "channels_first",
) -> Any:
    """Dropout of whole channels of an array (N, C, L) or (C, L).

    >>> pb.nn.dropout1d(pb.ones((2, 2)), key=pb.random.key(0))
    tensor([[0., 0.],
            [2., 2.]], float32, cpu)
    """
    (x,) = inexact("dropout1d", input)
    return _scaled("dropout1d", x, p, training, key, _channels("dropout1d", x, (2, 3), layout))


@composite(
    oracle=_oracle(_every_channel(lambda ndim: 1), False),
    samples=_samples((2, 3, 2, 1), (2, 3, 2)),
    errors=_errors(2, 3, 2, wrong=(2, 3)),
    namespace="nn",
)
def dropout2d(
    input: Any,
    p: float = 0.5,
    training: bool = True,
    *,
    key: Any = None,
    layout: str = "channels_first",
) -> Any:
    """Dropout of whole channels of an array (N, C, H, W); one of 3 dimensions is (N, C, L).

    >>> pb.nn.dropout2d(pb.ones((1, 2, 1, 2)), key=pb.random.key(0))
    tensor([[[[0., 0.]],
    <BLANKLINE>
             [[2., 2.]]]], float32, cpu)
    """
    (x,) = inexact("dropout2d", input)
    ranks = (2, 3) if x._aval.ndim == 3 else (3, 4)
    return _scaled("dropout2d", x, p, training, key, _channels("dropout2d", x, ranks, layout))


@composite(
    oracle=_oracle(_every_channel(lambda ndim: ndim - 4), False),
    samples=_samples((2, 2, 1, 2, 1), (2, 1, 2, 1)),
    errors=_errors(2, 1, 2, 1, wrong=(2, 3)),
    namespace="nn",
)
def dropout3d(
    input: Any,
    p: float = 0.5,
    training: bool = True,
    *,
    key: Any = None,
    layout: str = "channels_first",
) -> Any:
    """Dropout of whole channels of an array (N, C, D, H, W) or (C, D, H, W).

    >>> pb.nn.dropout3d(pb.ones((2, 1, 1, 1)), key=pb.random.key(0)).shape
    (2, 1, 1, 1)
    """
    (x,) = inexact("dropout3d", input)
    return _scaled("dropout3d", x, p, training, key, _channels("dropout3d", x, (4, 5), layout))


@composite(
    oracle=_oracle(_every_element, True),
    samples=_samples((3, 4), (5,), (), layout=False),
    errors=_errors(3),
    namespace="nn",
)
def alpha_dropout(input: Any, p: float = 0.5, training: bool = False, *, key: Any = None) -> Any:
    """Dropout for selu: elements become its lower limit, and mean and variance stay.

    >>> pb.nn.alpha_dropout(pb.tensor([1.0, 2.0]), training=True, key=pb.random.key(0))
    tensor([-0.7791938,  2.5520036], float32, cpu)
    """
    (x,) = floating("alpha_dropout", input)
    return _saturated("alpha_dropout", x, p, training, key, x._aval.shape)


@composite(
    oracle=_oracle(_every_channel(lambda ndim: 1), True),
    samples=_samples((2, 3, 2), (2, 3)),
    errors=_errors(2, 3, wrong=(3,)),
    namespace="nn",
)
def feature_alpha_dropout(
    input: Any,
    p: float = 0.5,
    training: bool = False,
    *,
    key: Any = None,
    layout: str = "channels_first",
) -> Any:
    """Alpha dropout of whole channels of an array (N, C, ...).

    >>> pb.nn.feature_alpha_dropout(pb.ones((1, 2)), training=True, key=pb.random.key(0)).shape
    (1, 2)
    """
    name = "feature_alpha_dropout"
    (x,) = floating(name, input)
    if x._aval.ndim < 2:
        raise ShapeError(f"{name}: expected at least 2 dimensions, got shape {x._aval.shape}.")
    ranks = (x._aval.ndim - 1, x._aval.ndim)
    return _saturated(name, x, p, training, key, _channels(name, x, ranks, layout))


# -- a rectifier -----------------------------------------------------------------------------------


def _rrelu_oracle(
    input: np.ndarray,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    *,
    key: Any = None,
) -> np.ndarray:
    slope: Any = (lower + upper) / 2
    if training:
        u = uniform_oracle(key, input.shape, dtype=dt.float32)
        slope = u * np.float32(upper - lower) + np.float32(lower)
    return np.where(input > 0, input, input * slope).astype(input.dtype)


@composite(
    oracle=_rrelu_oracle,
    samples=lambda d: [
        Sample((d.real(3, 4),)),
        Sample((d.real(5), 0.2, 0.4)),
        Sample((d.real(3, 4),), {"training": True, "key": sample_key(d)}),
        Sample((d.real(7), 0.0, 1.0, True), {"key": sample_key(d)}),
    ],
    errors=lambda d: [
        Bad((d.real(3),), {"training": True}, DTypeError, "needs a key"),
        Bad((d.real(3), 0.5, 0.2), {}, ShapeError, "lower must not exceed upper"),
        Bad((np.ones(2, complex),), {}, DTypeError, "got complex128"),
    ],
    namespace="nn",
)
def rrelu(
    input: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    *,
    key: Any = None,
) -> Any:
    """`leaky_relu` with a random slope from [lower, upper] for each element while `training`, else
    the mean of both.

    >>> pb.nn.rrelu(pb.tensor([-1.0, 2.0]), 0.25, 0.75)
    tensor([-0.5,  2. ], float32, cpu)
    """
    (x,) = floating("rrelu", input)
    if not lower <= upper:
        raise ShapeError(f"rrelu: lower must not exceed upper, got {lower} and {upper}.")
    if not training:
        return where(x > 0.0, x, x * ((lower + upper) / 2))
    slope = astype(_slopes("rrelu", key, lower, upper, x._aval.shape), x._aval.dtype)
    return where(x > 0.0, x, x * slope)
