"""Pictures as text, for pages that need nothing else: SVG curves and bars, PNG images, heat maps.

Colours come from the classes and variables of the page (`report.STYLE`), so that every picture
follows its light and dark themes.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

__all__ = ["Series", "bars", "curves", "diverging", "heat_map", "image", "ink", "tiles"]

WIDTH, HEIGHT = 480, 280
LEFT, RIGHT, TOP, BOTTOM = 66, 14, 12, 44  # margins around the plot, for ticks and axis names
POSITIVE, NEGATIVE = (222, 102, 20), (44, 122, 208)  # seen on white and on black


class Series(NamedTuple):
    """One curve: `kind` is its class on the page, "a", "b" or "c", plus " faint", " dashed", or
    " points" for a mark at each point and no line between them.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    kind: str = "a"


class PlotAxis(NamedTuple):
    """A map from values to positions in the picture, with its ticks."""

    low: float
    high: float
    start: float  # the position of `low`
    end: float
    log: bool
    ticks: list[float]

    def __call__(self, value: float) -> float:
        a, b, v = self.low, self.high, value
        if self.log:
            a, b, v = math.log10(a), math.log10(b), math.log10(v)
        return self.start + (v - a) / (b - a) * (self.end - self.start)


def _linear_ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`, about five of them."""
    rough = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * m for m in (1, 2, 5, 10) if size * m >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten from `low` to `high`; with 2 and 5 between them where they are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if len(decades) <= 3 else (1,)
    stride = max(1, len(decades) // 6)
    ticks = [d * 10.0**k for k in decades[::stride] for d in digits]
    return [t for t in ticks if low * 0.999 <= t <= high * 1.001]


def _axis(values: np.ndarray, start: float, end: float, log: bool, margin: float) -> PlotAxis:
    low, high = float(values.min()), float(values.max())
    if log:
        low, high = low * 0.8, high * 1.25
    else:
        room = (high - low or abs(high) or 1.0) * margin
        low, high = low - room, high + room
        if low == high:
            low, high = low - 0.5, high + 0.5
    ticks = _log_ticks(low, high) if log else _linear_ticks(low, high)
    return PlotAxis(low, high, start, end, log, ticks)


def _number(value: float) -> str:
    """A tick's label, short."""
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        mantissa, exponent = f"{value:.0e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.6g}"


def _frame(
    x: PlotAxis, y: PlotAxis, x_label: str, y_label: str, x_names: Sequence[str] = ()
) -> list[str]:
    """Grid, ticks, tick labels and names of both axes."""
    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    parts = []
    for t in y.ticks:
        at = y(t)
        parts.append(f'<path class="grid" d="M{left} {at:.1f}H{right}"/>')
        parts.append(f'<text x="{left - 7}" y="{at + 4:.1f}" text-anchor="end">{_number(t)}</text>')
    names = x_names or [_number(t) for t in x.ticks]
    for t, name in zip(x.ticks, names, strict=True):
        at = x(t)
        parts.append(f'<path class="axis" d="M{at:.1f} {bottom}v4"/>')
        parts.append(
            f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{escape(name)}</text>'
        )
    parts.append(f'<path class="axis" d="M{left} {bottom}H{right}"/>')
    parts.append(
        f'<text class="name" x="{(left + right) / 2}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
    )
    middle = (top + bottom) / 2
    parts.append(
        f'<text class="name" transform="translate(13 {middle}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>"
    )
    return parts


def _svg(parts: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        + "".join(parts)
        + "</svg>"
    )


def _is_points(s: Series) -> bool:
    return "points" in s.kind.split()


def _legend(series: Sequence[Series]) -> str:
    series = [s for s in series if s.label]
    if len(series) < 2:
        return ""
    swatch = '<svg class="swatch" viewBox="0 0 24 8"><path class="line {}" d="M{}"/></svg>'
    sample = {True: "6 4h0M18 4h0", False: "1 4H23"}
    items = (
        f"<span>{swatch.format(s.kind, sample[_is_points(s)])}{escape(s.label)}</span>"
        for s in series
    )
    return f'<p class="legend">{"".join(items)}</p>'


def _drawable(s: Series, log_y: bool) -> Series:
    """The points of a curve that have a place on the axes."""
    lowest = 0.0 if log_y else -math.inf
    kept = [(a, b) for a, b in zip(s.x, s.y, strict=True) if math.isfinite(b) and b > lowest]
    return s._replace(x=[a for a, _ in kept], y=[b for _, b in kept])


def curves(series: Sequence[Series], x_label: str, y_label: str, log_y: bool = False) -> str:
    """Curves on common axes, with a legend where there are several; only finite points count."""
    series = [_drawable(s, log_y) for s in series]
    if not any(s.x for s in series):
        return "<p>There is no finite value to draw.</p>"
    xs = np.concatenate([np.asarray(s.x, float) for s in series])
    ys = np.concatenate([np.asarray(s.y, float) for s in series])
    x = _axis(xs, LEFT, WIDTH - RIGHT, False, margin=0.0)
    y = _axis(ys, HEIGHT - BOTTOM, TOP, log_y, margin=0.06)
    parts = _frame(x, y, x_label, y_label)
    for s in filter(lambda s: s.x, series):
        # A line of no length has round ends only, which are a mark.
        pen = "h0M" if _is_points(s) else "L"
        points = pen.join(f"{x(a):.1f} {y(b):.1f}" for a, b in zip(s.x, s.y, strict=True))
        points += "h0" * (pen != "L")
        parts.append(f'<path class="line {s.kind}" d="M{points}"/>')
    return _legend(series) + _svg(parts, f"{y_label} over {x_label}")


def bars(names: Sequence[str], values: Sequence[float], x_label: str, y_label: str) -> str:
    """One bar per name, with its value above it."""
    step = (WIDTH - LEFT - RIGHT) / len(names)
    centres = [float(i) for i in range(len(names))]
    x = PlotAxis(-0.5, len(names) - 0.5, LEFT, WIDTH - RIGHT, False, centres)
    largest = max(values)
    y = PlotAxis(0.0, largest * 1.12, HEIGHT - BOTTOM, TOP, False, _linear_ticks(0.0, largest))
    parts = _frame(x, y, x_label, y_label, names)
    for i, value in enumerate(values):
        height = max(y(0.0) - y(value), 0.5)
        left = x(i) - step * 0.36
        parts.append(
            f'<rect class="bar" x="{left:.1f}" y="{y(0.0) - height:.1f}" width="{step * 0.72:.1f}"'
            f' height="{height:.1f}" rx="2"><title>{escape(names[i])}: {value:.4g}</title></rect>'
        )
        parts.append(
            f'<text x="{x(i):.1f}" y="{y(0.0) - height - 5:.1f}" text-anchor="middle">'
            f"{value:.3g}</text>"
        )
    return _svg(parts, f"{y_label} by {x_label}")


# -- images ----------------------------------------------------------------------------------------


def _png(pixels: np.ndarray) -> str:
    """The address that holds the whole image, from (height, width, 4) bytes."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)  # 8 bits, RGBA
    body = b"\x89PNG\r\n\x1a\n"
    for kind, data in (b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""):
        checksum = zlib.crc32(kind + data)
        body += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)
    return "data:image/png;base64," + base64.b64encode(body).decode()


def ink(values: np.ndarray) -> np.ndarray:
    """Values from 0 (the paper shows) to 1 (full ink) as pixels."""
    pixels = np.zeros((*values.shape, 4), np.uint8)
    pixels[..., 3] = np.round(np.clip(values, 0, 1) * 255)
    return pixels


def diverging(values: np.ndarray, limit: float) -> np.ndarray:
    """Signed values as pixels: orange above zero, blue below, the paper at zero."""
    pixels = np.zeros((*values.shape, 4), np.uint8)
    pixels[..., :3] = np.where((values < 0)[..., None], NEGATIVE, POSITIVE)
    strength = np.clip(np.abs(values) / (limit or 1.0), 0, 1)
    pixels[..., 3] = np.round(strength**0.7 * 255)  # small values stay visible
    return pixels


def image(pixels: np.ndarray, label: str, kind: str = "") -> str:
    """An image with hard pixels, as wide as its surroundings; kind "ink" turns white when dark."""
    return f'<img class="pixels {kind}" alt="{escape(label)}" src="{_png(pixels)}">'


def tiles(
    images: Sequence[str],
    captions: Sequence[str] = (),
    marked: Sequence[bool] = (),
    size: str = "small",
) -> str:
    """A grid of small or large images, each with a caption; marked ones stand out."""
    cells = []
    for i, picture in enumerate(images):
        kind = "tile marked" if marked and marked[i] else "tile"
        caption = f"<span>{escape(captions[i])}</span>" if captions else ""
        cells.append(f'<div class="{kind}">{picture}{caption}</div>')
    return f'<div class="tiles {size}">{"".join(cells)}</div>'


def heat_map(matrix: np.ndarray, label: str) -> str:
    """A matrix of signed values, with its colour scale."""
    limit = float(np.abs(matrix).max())
    scale = image(diverging(np.linspace(-limit, limit, 65)[None], limit), "colour scale", "scale")
    ends = f"<span>{-limit:.2g}</span>{scale}<span>{limit:.2g}</span>"
    picture = image(diverging(matrix, limit), label, "framed")
    return f'{picture}<p class="scale-row">{ends}</p>'
