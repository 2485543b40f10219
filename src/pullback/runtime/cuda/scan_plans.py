"""Which function of a running fold to launch for given shapes, and with which arguments."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from pullback.compile.kernel.forms import Accumulate
from pullback.compile.program.nest import Nest, coalesce
from pullback.compile.program.target import Strides
from pullback.runtime.cuda.kernels import name_of
from pullback.runtime.cuda.launch import THREADS, Launch, Launches, grid_of, packed
from pullback.runtime.cuda.scans import LINES, WAITING, fits

__all__ = ["scan_plan"]

ENOUGH = 264  # thread blocks, two for each processor of an H200
LEAST = 32  # steps from which on it is worth while to fetch them together


def scan_plan(
    kernel: Accumulate,
    kept_shape: Sequence[int],
    length: int,
    input_strides: Sequence[Strides],
    output_strides: Strides,
    reverse: bool,
) -> Launches:
    """How to fold along one axis, keeping every step; strides go over the kept axes, then it."""
    if math.prod(kept_shape) * length == 0:
        return Launches([])
    strides = [output_strides, *input_strides]
    kept = coalesce(kept_shape, [s[:-1] for s in strides])
    along = [s[-1] for s in strides]
    offsets = [(length - 1) * s if reverse else 0 for s in along]
    steps = [-s if reverse else s for s in along]
    words = [length, length - 1 if reverse else 0, -1 if reverse else 1, *offsets, *steps]
    line = struct.pack(f"<{len(words)}q", *words)
    buffers = ("out0", *(f"in{k}" for k in range(len(kernel.inputs))))
    walk = _walk(kernel, kept, along, length)
    name, arguments = name_of(kernel), (*buffers, packed(kept), line)
    if walk == "scan":
        return Launches([Launch(f"{name}_scan", grid_of(kept.size), THREADS, arguments)])
    lines = LINES
    while lines > 1 and kept.size < lines * ENOUGH:
        lines //= 2
    lines = max(lines, LINES // 2) if walk == "lines_straight" else lines
    grid = math.ceil(kept.size / lines)
    return Launches([Launch(f"{name}_{walk}", grid, WAITING, (*arguments, lines))])


def _walk(kernel: Accumulate, kept: Nest, along: Sequence[int], length: int) -> str:
    """How lines are read: one thread each, or together what lies together in memory."""
    if length < LEAST or not fits(kernel):
        return "scan"
    if all(abs(s) == 1 for s in along):
        return "lines_turned"
    if kept.shape and kept.shape[-1] >= LINES // 2 and all(own[-1] == 1 for own in kept.strides):
        return "lines_straight"
    return "scan"
