"""Gradients kept within bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.core import pytrees
from pullback.core.dtypes import promote
from pullback.core.errors import DTypeError
from pullback.ir.array import Array
from pullback.ops.arithmetic import abs as absolute
from pullback.ops.arrangement import stack
from pullback.ops.exponential import sqrt
from pullback.ops.parts import astype
from pullback.ops.selection import clip, minimum, where
from pullback.optim.base import as_like, as_real, checked

__all__ = ["clip_grad_norm", "clip_grad_value", "global_norm"]


def _arrays(name: str, grads: Any) -> list[Any]:
    leaves = pytrees.Parameters(grads).leaves
    for g in leaves:
        if not isinstance(g, Array) or not g._aval.dtype.is_inexact:
            raise DTypeError(f"{name}: gradients must be floating arrays, got {g!r}.")
    if not leaves:
        raise DTypeError(f"{name}: there are no gradients in the tree, got {grads!r}.")
    return leaves


def global_norm(grads: Any, norm_type: float = 2.0) -> Any:
    """The norm of all gradients taken as one vector; `norm_type` may be inf.

    >>> pb.optim.global_norm([pb.tensor([3.0]), pb.tensor(4.0)])
    tensor(5., float32, cpu)
    """
    checked("global_norm: norm_type", norm_type, 1.0)
    leaves = _arrays("global_norm", grads)
    dtype = leaves[0]._aval.dtype.real
    for g in leaves[1:]:
        dtype = promote(dtype, g._aval.dtype.real)
    sizes = [astype(absolute(g), dtype) for g in leaves if g._aval.size]
    if not sizes:
        return astype(absolute(leaves[0]).sum(), dtype)
    if norm_type == np.inf:
        return stack([s.max() for s in sizes]).max()
    if norm_type != 2.0:
        return stack([(s**norm_type).sum() for s in sizes]).sum() ** (1.0 / norm_type)
    total = stack([(s * s).sum() for s in sizes]).sum()
    some = total > 0.0  # the root has no slope at 0, the norm has the slope 0 there
    return where(some, sqrt(where(some, total, 1.0)), total)


def clip_grad_norm(grads: Any, max_norm: float, norm_type: float = 2.0) -> tuple[Any, Any]:
    """The gradients, scaled so that their common norm is at most `max_norm`, and the norm they had.

    >>> pb.optim.clip_grad_norm([pb.tensor([3.0]), pb.tensor([4.0])], 1.0)[1]
    tensor(5., float32, cpu)
    """
    checked("clip_grad_norm: max_norm", max_norm, 0.0)
    _arrays("clip_grad_norm", grads)
    norm = global_norm(grads, norm_type)
    factor = minimum(max_norm / (norm + 1e-6), 1.0)
    chosen = pytrees.Parameters(grads)
    return chosen.mapped(lambda g: g * astype(factor, g._aval.dtype.real)), norm


def clip_grad_value(grads: Any, clip_value: float) -> Any:
    """The gradients with every entry (real and imaginary parts too) within +-`clip_value`.

    >>> pb.optim.clip_grad_value(pb.tensor([-3.0, 0.5]), 1.0)
    tensor([-1. ,  0.5], float32, cpu)
    """
    checked("clip_grad_value: clip_value", clip_value, 0.0)
    _arrays("clip_grad_value", grads)
    chosen = pytrees.Parameters(grads)
    return chosen.mapped(lambda g: as_like(clip(as_real(g), -clip_value, clip_value), g))
