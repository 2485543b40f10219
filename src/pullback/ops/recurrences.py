"""Linear recurrences along an axis, in terms of operations on whole arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.ir.convert import scalar as number
from pullback.ops.movement import broadcast_to, concat, permute_dims, reshape

__all__ = ["along_last", "recurrence", "shifted"]


def along_last(function: Callable[..., Any], axis: int, reverse: bool, *xs: Any) -> Any:
    """`function` of arrays whose running axis is the last one and runs forward."""
    ndim = xs[0]._aval.ndim
    order = (*[d for d in range(ndim) if d != axis], axis)
    moved = [permute_dims(x, order) for x in xs]
    out = function(*[m[..., ::-1] if reverse else m for m in moved])
    inverse = tuple(order.index(d) for d in range(ndim))
    return permute_dims(out[..., ::-1] if reverse else out, inverse)


def shifted(x: Any, first: float) -> Any:
    """The array moved by one place along its last axis, with `first` in front."""
    *lead, n = x._aval.shape
    if n == 0:
        return x
    start = broadcast_to(number(first, x._aval.dtype, x._aval.device), (*lead, 1))
    return concat([start, x[..., : n - 1]], axis=-1)


def recurrence(a: Any, b: Any) -> Any:
    """The sequence `s[i] = a[i] * s[i - 1] + b[i]` along the last axis, from s[-1] = 0.

    Pairs of steps are joined into one, the sequence of half the length is solved, and its gaps are
    filled: O(n) work.
    """
    *lead, n = b._aval.shape
    if n <= 1:
        return b
    if n % 2:
        head = recurrence(a[..., : n - 1], b[..., : n - 1])
        last = a[..., n - 1 :] * head[..., n - 2 :] + b[..., n - 1 :]
        return concat([head, last], axis=-1)
    a0, a1, b0, b1 = a[..., ::2], a[..., 1::2], b[..., ::2], b[..., 1::2]
    odd = recurrence(a0 * a1, a1 * b0 + b1)
    even = a0 * shifted(odd, 0) + b0
    column = (*lead, n // 2, 1)
    return reshape(concat([reshape(even, column), reshape(odd, column)], axis=-1), (*lead, n))
