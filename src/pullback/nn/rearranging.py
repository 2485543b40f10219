"""Channels and places exchanged, and borders added."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core.errors import DTypeError, ShapeError
from pullback.ir.convert import as_array, is_number
from pullback.ir.samples import Bad, Draw, Sample
from pullback.nn.arguments import channel_axis
from pullback.ops.families import composite
from pullback.ops.movement import permute_dims, reshape
from pullback.ops.padding import bordered
from pullback.ops.padding import pad as pad_array

__all__ = ["channel_shuffle", "pad", "pixel_shuffle", "pixel_unshuffle"]


def _image(name: str, x: Any, layout: str) -> tuple[int, int, int]:
    """The axes of channels, height and width: the last three."""
    if x._aval.ndim < 3:
        raise ShapeError(f"{name}: needs channels and two spatial axes, got shape {x._aval.shape}.")
    n = x._aval.ndim
    channel_axis(name, x, layout, 0)
    return (n - 3, n - 2, n - 1) if layout == "channels_first" else (n - 1, n - 3, n - 2)


def _factor(name: str, factor: Any) -> int:
    if isinstance(factor, bool) or not isinstance(factor, (int, np.integer)) or factor < 1:
        raise ShapeError(f"{name}: the factor must be a positive integer, got {factor!r}.")
    return int(factor)


def _shuffle_oracle(x, upscale_factor, layout="channels_first"):
    r = upscale_factor
    x = np.moveaxis(x, -1, -3) if layout == "channels_last" else x
    *lead, c, h, w = x.shape
    out = np.empty((*lead, c // r**2, h * r, w * r), x.dtype)
    for i in range(r):
        for j in range(r):
            out[..., i::r, j::r] = x[..., i * r + j :: r**2, :, :]
    return np.moveaxis(out, -3, -1) if layout == "channels_last" else out


def _unshuffle_oracle(x, downscale_factor, layout="channels_first"):
    r = downscale_factor
    x = np.moveaxis(x, -1, -3) if layout == "channels_last" else x
    *lead, c, h, w = x.shape
    out = np.empty((*lead, c * r**2, h // r, w // r), x.dtype)
    for i in range(r):
        for j in range(r):
            out[..., i * r + j :: r**2, :, :] = x[..., i::r, j::r]
    return np.moveaxis(out, -3, -1) if layout == "channels_last" else out


@composite(
    oracle=_shuffle_oracle,
    samples=lambda d: [
        Sample((d.real(2, 4, 2, 3), 2)),
        Sample((d.real(9, 1, 2), 3)),
        Sample((d.real(1, 2, 2, 8), 2), {"layout": "channels_last"}),
        Sample((d.real(0, 4, 2, 3), 2)),
    ],
    errors=lambda d: [
        Bad((d.real(2, 3, 2, 2), 2), {}, ShapeError, "multiple of 4"),
        Bad((d.real(4, 2), 2), {}, ShapeError, "two spatial axes"),
        Bad((d.real(4, 2, 2), 0), {}, ShapeError, "positive"),
    ],
    namespace="nn",
)
def pixel_shuffle(input: Any, upscale_factor: int, *, layout: str = "channels_first") -> Any:
    """Channels spread over places: r*r of them become one with r times the height and width.

    >>> pb.nn.pixel_shuffle(pb.tensor([[[1]], [[2]], [[3]], [[4]]]), 2)
    tensor([[[1, 2],
             [3, 4]]], int64, cpu)
    """
    x, r = as_array(input, "pixel_shuffle"), _factor("pixel_shuffle", upscale_factor)
    lead = _image("pixel_shuffle", x, layout)
    *batch, _, _, _ = x._aval.shape
    c, h, w = (x._aval.shape[d] for d in lead)
    if c % (r * r):
        raise ShapeError(f"pixel_shuffle: channels must be a multiple of {r * r}, got {c}.")
    n = len(batch)
    front = tuple(range(n))
    if layout == "channels_first":
        x = reshape(x, (*batch, c // r**2, r, r, h, w))
        x = permute_dims(x, (*front, n, n + 3, n + 1, n + 4, n + 2))
        return reshape(x, (*batch, c // r**2, h * r, w * r))
    x = reshape(x, (*batch, h, w, c // r**2, r, r))
    x = permute_dims(x, (*front, n, n + 3, n + 1, n + 4, n + 2))
    return reshape(x, (*batch, h * r, w * r, c // r**2))


@composite(
    oracle=_unshuffle_oracle,
    samples=lambda d: [
        Sample((d.real(2, 1, 4, 6), 2)),
        Sample((d.real(2, 3, 3), 3)),
        Sample((d.real(1, 2, 4, 2), 2), {"layout": "channels_last"}),
        Sample((d.real(0, 1, 4, 2), 2)),
    ],
    errors=lambda d: [
        Bad((d.real(2, 3, 3, 4), 2), {}, ShapeError, "multiples of 2"),
        Bad((d.real(4, 2), 2), {}, ShapeError, "two spatial axes"),
    ],
    namespace="nn",
)
def pixel_unshuffle(input: Any, downscale_factor: int, *, layout: str = "channels_first") -> Any:
    """Places gathered into channels: the inverse of `pixel_shuffle`.

    >>> pb.nn.pixel_unshuffle(pb.tensor([[[1, 2], [3, 4]]]), 2).shape
    (4, 1, 1)
    """
    x, r = as_array(input, "pixel_unshuffle"), _factor("pixel_unshuffle", downscale_factor)
    lead = _image("pixel_unshuffle", x, layout)
    *batch, _, _, _ = x._aval.shape
    c, h, w = (x._aval.shape[d] for d in lead)
    if h % r or w % r:
        raise ShapeError(
            f"pixel_unshuffle: height and width must be multiples of {r}, got {h} and {w}."
        )
    n = len(batch)
    front = tuple(range(n))
    if layout == "channels_first":
        x = reshape(x, (*batch, c, h // r, r, w // r, r))
        x = permute_dims(x, (*front, n, n + 2, n + 4, n + 1, n + 3))
        return reshape(x, (*batch, c * r**2, h // r, w // r))
    x = reshape(x, (*batch, h // r, r, w // r, r, c))
    x = permute_dims(x, (*front, n, n + 2, n + 4, n + 1, n + 3))
    return reshape(x, (*batch, h // r, w // r, c * r**2))


def _channel_oracle(x, groups, layout="channels_first"):
    axis = 1 if layout == "channels_first" else x.ndim - 1
    c = x.shape[axis]
    order = [g * (c // groups) + k for k in range(c // groups) for g in range(groups)]
    return np.take(x, order, axis)


@composite(
    oracle=_channel_oracle,
    samples=lambda d: [
        Sample((d.real(1, 6, 2), 2)),
        Sample((d.real(2, 6), 3)),
        Sample((d.real(1, 2, 2, 4), 2), {"layout": "channels_last"}),
    ],
    errors=lambda d: [
        Bad((d.real(1, 6, 2), 4), {}, ShapeError, "divide"),
        Bad((d.real(6), 2), {}, ShapeError, "channels"),
    ],
    namespace="nn",
)
def channel_shuffle(input: Any, groups: int, *, layout: str = "channels_first") -> Any:
    """The channels of several groups dealt out in turn.

    >>> pb.nn.channel_shuffle(pb.tensor([[1, 2, 3, 4]]), 2)
    tensor([[1, 3, 2, 4]], int64, cpu)
    """
    x, groups = as_array(input, "channel_shuffle"), _factor("channel_shuffle", groups)
    axis = channel_axis("channel_shuffle", x, layout)
    shape = x._aval.shape
    if shape[axis] % groups:
        raise ShapeError(
            f"channel_shuffle: the groups must divide the {shape[axis]} channels, got {groups}."
        )
    split = (*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])
    order = list(range(len(split)))
    order[axis], order[axis + 1] = axis + 1, axis
    return reshape(permute_dims(reshape(x, split), tuple(order)), shape)


MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _pairs(pad: Any) -> list[tuple[int, int]]:
    return [(pad[k], pad[k + 1]) for k in range(0, len(pad), 2)][::-1]


def _pad_oracle(x, pad, mode="constant", value=None):
    pairs = [(0, 0)] * (x.ndim - len(pad) // 2) + _pairs(pad)
    options: dict[str, Any] = {"mode": MODES[mode]}
    if mode == "constant":
        options["constant_values"] = value or 0
    out = np.pad(x, [(max(a, 0), max(b, 0)) for a, b in pairs], **options)
    cuts = [slice(max(-a, 0), n + min(b, 0)) for (a, b), n in zip(pairs, out.shape, strict=True)]
    return out[tuple(cuts)]


def _pad_samples(d: Draw) -> list[Sample]:
    return [
        Sample((d.real(2, 3), (1, 2))),
        Sample((d.real(2, 3), [1, 0, 0, 2]), {"value": 1.5}),
        Sample((d.real(2, 4), (-1, 2, 1, -1))),
        *[Sample((d.real(1, 2, 3), (2, 1)), {"mode": m}) for m in list(MODES)[1:]],
        Sample((d.real(1, 3, 3), (1, 2, 0, 1)), {"mode": "reflect"}),
        Sample((d.real(2, 4), (-1, 2)), {"mode": "reflect"}),
        Sample((d.real(3, 4), (2, -2, -1, 0)), {"mode": "replicate"}),
        Sample((d.real(0, 2), (1, 1))),
    ]


@composite(
    oracle=_pad_oracle,
    samples=_pad_samples,
    errors=lambda d: [
        Bad((d.real(3), (1,)), {}, ShapeError, "pairs"),
        Bad((d.real(3), (1, 1, 1, 1)), {}, ShapeError, "1 axes"),
        Bad((d.real(3), (1, 1)), {"mode": "mirror"}, ShapeError, "mode"),
        Bad((d.real(3), (-2, -2)), {}, ShapeError, "left"),
        Bad((d.real(3), (-1, 1)), {"mode": "circular"}, ShapeError, "negative"),
        Bad((d.real(3), (-2, -2)), {"mode": "reflect"}, ShapeError, "nothing would be left"),
        Bad((d.real(3), (1, 0.5)), {}, DTypeError, "integers"),
    ],
    namespace="nn",
)
def pad(input: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    """The array with borders; `pad` is (before, after) for the last axis, then the one before it.

    >>> pb.nn.pad(pb.tensor([[1, 2, 3]]), (1, 1), mode="reflect")
    tensor([[2, 1, 2, 3, 2]], int64, cpu)

    Modes: "constant" (with `value`), "reflect", "replicate" and "circular". Negative numbers cut
    elements off, but not with "circular".
    """
    x = as_array(input, "pad")
    if mode not in MODES:
        raise ShapeError(f"pad: the mode must be one of {', '.join(MODES)}, got {mode!r}.")
    widths = tuple(pad)
    if any(isinstance(n, bool) or not isinstance(n, (int, np.integer)) for n in widths):
        raise DTypeError(f"pad: widths must be integers, got {pad!r}.")
    if len(widths) % 2:
        raise ShapeError(f"pad: widths come in pairs (before, after), got {len(widths)} numbers.")
    missing = x._aval.ndim - len(widths) // 2
    if missing < 0:
        raise ShapeError(f"pad: {len(widths) // 2} pairs for {x._aval.ndim} axes, got {pad!r}.")
    pairs = [(0, 0)] * missing + _pairs(widths)
    if mode != "constant":
        if mode == "circular" and any(n < 0 for pair in pairs for n in pair):
            raise ShapeError(f'pad: "circular" takes no negative widths, got {pad!r}.')
        return bordered(x, pairs, MODES[mode])
    if any(a + n + b < 0 for (a, b), n in zip(pairs, x._aval.shape, strict=True)):
        raise ShapeError(f"pad: nothing would be left of shape {x._aval.shape}, got {pad!r}.")
    cuts = tuple(
        slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(pairs, x._aval.shape, strict=True)
    )
    grown = tuple((max(a, 0), max(b, 0)) for a, b in pairs)
    fill = 0 if value is None else value
    if not is_number(fill):
        raise DTypeError(f"pad: the value must be a number, got {value!r}.")
    return pad_array(x[cuts], grown, constant_values=fill)
