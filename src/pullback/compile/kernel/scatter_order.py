"""The orders of folds by index for thousands of threads: those of PyTorch's CUDA tensors.

    exact    sums of narrow rows in fixed point, which need no order: `fixed_point`
    streams  few destinations: updates are dealt to streams in turn: `scattered_in_streams`
    pieces   all others: updates are sorted by rows, and cut: `scattered_by_pieces`

Which of them is taken (`order_of`), and how work is cut, are functions of shapes and dtypes alone:
any device is given the same streams and pieces, whatever it has of processors and of memory, and
wherever arrays start. The constants are those of a Hopper, where these orders were measured; they
decide bits, and so they stay. Sums of float16, bfloat16 and float32 are accumulated in float64,
those of float64 as a sum and the sum of its errors, integers modulo 2**64.
"""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from pullback.compile.kernel.order import Array, Combine
from pullback.core import dtypes as dt

__all__ = [
    "EXACT",
    "JOIN_LANES",
    "JOIN_SLICES",
    "PIECE_BYTES",
    "PieceShape",
    "StreamShape",
    "accumulator_bytes",
    "order_of",
    "piece_of",
    "piece_shape",
    "scattered_by_pieces",
    "scattered_in_streams",
    "slices_of",
    "stream_threads",
    "streams_of",
]

Order = Literal["exact", "streams", "pieces"]

EXACT = ("float16", "bfloat16", "float32")
# Rows up to which sums are exact, by their elements: 2**25 destinations, each of which takes about
# 60 bytes of scratch, or as many rows as 1980 tables of a thread block have room for.
EXACT_ROWS = {1: 1 << 25, 2: 1 << 24, 3: 8_220_960, 4: 6_163_740}
EXACT_SHARE = 8  # rows to an update at most: exact sums go over all rows
MOST_COUNTED = (1 << 31) - 1  # updates and rows of pieces are counted in 32 bits

STREAMS = 132  # blocks at least that updates are dealt to, as many as a Hopper has processors
STREAM_UPDATES = 12  # of a thread at least, before there are STREAMS more blocks
PLAIN_BYTES = 48 << 10  # accumulators of a block up to which it has 256 threads
MOST_BYTES = 232_448  # accumulators of a block at most, with 128 threads or 64
TOGETHER_BYTES = 233_472  # which all blocks of a processor have, each with RESERVED of its own
RESERVED = 1024
TOGETHER_THREADS = 1536  # of all blocks of a processor
RUN_BYTES = 16  # of neighbouring updates, or of their indices, that a thread takes at a time
MOST_RUN = 4  # updates that these are at most
SMALL_ROWS = 64  # rows up to which there are threads enough to read wide ones
SMALL_CALL = 1 << 21  # elements up to which a sort takes longer than it saves
WIDE_TURNS = 8  # updates of a stream at least, where rows have several elements
PART_SHARE = 4  # updates to a part that blocks leave, at least
JOIN_LANES = 32  # that join single elements, as neighbouring threads and as blocks
JOIN_SLICES = 8  # of the blocks, where rows have several elements

PIECES = (64, 60, 56, 52, 48)  # updates of a piece: the first of them that fills whole turns best
PIECE_BLOCKS = 4 * STREAMS  # thread blocks that fold pieces in one turn
PIECE_THREADS = 256  # of such a block: some lanes side by side along a row, as many pieces as fit
PIECE_BYTES = 16  # that a lane takes of a row, or the half or a quarter where rows are no multiple
MOST_PIECE_LANES = 32  # of PIECE_BYTES: so a row of 512 bytes is read by one warp


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


# -- which order -----------------------------------------------------------------------------------


def accumulator_bytes(value: str, fold: str) -> int:
    """The bytes in which an element is folded."""
    return 16 if value == "float64" and fold == "add" else 8


def order_of(value: str, fold: str, count: int, rows: int, width: int) -> Order:
    """The order of a fold of `count` updates of `width` real elements into `rows` rows."""
    may_be_exact = fold == "add" and value in EXACT
    narrow = width in EXACT_ROWS and rows <= EXACT_ROWS[width]
    exact = may_be_exact and narrow and EXACT_SHARE * count >= rows
    if fold != "set" and _is_streamed(value, fold, count, rows, width, exact):
        return "streams"
    if exact or (may_be_exact and (count > MOST_COUNTED or rows >= MOST_COUNTED)):
        return "exact"
    return "pieces"


