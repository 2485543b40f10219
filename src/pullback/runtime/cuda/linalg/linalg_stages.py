"""Primitives of linear algebra as launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pullback.compile.program.matrices import batch_of
from pullback.compile.program.stages import Stage
from pullback.compile.program.target import Area, Place
from pullback.compile.program.tiles import TILED
from pullback.runtime.cuda.linalg.tiles import Tiles
from pullback.runtime.cuda.stages import stage

__all__ = ["NAMES", "linalg_stages"]

NAMES = (*TILED,)  # of the intrinsics


def linalg_stages(
    name: str,
    operands: Sequence[Place],
    static: Mapping[str, Any],
    result: Place,
    area: Area,
    error: int,
) -> list[Stage]:
    """The stages of a primitive; the result is dense."""
    out = result[1]
    if out.size == 0:
        return []
    tiles = Tiles(out.dtype, batch_of(name, out), area)
    tiles.run(name, operands, static, result, error)
    return stage(*tiles.steps())
