"""Arrays made larger at their ends."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array, from_numpy, is_number, scalar
from pullback.ir.op import bind
from pullback.ir.samples import Bad, Draw, Sample
from pullback.ops.families import composite
from pullback.ops.indexing import take
from pullback.ops.movement import embed
from pullback.ops.parts import astype

__all__ = ["bordered", "pad"]

MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


def _oracle(
    x: np.ndarray, pad_width: Any, mode: Any = "constant", constant_values: Any = 0
) -> np.ndarray:
    options = {"constant_values": constant_values} if mode == "constant" else {}
    return np.pad(x, pad_width, mode, **options)


def _samples(d: Draw) -> list[Sample]:
    cases = [
        Sample((d.real(3, 4), ((1, 2), (0, 3)))),
        Sample((d.real(3), 2)),
        Sample((d.real(2, 3), (1, 2)), {"constant_values": d.real()}),
        Sample((d.real(2, 3), 1), {"constant_values": 1.5}),
        Sample((d.real(0, 2), 1)),
        Sample((d.real(3), 0), {"mode": "reflect"}),
        Sample((d.real(1), 3), {"mode": "reflect"}),
    ]
    for mode in MODES[1:]:
        cases.append(Sample((d.real(3, 4), ((1, 2), (2, 0))), {"mode": mode}))
        cases.append(Sample((d.real(3), (7, 8)), {"mode": mode}))  # more than once round
    return cases


@composite(
    oracle=_oracle,
    samples=_samples,
    errors=lambda d: [
        Bad((d.real(3), -1), {}, ShapeError, "negative"),
        Bad((d.real(3), 0.5), {}, DTypeError, "integers"),
        Bad((d.real(3, 3), ((1, 1), (1, 1), (1, 1))), {}, ShapeError, "pad_width"),
        Bad((d.real(3), 1), {"mode": "mirror"}, ShapeError, "mode"),
        Bad((d.real(0), 1), {"mode": "edge"}, ShapeError, "empty"),
        Bad((d.real(3), 1), {"constant_values": np.ones(2)}, ShapeError, "0-d"),
    ],
)
def pad(x: Any, /, pad_width: Any, mode: str = "constant", constant_values: Any = 0) -> Any:
    """The array with `pad_width` new elements before and after it on each axis.

    >>> pb.pad(pb.tensor([1, 2, 3]), (2, 1), mode="reflect")
    tensor([3, 2, 1, 2, 3, 2], int64, cpu)

    `pad_width` is a number, a pair (before, after) for every axis, or a pair for each. Modes:
    "constant", "edge" (the last element again), "reflect" (mirrored about it), "symmetric"
    (mirrored after it) and "wrap" (from the other end).
    """
    x = as_array(x, "pad")
    widths = _widths(pad_width, x._aval.ndim)
    if mode not in MODES:
        raise ShapeError(f"pad: mode must be one of {', '.join(MODES)}, got {mode!r}.")
    if mode == "constant":
        return _with_constant(x, widths, constant_values)
    return bordered(x, widths, mode)


def bordered(x: Any, widths: list[tuple[int, int]], mode: str) -> Any:
    """The array with borders from its own elements; where a width is negative it is cut."""
    for axis, (before, after) in enumerate(widths):
        if before or after:
            n = x._aval.shape[axis]
            if n == 0:
                raise ShapeError(f'pad: axis {axis} is empty, so there is nothing to "{mode}".')
            if n + before + after < 0:
                raise ShapeError(
                    f"pad: nothing would be left of axis {axis} with {n} elements, got widths"
                    f" {(before, after)}."
                )
            source = _SOURCES[mode](np.arange(-before, n + after), n)
            x = take(x, from_numpy(source, x._aval.device, copy=False), axis)
    return x


def _widths(given: Any, ndim: int) -> list[tuple[int, int]]:
    """A pair (before, after) for each axis."""
    array = np.asarray(given)
    if array.dtype.kind not in "iu" and array.size:
        raise DTypeError(f"pad: pad_width is made of integers, got {given!r}.")
    if (array < 0).any():
        raise ShapeError(f"pad: pad_width must not be negative, got {given!r}.")
    try:
        pairs = np.broadcast_to(array, (ndim, 2))
    except ValueError:
        raise ShapeError(
            f"pad: pad_width must be a number, a pair, or a pair for each of {ndim} axes,"
            f" got {given!r}."
        ) from None
    return [(int(before), int(after)) for before, after in pairs]


def _with_constant(x: Any, widths: list[tuple[int, int]], value: Any) -> Any:
    av = x._aval
    if is_number(value):
        fill = scalar(value, av.dtype, av.device)
    else:
        fill = astype(as_array(value, "pad", dev=av.device), av.dtype)
    if fill._aval.ndim:
        raise ShapeError(f"pad: constant_values must be 0-d, got shape {fill._aval.shape}.")
    shape = tuple(b + n + a for n, (b, a) in zip(av.shape, widths, strict=True))
    starts = tuple(b for b, _ in widths)
    return bind(embed.op, fill, x, shape=shape, starts=starts, steps=(1,) * av.ndim)


def _reflected(i: np.ndarray, n: int) -> np.ndarray:
    period = max(1, 2 * n - 2)
    i = i % period
    return np.minimum(i, period - i) if n > 1 else i


def _mirrored(i: np.ndarray, n: int) -> np.ndarray:
    i = i % (2 * n)
    return np.minimum(i, 2 * n - 1 - i)


# where the element at position i (negative before the array) comes from, on an axis of size n
_SOURCES = {
    "edge": lambda i, n: np.clip(i, 0, n - 1),
    "reflect": _reflected,
    "symmetric": _mirrored,
    "wrap": lambda i, n: i % n,
}