def _is_streamed(value: str, fold: str, count: int, rows: int, width: int, exact: bool) -> bool:
    threads, small = stream_threads(value, fold, rows), rows <= SMALL_ROWS
    if threads == 0 or width == 1:
        return threads > 0
    # from how many elements of a row on a sort is faster, and whatever else there is
    worth_a_sort = 16 if small else 8 if threads > 64 else 3
    worth_others = 2 if exact and not small else worth_a_sort
    if width < worth_others:
        return True
    return count * width <= SMALL_CALL and (small or width < worth_a_sort)


# -- streams ---------------------------------------------------------------------------------------


class StreamShape(NamedTuple):
    """How updates are dealt out: update i goes to block `i // turn % blocks` and there to stream
    `i // run % own`, which has accumulators of its own and takes its updates in their order.
    """

    threads: int  # of a block: one is a stream, or several side by side along a row
    own: int  # streams of a block
    run: int
    turn: int
    blocks: int


def stream_threads(value: str, fold: str, rows: int) -> int:
    """The threads of a block whose accumulators have room; 0 if there are too many rows."""
    column = rows * accumulator_bytes(value, fold)
    if 256 * column <= PLAIN_BYTES:
        return 256
    return next((t for t in (128, 64) if t * column <= MOST_BYTES), 0)


