"""The order in which a map visits its axes: tiles where operands have different dense axes."""

from __future__ import annotations

from collections.abc import Sequence

from pullback.compile.program.nest import Nest

__all__ = ["boxes"]
__tuning__ = ("SIDE", "NARROW", "LONG", "WORTH")

SIDE = 32  # of a tile between an array and its transpose
NARROW = 8  # an innermost axis shorter than this leaves vectors empty
LONG = 256  # elements of the longer axis that are then taken at once
WORTH = 2048  # elements from which on tiles pay
LINE = 64  # bytes of a cache line: a longer step reads a new one each time

Box = tuple[Nest, tuple[int, ...]]


def boxes(nest: Nest, itemsizes: Sequence[int], outputs: int = 1) -> list[Box]:
    """The nest as parts, each with the byte offset of every stream; the first ones are written."""
    whole: list[Box] = [(nest, (0,) * len(nest.strides))]
    rank = len(nest.shape)
    if rank < 2 or nest.size < WORTH:
        return whole
    across = _other_dense_axis(nest, itemsizes, outputs)
    if across is not None:
        return _tiles(nest, across, rank - 1, SIDE, SIDE)
    if nest.shape[-1] < NARROW and nest.shape[-2] >= 4 * NARROW:
        return _tiles(nest, rank - 1, rank - 2, nest.shape[-1], LONG)
    return whole


def _other_dense_axis(nest: Nest, itemsizes: Sequence[int], outputs: int) -> int | None:
    """An axis along which an operand is dense that jumps along the innermost one."""
    for own, size in zip(nest.strides[outputs:], itemsizes[outputs:], strict=False):
        if abs(own[-1]) < LINE or nest.shape[-1] < NARROW:
            continue
        for d, n in enumerate(nest.shape[:-1]):
            if n >= NARROW and abs(own[d]) == size:
                return d
    return None


def _tiles(nest: Nest, b: int, a: int, side_b: int, side_a: int) -> list[Box]:
    """Tiles of `side_b` x `side_a` over axes `b` and `a`, `a` innermost, and what is left over."""
    others = [d for d in range(len(nest.shape)) if d not in (a, b)]
    found: list[Box] = []
    for start_b, many_b, tile_b in _parts(nest.shape[b], side_b):
        for start_a, many_a, tile_a in _parts(nest.shape[a], side_a):
            shape = (*(nest.shape[d] for d in others), many_b, many_a, tile_b, tile_a)
            strides = tuple(
                (*(s[d] for d in others), s[b] * tile_b, s[a] * tile_a, s[b], s[a])
                for s in nest.strides
            )
            offsets = tuple(start_b * s[b] + start_a * s[a] for s in nest.strides)
            found.append((Nest(shape, strides), offsets))
    return found


def _parts(n: int, side: int) -> list[tuple[int, int, int]]:
    """Start, count and size of the whole tiles along an axis, then of the rest."""
    many, rest = divmod(n, side)
    return [(0, many, side)] * bool(many) + [(n - rest, 1, rest)] * bool(rest)
