"""Arrays to begin training with: `pb.nn.init.kaiming_uniform(key, (out, in))` and its relatives.

Each takes a key, so that the same key gives the same parameters everywhere.
"""

from __future__ import annotations

from math import prod, sqrt
from typing import Any

from pullback.core.dtypes import as_dtype, default_float
from pullback.core.errors import DTypeError, ShapeError
from pullback.linalg.orthogonal import qr
from pullback.missing_names import missing_name
from pullback.ops.diagonals import diagonal
from pullback.ops.movement import reshape
from pullback.ops.parts import astype
from pullback.ops.products import matrix_transpose
from pullback.ops.random import normal as drawn_normal
from pullback.ops.random import uniform as drawn_uniform
from pullback.ops.selection import clip, where
from pullback.ops.special import erf, erfinv

__all__ = [
    "gain",
    "kaiming_normal",
    "kaiming_uniform",
    "normal",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "xavier_normal",
    "xavier_uniform",
]

Shape = tuple[int, ...]


def gain(nonlinearity: str, slope: float = 0.01) -> float:
    """By how much a layer before `nonlinearity` must widen its values, to keep their variance.

    >>> round(pb.nn.init.gain("relu"), 4)
    1.4142
    """
    gains = {
        "linear": 1.0,
        "sigmoid": 1.0,
        "tanh": 5.0 / 3.0,
        "relu": sqrt(2.0),
        "leaky_relu": sqrt(2.0 / (1.0 + slope**2)),
        "selu": 0.75,
    }
    if nonlinearity not in gains:
        raise DTypeError(
            f"gain: unknown nonlinearity, got {nonlinearity!r}. Use one of {', '.join(gains)}."
        )
    return gains[nonlinearity]


def _fans(name: str, shape: Shape) -> tuple[int, int]:
    """How many inputs an output of a weight (out, in, *kernel) has, and outputs an input."""
    if len(shape) < 2:
        raise ShapeError(
            f"{name}: a weight has at least two axes (out, in), got shape {tuple(shape)}."
        )
    field = prod(shape[2:])
    return shape[1] * field, shape[0] * field


def _fan(name: str, shape: Shape, mode: str) -> int:
    if mode not in ("fan_in", "fan_out"):
        raise DTypeError(f"{name}: mode must be 'fan_in' or 'fan_out', got {mode!r}.")
    return _fans(name, shape)[mode == "fan_out"]


def uniform(key: Any, shape: Shape, low: float = 0.0, high: float = 1.0, dtype: Any = None) -> Any:
    """Uniform numbers in [low, high).

    >>> pb.nn.init.uniform(pb.random.key(0), (2, 3)).shape
    (2, 3)
    """
    return drawn_uniform(key, tuple(shape), low, high, dtype=dtype)


def normal(key: Any, shape: Shape, mean: float = 0.0, std: float = 1.0, dtype: Any = None) -> Any:
    """Normal numbers.

    >>> pb.nn.init.normal(pb.random.key(0), (2, 3), std=0.02).shape
    (2, 3)
    """
    return drawn_normal(key, tuple(shape), mean, std, dtype=dtype)


def truncated_normal(
    key: Any,
    shape: Shape,
    mean: float = 0.0,
    std: float = 1.0,
    low: float = -2.0,
    high: float = 2.0,
    dtype: Any = None,
) -> Any:
    """Normal numbers, none of them outside [low, high]: the distribution's inverse, no rejections.

    >>> x = pb.nn.init.truncated_normal(pb.random.key(0), (1000,))
    >>> bool(pb.max(pb.abs(x)) <= 2.0)
    True
    """
    if not low < high:
        raise ShapeError(f"truncated_normal: low must be below high, got {low} and {high}.")
    wanted = default_float() if dtype is None else as_dtype(dtype)
    # In float64, since near the ends of (-1, 1) erfinv magnifies what rounding left.
    ends = [erf((end - mean) / (std * sqrt(2.0))) for end in (low, high)]
    ends = [astype(end, "float64") for end in ends]
    u = drawn_uniform(key, tuple(shape), dtype="float64")
    z = erfinv(ends[0] + u * (ends[1] - ends[0]))
    return astype(clip(mean + std * sqrt(2.0) * z, low, high), wanted)


def orthogonal(key: Any, shape: Shape, gain: float = 1.0, dtype: Any = None) -> Any:
    """A matrix (rows, the rest flattened) with orthonormal rows or columns, whichever are fewer.

    It is the factor Q of a normal matrix, with signs such that all such matrices are as likely.

    >>> q = pb.nn.init.orthogonal(pb.random.key(0), (2, 4))
    >>> bool(pb.all(pb.abs(q @ q.T - pb.eye(2)) < 1e-6))
    True
    """
    if len(shape) < 2:
        raise ShapeError(f"orthogonal: a weight has at least two axes, got shape {tuple(shape)}.")
    wanted = default_float() if dtype is None else as_dtype(dtype)
    rows, columns = shape[0], prod(shape[1:])
    tall = (max(rows, columns), min(rows, columns))
    q, r = qr(drawn_normal(key, tall, dtype="float64"))
    q = q * where(diagonal(r) < 0.0, -1.0, 1.0)
    q = q if rows >= columns else matrix_transpose(q)
    return astype(reshape(gain * q, tuple(shape)), wanted)


def xavier_uniform(key: Any, shape: Shape, gain: float = 1.0, dtype: Any = None) -> Any:
    """Uniform in +-gain * sqrt(6 / (fan_in + fan_out)), after Glorot and Bengio.

    >>> bool(pb.max(pb.abs(pb.nn.init.xavier_uniform(pb.random.key(0), (2, 4)))) <= 1.0)
    True
    """
    bound = gain * sqrt(6.0 / max(1, sum(_fans("xavier_uniform", shape))))
    return uniform(key, shape, -bound, bound, dtype)


def xavier_normal(key: Any, shape: Shape, gain: float = 1.0, dtype: Any = None) -> Any:
    """Normal with standard deviation gain * sqrt(2 / (fan_in + fan_out)).

    >>> pb.nn.init.xavier_normal(pb.random.key(0), (2, 4)).shape
    (2, 4)
    """
    total = max(1, sum(_fans("xavier_normal", shape)))
    return normal(key, shape, 0.0, gain * sqrt(2.0 / total), dtype)


def kaiming_uniform(
    key: Any, shape: Shape, gain: float = sqrt(2.0), mode: str = "fan_in", dtype: Any = None
) -> Any:
    """Uniform in +-gain * sqrt(3 / fan), after He and others; the default gain is relu's.

    >>> bool(pb.max(pb.abs(pb.nn.init.kaiming_uniform(pb.random.key(0), (5, 6)))) <= 1.0)
    True
    """
    bound = gain * sqrt(3.0 / max(1, _fan("kaiming_uniform", shape, mode)))
    return uniform(key, shape, -bound, bound, dtype)


def kaiming_normal(
    key: Any, shape: Shape, gain: float = sqrt(2.0), mode: str = "fan_in", dtype: Any = None
) -> Any:
    """Normal with standard deviation gain / sqrt(fan), after He and others.

    >>> pb.nn.init.kaiming_normal(pb.random.key(0), (2, 4)).shape
    (2, 4)
    """
    fan = max(1, _fan("kaiming_normal", shape, mode))
    return normal(key, shape, 0.0, gain / sqrt(fan), dtype)


def __dir__() -> list[str]:
    return sorted({*__all__, *(n for n in globals() if n.startswith("__"))})


def __getattr__(name: str) -> object:
    raise missing_name("nn.init", name, __all__)
