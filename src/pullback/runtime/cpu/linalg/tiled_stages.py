"""Which factorisations and solutions are made by tiles, and their stages from operands to result.

The results are those of `lapack_kernels`, of which these take the place where matrices are large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pullback.compile.program.tiles import TILED
from pullback.core.avals import Aval
from pullback.runtime.cpu.linalg.tiles import Tiles
from pullback.runtime.cpu.native import Stage

__all__ = ["is_tiled", "tiled_stages"]

Place = tuple[int, Aval]  # a slot, and what is there


def is_tiled(name: str, avals: Sequence[Aval]) -> bool:
    """Whether it is made by tiles: all that is real is."""
    return name in TILED and not avals[0].dtype.is_complex


def tiled_stages(
    name: str,
    operands: Sequence[Place],
    static: dict[str, Any],
    batch: tuple[int, ...],
    result: Place,
    area: Callable[[int], int],
    error_code: int,
) -> list[Stage]:
    """The stages of a primitive; the result is dense."""
    tiles = Tiles(result[1].dtype, batch, area)
    tiles.run(name, operands, static, result, error_code)
    return tiles.stages()
