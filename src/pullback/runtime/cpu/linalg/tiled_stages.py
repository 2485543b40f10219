"""Which factorisations and solutions are made by tiles, and their stages from operands to result.

The results are those of `lapack_kernels`, of which these take the place where matrices are large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pullback.compile.kernel.factor_order import PANEL
from pullback.compile.kernel.lower import broadcast_strides
from pullback.core.avals import Aval
from pullback.runtime.cpu.linalg.tiles import Block, Tiles
from pullback.runtime.cpu.native import Stage

__all__ = ["is_tiled", "tiled_stages"]

Place = tuple[int, Aval]  # a slot, and what is there
Make = Callable[[Tiles, Sequence[Block], Block, dict[str, Any], int], None]


def is_tiled(name: str, avals: Sequence[Aval]) -> bool:
    """Whether it is made by tiles: all that is real is."""
    return name in _MAKES and not avals[0].dtype.is_complex


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
    slot, out = result
    tiles = Tiles(out.dtype, batch, area)
    blocks = [_readable(tiles, operand) for operand in operands]
    each = out.size // tiles.count
    rows, columns = out.shape[-2:] if len(out.shape) == len(batch) + 2 else (1, each)
    _MAKES[name](tiles, blocks, tiles.dense(slot, 0, rows, columns, each), static, error_code)
    return tiles.stages()


def _readable(tiles: Tiles, operand: Place) -> Block:
    """The matrices of an operand: their rows or columns are dense."""
    slot, av = operand
    assert av.strides is not None
    rows, columns = av.shape[-2:]
    *batch, row, column = broadcast_strides(av, (*tiles.batch, rows, columns))
    block = Block(slot, 0, rows, columns, row, column, tuple(batch))
    if 1 in (row, column):
        return block
    return tiles.taken(block)


def _cholesky(
    tiles: Tiles, operands: Sequence[Block], out: Block, static: dict[str, Any], error: int
) -> None:
    tiles.copy(operands[0], out, symmetric=True)
    tiles.cholesky(out)
    tiles.trim(out, 1, error)


def _solve_triangular(
    tiles: Tiles, operands: Sequence[Block], out: Block, static: dict[str, Any], error: int
) -> None:
    a, b = operands
    if not static["unit_diagonal"]:
        tiles.require_regular(a, error)
    tiles.take(b, out)
    tiles.solve(a, out, static["lower"], static["unit_diagonal"])


def _lu(
    tiles: Tiles, operands: Sequence[Block], out: Block, static: dict[str, Any], error: int
) -> None:
    x = operands[0].turned
    columns, rows = x.rows, x.columns
    packed, swaps = out.part(0, 0, rows=columns), out.part(columns, 0)
    tiles.copy(x, packed)
    tiles.lu(packed.turned, swaps)
    tiles.trim(packed, 0)
    tiles.order(swaps, rows, min(rows, columns))


def _lu_solve(
    tiles: Tiles, operands: Sequence[Block], out: Block, static: dict[str, Any], error: int
) -> None:
    _, b, f = operands
    n = b.rows
    both, numbers = f.part(0, 0, rows=n).turned, f.part(n + 1, 0)
    tiles.require_regular(both, error)
    if static["adjoint"]:
        x = tiles.taken(b)
        tiles.solve(both.turned, x, lower=True, unit=False)
        tiles.solve(both.turned, x, lower=False, unit=True)
        tiles.permute(x, out, numbers, back=True)
    else:
        tiles.permute(b, out, numbers, back=False)
        tiles.solve(both, out, lower=True, unit=True)
        tiles.solve(both, out, lower=False, unit=False)


def _qr(
    tiles: Tiles, operands: Sequence[Block], out: Block, static: dict[str, Any], error: int
) -> None:
    x = operands[0]
    m, n = x.rows, x.columns
    k = min(m, n)
    q = m if static["complete"] else k
    packed = tiles.scratch(n, m)
    tiles.copy(x.turned, packed)
    a, v = packed.turned, tiles.scratch(k, m, clear=True).turned
    widest = min(PANEL, k)
    ts = tiles.scratch(k, widest, clear=True)
    tiles.make_rooms(widest * max(n, q))
    panels = []
    for c in range(0, k, PANEL):
        w = min(PANEL, k - c)
        panels.append((c, v.part(c, c, columns=w), ts.part(c, 0, w, w)))
    for c, vectors, t in panels:
        tiles.qr(a.part(c, c), vectors, t)
        tiles.reflect(a.part(c, c + vectors.columns), vectors, t.turned)
    left = out._replace(rows=q, columns=m, row=m)
    right = out._replace(at=out.at + q * m, rows=q, columns=n, row=n)
    tiles.identity(left)
    for c, vectors, t in reversed(panels):
        tiles.reflect(left.turned.part(c, c), vectors, t)
    tiles.copy(a.part(0, 0, rows=q), right)
    tiles.trim(left, 0)
    tiles.trim(right, -1)


_MAKES: dict[str, Make] = {
    "cholesky": _cholesky,
    "solve_triangular": _solve_triangular,
    "lu": _lu,
    "lu_solve": _lu_solve,
    "qr": _qr,
}
