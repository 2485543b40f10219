"""Many examples of a batch of images at once: as one larger batch, or as groups of channels.

Operands have an axis of examples in front, of size 1 where all examples share the operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pullback.ir.op import bind
from pullback.ops.movement import permute_dims, repeated, reshape

__all__ = ["batches", "groups"]


def batches(op: Any, *operands: Any, shared: Sequence[Any] = (), **static: Any) -> Any:
    """`op` on operands with examples of batches, as one batch; the `shared` ones have none."""
    examples = max(x._aval.shape[0] for x in operands)
    flat = []
    for x in operands:
        x = repeated(x, examples)
        shape = x._aval.shape
        flat.append(bind(reshape.op, x, shape=(examples * shape[1], *shape[2:])))
    flat += [bind(reshape.op, x, shape=x._aval.shape[1:]) for x in shared]
    batch = operands[0]._aval.shape[1]
    out = bind(op, *flat, **static)
    return bind(reshape.op, out, shape=(examples, batch, *out._aval.shape[1:]))


def groups(
    op: Any, operands: Sequence[Any], axes: Sequence[int], window: Any, examples: int, **static: Any
) -> Any:
    """A convolution in which each example has groups of channels of its own.

    `axes` are those of the channels in an example of each operand, then of the result.
    """
    a, b = (_joined(x, examples, d) for x, d in zip(operands, axes[:2], strict=True))
    wide = window._replace(groups=window.groups * examples)
    return _split(bind(op, a, b, window=wide, **static), examples, axes[2])


def _joined(x: Any, examples: int, axis: int) -> Any:
    """The axis of examples as a part of `axis` of an example."""
    x = repeated(x, examples)
    order = (*range(1, axis + 1), 0, *range(axis + 1, x._aval.ndim))
    moved = bind(permute_dims.op, x, axes=order)
    shape = moved._aval.shape
    joined = (*shape[:axis], examples * shape[axis + 1], *shape[axis + 2 :])
    return bind(reshape.op, moved, shape=joined)


def _split(x: Any, examples: int, axis: int) -> Any:
    """The inverse of `_joined`."""
    shape = x._aval.shape
    apart = (*shape[:axis], examples, shape[axis] // examples, *shape[axis + 1 :])
    x = bind(reshape.op, x, shape=apart)
    return bind(permute_dims.op, x, axes=(axis, *range(axis), *range(axis + 1, len(apart))))