def streams_of(value: str, index: str, fold: str, count: int, rows: int, width: int) -> StreamShape:
    """The streams of a fold, by the dtypes of updates and of indices."""
    threads = stream_threads(value, fold, rows)
    taken = threads * rows * accumulator_bytes(value, fold) + RESERVED
    resident = max(1, min(TOGETHER_THREADS // threads, TOGETHER_BYTES // taken))
    if width == 1:
        widest = max(dt.as_dtype(value).itemsize, dt.as_dtype(index).itemsize)
        run = min(MOST_RUN, RUN_BYTES // widest)
        turn = threads * run * max(1, (4 if threads == 256 else 16) // run)
        # the parts of blocks that get little cost more than they help
        most = STREAMS * min(resident, max(1, count // (STREAMS * threads * STREAM_UPDATES)))
        return StreamShape(threads, threads, run, turn, max(1, min(most, _ceil_div(count, turn))))
    own, along = max(1, threads // width), _ceil_div(width, threads)
    blocks = min(STREAMS * resident // along, _ceil_div(count, own * WIDE_TURNS))
    return StreamShape(threads, own, 1, own, max(1, min(blocks, count // (PART_SHARE * rows))))


def scattered_in_streams(
    x: Array, indices: Array, updates: Array, index: str = "int64", fold: str = "add"
) -> Array:
    """x (rows, width) folded with the updates of each row in streams, by sums or products.

    Single elements: JOIN_LANES lanes take the streams of a block in turn, and a tree joins them by
    halves; so they take the blocks. Wider rows: the streams in sequence; the blocks in turn by
    JOIN_SLICES slices, which are joined in sequence. Then x.
    """
    (rows, width), join = x.shape, _joining(x.dtype, fold)
    dealt = streams_of(x.dtype.name, index, fold, len(updates), rows, width)
    empty = _empty((rows, width), x.dtype, fold)
    sums = np.stack([np.stack([empty] * dealt.own)] * dealt.blocks)
    for i, (row, update) in enumerate(zip(indices.tolist(), _taken(updates, fold), strict=True)):
        stream = sums[i // dealt.turn % dealt.blocks, i // dealt.run % dealt.own]
        stream[:, row] = join(stream[:, row], update)
    if width == 1:
        total = _by_halves([_by_halves(block, join, empty) for block in sums], join, empty)
    else:
        parts = [reduce(join, block, empty) for block in sums]
        total = reduce(
            join, [reduce(join, parts[k::JOIN_SLICES], empty) for k in range(JOIN_SLICES)]
        )
    return _ended(x, total, fold)


def _by_halves(values: Array | list[Array], join: Combine, empty: Array) -> Array:
    lanes = [reduce(join, values[lane::JOIN_LANES], empty) for lane in range(JOIN_LANES)]
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [join(a, b) for a, b in zip(lanes[:half], lanes[half:], strict=True)]
    return lanes[0]


# -- pieces ----------------------------------------------------------------------------------------


class PieceShape(NamedTuple):
    """Elements of a row that a lane takes, and lanes side by side: both are powers of two."""

    per_lane: int
    lanes: int


def piece_shape(width: int, itemsize: int) -> PieceShape:
    """How a piece goes along rows of `width` elements."""
    most = PIECE_BYTES // itemsize
    per_lane = next(v for v in (most, most // 2, most // 4, 1) if v and width % v == 0)
    lanes = 1 << (_ceil_div(width, per_lane) - 1).bit_length()
    return PieceShape(per_lane, min(MOST_PIECE_LANES, lanes))


def piece_of(count: int, width: int, itemsize: int) -> int:
    """The updates of a piece: all thread blocks do the same, few should be left over in the end."""
    per_lane, lanes = piece_shape(width, itemsize)
    along = _ceil_div(width, lanes * per_lane)

    def blocks(piece: int) -> int:
        return _ceil_div(_ceil_div(count, piece) * lanes, PIECE_THREADS) * along

    halved = 2 if 2 * blocks(PIECES[0]) <= PIECE_BLOCKS else 1  # or half of the device is idle
    return min((p // halved for p in PIECES), key=lambda p: p * _ceil_div(blocks(p), PIECE_BLOCKS))


def slices_of(width: int, itemsize: int) -> int:
    """The slices in which the parts of a run of one row are joined."""
    return PIECE_THREADS // piece_shape(width, itemsize).lanes


def scattered_by_pieces(x: Array, indices: Array, updates: Array, fold: str = "add") -> Array:
    """x (rows, width) folded with the updates of each row, sorted by rows, by sums or products.

    A run of one row is cut at multiples of `piece_of`, but for the last half of a piece. Its parts
    are folded by themselves, those after the first in equal slices, joined in sequence. Then x.
    """
    piece = piece_of(len(indices), x.shape[1], x.itemsize)
    slices, join = slices_of(x.shape[1], x.itemsize), _joining(x.dtype, fold)
    places = np.argsort(indices, kind="stable")
    values, keys = _taken(updates[places], fold), indices[places]
    empty, out = _empty(x.shape[1:], x.dtype, fold), x.copy()
    for row in np.unique(keys).tolist():
        first, end = np.searchsorted(keys, [row, row + 1]).tolist()
        cuts = range(first // piece + 1, (end - piece // 2) // piece + 1)
        bounds = [first, *(k * piece for k in cuts), end]
        total, *rest = [reduce(join, values[a:b], empty) for a, b in pairwise(bounds)]
        each = max(1, _ceil_div(len(rest), slices))
        for k in range(0, len(rest), each):
            total = join(total, reduce(join, rest[k : k + each], empty))
        out[row] = _ended(x[row], total, fold)
    return out


# -- accumulators of the references ----------------------------------------------------------------

# An axis in front has the accumulator's parts: one number, or a sum and the sum of its errors.


def _is_double(dtype: np.dtype, fold: str) -> bool:
    return accumulator_bytes(dtype.name, fold) == 16


def _empty(shape: tuple[int, ...], dtype: np.dtype, fold: str) -> Array:
    return np.full((1 + _is_double(dtype, fold), *shape), 1.0 if fold == "mul" else 0.0)


def _taken(updates: Array, fold: str) -> Array:
    """Updates as accumulators, which are along the first axis."""
    wide = updates.astype(np.float64)[:, None]
    return np.concatenate([wide, 0 * wide], 1) if _is_double(updates.dtype, fold) else wide


def _joining(dtype: np.dtype, fold: str) -> Combine:
    if fold == "mul":
        return np.multiply
    return _pairs_added if _is_double(dtype, fold) else np.add


def _pairs_added(a: Array, b: Array) -> Array:
    high = a[0] + b[0]
    part = high - a[0]
    return np.stack([high, a[1] + b[1] + ((a[0] - (high - part)) + (b[0] - part))])


def _ended(x: Array, total: Array, fold: str) -> Array:
    (wide,) = _taken(x[None], fold)
    return _joining(x.dtype, fold)(total, wide).sum(0).astype(x.dtype)
