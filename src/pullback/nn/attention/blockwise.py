"""Attention in tiles of queries and keys, so that memory grows with the sequence, not its square.

A tile's scores are computed when they are needed and forgotten: by the forward pass, which keeps
the log-sum-exp of each row; by its derivative, which computes the probabilities from that; and by
derivatives of the derivative, because the loops over tiles recompute. All derivatives are sums over
tiles, so that none needs a value of another tile.

The arrays of a problem, by name, and what a tile takes from each:

    query, out, lse, g, delta     (*lead, group, rows, .)       its rows
    key, value                    (*lead, columns, .)           its columns
    bias, mask, row, column, head (*lead, group, rows, columns) its rows and columns; axes may be 1
    words                         (2,), a key for random bits   all
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from typing import Any, NamedTuple

from pullback.autodiff.custom import custom_vjp
from pullback.autodiff.reverse import with_recording
from pullback.control import cond, scan
from pullback.core.dtypes import uint32
from pullback.ops.arrangement import moveaxis
from pullback.ops.creation import full, zeros
from pullback.ops.exponential import exp, log
from pullback.ops.extrema import max as max_
from pullback.ops.families import sum_to
from pullback.ops.movement import concat, reshape
from pullback.ops.philox import ATTENTION as PURPOSE
from pullback.ops.philox import philox
from pullback.ops.products import matmul, matrix_transpose
from pullback.ops.ranges import arange
from pullback.ops.reductions import sum as sum_
from pullback.ops.selection import maximum, where

__all__ = ["PURPOSE", "attended", "probabilities"]

TILE = 1 << 20  # scores of a tile, of all its heads together: what stays in cache
SIDE = 512  # rows and columns of a tile, if there are enough heads

_BY_ROWS = {"query", "out", "lse", "g", "delta"}
_BY_COLUMNS = {"key", "value"}

Arrays = dict[str, Any]


def attended(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    words: Any = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Any:
    """softmax(query @ key.T + bias) @ value, where the mask allows it; 0 where it allows nothing.

    Shapes are those above; with `causal` a row sees the columns up to its own. `words` is the key
    of a dropout of probabilities.
    """
    if key.shape[-2] == 0:
        nothing = matmul(_merged(query), matrix_transpose(key))
        return _grouped(matmul(nothing, value), query)
    rule = _Attention(causal, dropout)
    core = custom_vjp(rule.forward)
    core.defvjp(rule.forward_and_residuals, rule.pulled)
    arrays = _present(query=query, key=key, value=value, bias=bias)
    return core(arrays, rule.fixed(arrays, mask, words))[0]


def probabilities(
    query: Any,
    key: Any,
    bias: Any = None,
    mask: Any = None,
    words: Any = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Any:
    """What `attended` multiplies values with, as a whole: as many numbers as there are scores."""
    rule = _Attention(causal, dropout)
    arrays = _present(query=query, key=key, bias=bias)
    arrays |= rule.fixed(arrays, mask, words)
    s = rule.scores(arrays)
    if s.shape[-1] == 0:
        return s
    top = max_(s.detach(), axis=-1, keepdims=True)
    e = exp(s - where(top == -inf, 0.0, top))
    total = sum_(e, axis=-1, keepdims=True)
    return rule.thinned(e / where(total == 0.0, 1.0, total), arrays)


def _present(**arrays: Any) -> Arrays:
    return {n: x for n, x in arrays.items() if x is not None}


# -- sweeps ----------------------------------------------------------------------------------------


def _axis(name: str, along: str | int) -> int | None:
    """The axis of an array that a sweep along rows, columns, or a leading axis cuts."""
    if name == "words":
        return None
    if isinstance(along, int):
        return along
    if name in _BY_ROWS:
        return -2 if along == "rows" else None
    if name in _BY_COLUMNS:
        return -2 if along == "columns" else None
    return -2 if along == "rows" else -1


def _cut(arrays: Arrays, along: str | int) -> dict[str, int]:
    """The axes of those arrays that a sweep cuts; one that is 1 long there is for all tiles."""
    axes = {n: _axis(n, along) for n in arrays}
    return {n: a for n, a in axes.items() if a is not None and arrays[n].shape[a] != 1}


def _zeros_like(x: Any) -> Any:
    return zeros(x.shape, dtype=x.dtype, device=x.device)


def _part(x: Any, axis: int, start: int, stop: int) -> Any:
    return x[(*[slice(None)] * (axis % x.ndim), slice(start, stop))]


def _pieces(x: Any, axis: int, count: int, block: int) -> Any:
    """The first `count` blocks along an axis, as rows."""
    axis %= x.ndim
    whole = x if x.shape[axis] == count * block else _part(x, axis, 0, count * block)
    return moveaxis(reshape(whole, (*x.shape[:axis], count, block, *x.shape[axis + 1 :])), axis, 0)


def _joined(x: Any, axis: int) -> Any:
    """The rows put together along an axis: the inverse of `_pieces`."""
    axis %= x.ndim - 1
    moved = moveaxis(x, 0, axis)
    shape = moved.shape
    return reshape(moved, (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))


def _block(size: int, most: int) -> int:
    """The length of blocks: all of it, or not much more than `most`, without a rest if possible."""
    if size <= most + most // 2:
        return size
    return next((b for b in range(most, most // 2, -1) if size % b == 0), most)


def _loop(step: Callable, start: Any, arrays: Arrays, along: str | int, block: int) -> tuple:
    """The last carry and the list of results of `step(carry, tile)` over blocks of the arrays.

    The list holds the stacked results of the scan, then those of a shorter last block.
    """
    axes = _cut(arrays, along)
    size = max(arrays[n].shape[a] for n, a in axes.items())
    count = size // block
    pieces = {n: _pieces(arrays[n], a, count, block) for n, a in axes.items()}
    carry, stacked = scan(lambda c, x: step(c, arrays | x), start, pieces, recompute=True)
    if count * block == size:
        return carry, [stacked]
    rest = {n: _part(arrays[n], a, count * block, size) for n, a in axes.items()}
    carry, last = step(carry, arrays | rest)
    return carry, [stacked, last]


def _swept(
    f: Callable[[Arrays], Arrays], names: list[str], arrays: Arrays, along: str | int, block: int
) -> Arrays:
    """The results of `f` on all blocks of the arrays, each called and shaped like one of `names`.

    A result that has the axis is put together, another one is added up: it is the cotangent of an
    array that all blocks share.
    """
    axes = _cut(arrays, along)
    if not axes or all(arrays[n].shape[a] <= block for n, a in axes.items()):
        return f(arrays)
    shared = [n for n in names if n in arrays and n not in axes]

    def step(totals: Arrays, tile: Arrays) -> tuple[Arrays, Arrays]:
        found = f(tile)
        own = {n: x for n, x in found.items() if n not in shared}
        return {n: totals[n] + found[n] for n in shared}, own

    start = {n: _zeros_like(arrays[n]) for n in shared}
    totals, (stacked, *last) = _loop(step, start, arrays, along, block)
    for n, x in stacked.items():
        axis = _axis(n, along)
        assert axis is not None
        whole = _joined(x, axis)
        totals[n] = concat([whole, last[0][n]], axis=axis) if last else whole
    return totals


def _tiled(
    f: Callable[[Arrays], Arrays], names: list[str], arrays: Arrays, axis: int = 0, own: int = 0
) -> Arrays:
    """The results of `f` on tiles of few heads and not many rows, those of a tile of `own` heads.

    More heads at a time, or fewer, change no bit: where no result is a sum over heads there are as
    many as the device likes. Rows would, in sums along them.
    """
    shape, columns = arrays["query"].shape, arrays["key"].shape[-2]
    rows, heads, lead = shape[-2], prod(shape[axis:-2]), len(shape) - 3
    most = max(1, TILE // max(1, min(rows, SIDE) * min(columns, SIDE)))
    few = axis >= lead or heads <= most
    own = own or (prod(shape[:-2]) if few else _heads_of_tile(shape, axis, most))
    summed = any(arrays[n].shape[axis:lead] != shape[axis:lead] for n in names if n in arrays)
    liked = arrays["query"].device.runtime.tile_elements if own and not summed else 0
    fit = max(1, liked // max(1, _row_block(rows, columns, own) * min(columns, SIDE)))
    if axis >= lead or (heads <= fit if liked else few):
        return _by_rows(f, names, arrays, own or prod(shape[:-2]))
    rest = prod(shape[axis + 1 : -2])
    block = 1 if liked else _block(shape[axis], max(1, most // rest))
    if block > 1:
        return _swept(lambda t: _tiled(f, names, t, lead), names, arrays, axis, block)
    many = max(b for b in range(1, max(1, fit // rest) + 1) if shape[axis] % b == 0)
    kept = own if liked else 0
    return _swept(
        lambda t: _tiled(f, names, t, axis + (many == 1), kept), names, arrays, axis, many
    )


def _heads_of_tile(shape: tuple[int, ...], axis: int, most: int) -> int:
    """The heads of a tile, which decide its rows; 0 if tiles differ."""
    if axis >= len(shape) - 3 or prod(shape[axis:-2]) <= most:
        return prod(shape[axis:-2])
    rest = prod(shape[axis + 1 : -2])
    block = _block(shape[axis], max(1, most // rest))
    if block > 1:
        return 0 if shape[axis] % block else block * rest
    return _heads_of_tile(shape, axis + 1, most)


def _row_block(rows: int, columns: int, heads: int) -> int:
    """The rows of a tile of so many heads."""
    return _block(rows, max(SIDE, TILE // max(1, heads * min(columns, SIDE))))


def _by_rows(f: Callable[[Arrays], Arrays], names: list[str], arrays: Arrays, heads: int) -> Arrays:
    rows, columns = arrays["query"].shape[-2], arrays["key"].shape[-2]
    return _swept(f, names, arrays, "rows", _row_block(rows, columns, heads))


# -- tiles -----------------------------------------------------------------------------------------


def _merged(x: Any) -> Any:
    """(*lead, group, rows, n) as (*lead, group * rows, n)."""
    return reshape(x, (*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1]))


def _grouped(x: Any, like: Any) -> Any:
    """The inverse of `_merged`, with the group and the rows of `like`."""
    return reshape(x, (*like.shape[:-1], x.shape[-1]))


class _Attention(NamedTuple):
    """What is fixed in a problem, and its forward and backward rules."""

    causal: bool
    dropout: float

    def fixed(self, arrays: Arrays, mask: Any, words: Any) -> Arrays:
        """What has no derivative: also numbers of rows, columns and heads, if they are needed."""
        (*lead, rows, _), device = arrays["query"].shape, arrays["query"].device
        columns, ones = arrays["key"].shape[-2], (1,) * len(lead)
        found = _present(mask=mask, words=words)
        if self.causal or self.dropout:
            found["row"] = reshape(arange(rows, dtype=uint32, device=device), (*ones, rows, 1))
            found["column"] = reshape(
                arange(columns, dtype=uint32, device=device), (*ones, 1, columns)
            )
        if self.dropout:
            head = arange(prod(lead), dtype=uint32, device=device)
            found["head"] = reshape(head, (*lead, 1, 1))
        return found

    def scores(self, t: Arrays) -> Any:
        """The scores of a tile, -inf where nothing is to be seen."""
        s = _grouped(matmul(_merged(t["query"]), matrix_transpose(t["key"])), t["query"])
        if "bias" in t:
            s = s + t["bias"]
        if "mask" in t:
            s = where(t["mask"], s, -inf)
        return where(t["row"] >= t["column"], s, -inf) if self.causal else s

    def thinned(self, p: Any, t: Arrays) -> Any:
        """Probabilities, or their cotangents, after dropout: the same bits for the same place."""
        if not self.dropout:
            return p
        words = t["words"]
        last = full((), PURPOSE, dtype=uint32, device=words.device)
        drawn = philox(t["column"], t["row"], t["head"], last, words[0], words[1], word=0)
        kept = drawn >= round(self.dropout * 2**32)
        return where(kept, p * (1.0 / (1.0 - self.dropout)), 0.0)

    # -- forward -----------------------------------------------------------------------------------

    def forward(self, arrays: Arrays, fixed: Arrays) -> tuple[Any, Any]:
        """The result, and the logarithm of each row's sum of exponentials (0 if it is empty)."""
        found = _tiled(self._rows, ["out", "lse"], arrays | fixed)
        return found["out"], found["lse"]

    def _rows(self, arrays: Arrays) -> Arrays:
        """The results of some rows, with a running maximum over blocks of columns."""
        query, key, value = arrays["query"], arrays["key"], arrays["value"]
        lead, like = query.shape[:-1], {"dtype": query.dtype, "device": query.device}
        start = (
            full((*lead, 1), -inf, **like),
            zeros((*lead, 1), **like),
            zeros((*lead, value.shape[-1]), **like),
        )
        block = _block(key.shape[-2], SIDE)
        if block == key.shape[-2]:
            (top, total, out), _ = self._columns(start, arrays)
        else:
            (top, total, out), _ = _loop(self._columns, start, arrays, "columns", block)
        empty = total == 0.0
        total = where(empty, 1.0, total)
        return {"out": out / total, "lse": where(empty, 0.0, top + log(total))}

    def sees(self, t: Arrays) -> Any:
        """Whether a row of a tile sees a column of it: above the diagonal there is nothing."""
        return t["row"].reshape(-1)[-1] >= t["column"].reshape(-1)[0]

    def _columns(self, carry: tuple, t: Arrays) -> tuple[tuple, None]:
        """Maximum, sum and weighted values of rows, with another block of columns."""
        if not self.causal:
            return self._more(carry, t), None
        return cond(self.sees(t), lambda c: self._more(c, t), lambda c: c, carry), None

    def _more(self, carry: tuple, t: Arrays) -> tuple:
        top, total, out = carry
        s = self.scores(t)
        new = maximum(top, max_(s, axis=-1, keepdims=True))
        origin = where(new == -inf, 0.0, new)
        p, old = exp(s - origin), exp(top - origin)
        more = _grouped(matmul(_merged(self.thinned(p, t)), t["value"]), p)
        return new, total * old + sum_(p, axis=-1, keepdims=True), out * old + more

    # -- backward ----------------------------------------------------------------------------------

    def forward_and_residuals(self, arrays: Arrays, fixed: Arrays) -> tuple[tuple, tuple]:
        # what is kept of it is differentiated by the rule
        out, lse = with_recording(False, self.forward, arrays, fixed)
        return (out, lse), (arrays, fixed, out, lse)

    def pulled(self, residuals: tuple, cotangent: tuple) -> tuple[Arrays, None]:
        """The cotangents of the arrays."""
        arrays, fixed, out, lse = residuals
        g, g_lse = cotangent
        delta = sum_(g * out, axis=-1, keepdims=True) - g_lse
        names = list(arrays)
        given = arrays | fixed | {"lse": lse, "g": g, "delta": delta}
        found = _tiled(lambda t: self._pulled_rows(names, t), names, given)
        return {n: found[n] for n in names}, None

    def _pulled_rows(self, names: list[str], arrays: Arrays) -> Arrays:
        def tile(t: Arrays) -> Arrays:
            if not self.causal:
                return self._pulled_tile(t)
            none = {n: _zeros_like(t[n]) for n in names}
            return cond(self.sees(t), lambda: self._pulled_tile(t), lambda: none)

        return _swept(tile, names, arrays, "columns", _block(arrays["key"].shape[-2], SIDE))

    def _pulled_tile(self, t: Arrays) -> Arrays:
        g, query = _merged(t["g"]), _merged(t["query"])
        s = self.scores(t)
        dp = _grouped(matmul(g, matrix_transpose(t["value"])), t["query"])
        p = exp(s - t["lse"])  # after both products, so that one pass over them makes p and ds
        ds = p * (self.thinned(dp, t) - t["delta"])
        flat = _merged(ds)
        found = {
            "query": _grouped(matmul(flat, t["key"]), t["query"]),
            "key": matmul(matrix_transpose(flat), query),
            "value": matmul(matrix_transpose(_merged(self.thinned(p, t))), g),
        }
        return {**found, "bias": sum_to(ds, t["bias"].shape)} if "bias" in t else found
