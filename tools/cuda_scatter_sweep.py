"""Sums by index on an NVIDIA GPU beside PyTorch's float atomics, over a grid of shapes.

    PYTHONPATH=src python tools/cuda_scatter_sweep.py [--elements N] [--patterns sorted ...]

For every number of rows, width and pattern of indices: the time of a call with new indices over
that of the faster of `index_add_` and `scatter_add_`. A line for each width; what is above 1 is
marked. Full numbers go to a file in $OUT if OUT is set. Needs CuPy and PyTorch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import cupy as cp
import torch

from cuda_scatter_data import attempt, draw, watched, write
from cuda_scatter_times import median_ms
from pullback.runtime.cuda import scatter

ROWS = (20, 200, 2_000, 20_000, 200_000, 2_000_000, 20_000_000)
WIDTHS = (1, 2, 3, 4, 8, 16, 32, 64, 256, 1024)
PATTERNS = ("random", "sorted", "zipf")
MOST = 1 << 28  # elements of a result
REPEATS = 5


class Point(NamedTuple):
    """A shape, a pattern, and the milliseconds of a call."""

    pattern: str
    rows: int
    width: int
    count: int
    ours: float
    peer: float

    @property
    def ratio(self) -> float:
        return self.ours / self.peer


def measured(pattern: str, rows: int, width: int, count: int) -> Point:
    i = draw(pattern, count, rows, cp)
    v = cp.random.standard_normal((count, width), dtype=cp.float32)
    out = cp.zeros((rows, width), cp.float32)
    peer_i, peer_v, peer_out = (torch.from_dlpack(a) for a in (i, v, cp.zeros_like(out)))
    spread = peer_i[:, None].expand(count, width)
    peers: list[Callable[[int], Any]] = [
        lambda _: peer_out.index_add_(0, peer_i, peer_v),
        lambda _: peer_out.scatter_add_(0, spread, peer_v),
    ]
    ours = median_ms(lambda _: scatter.scatter_add(i, v, out), REPEATS)
    return Point(pattern, rows, width, count, ours, min(median_ms(peer, REPEATS) for peer in peers))


def swept(pattern: str, elements: int) -> Iterator[Point | None]:
    """All points of a pattern, None for one that failed, with a line for each width."""
    print(f"\n{pattern:7}", *(f"{rows:>10,}" for rows in ROWS))
    for width in WIDTHS:
        texts = []
        for rows in ROWS:
            if rows * width > MOST:
                continue
            shape = pattern, rows, width, max(1, elements // width)
            with watched(str(shape)):
                found = attempt(measured, *shape)
            if isinstance(found, str):
                print(f"FAILED {shape}: {found}", flush=True)
                texts.append("failed")
                yield None
            else:
                texts.append(f"{found.ratio:.2f}{'!' * (found.ratio > 1)}")
                yield found
        print(f"{width:7}", *(f"{text:>10}" for text in texts), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--elements", type=int, default=1 << 24, help="of the updates")
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=PATTERNS)
    options = parser.parse_args()
    found = [point for pattern in options.patterns for point in swept(pattern, options.elements)]
    points = [point for point in found if point is not None]
    slow = sorted((p for p in points if p.ratio > 1), key=lambda p: -p.ratio)
    print(f"\n{len(points)} shapes, slower than atomics: {len(slow)}")
    for p in slow[:20]:
        print(f"{p.pattern} {p.rows} x {p.width}: {p.ours:.3f} ms, atomics {p.peer:.3f}")
    write("cuda_scatter_sweep.json", [p._asdict() for p in points])
    return int(len(points) < len(found))


if __name__ == "__main__":
    sys.exit(main())
