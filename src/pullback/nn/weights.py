"""Weights brought to a given length, or to spectral norm 1."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pullback.core.errors import ShapeError
from pullback.ir.convert import from_numpy
from pullback.ir.samples import Bad, Sample
from pullback.nn.arguments import detached, inexact
from pullback.nn.standardising import (
    squared,
    widened,
)
from pullback.ops.exponential import sqrt
from pullback.ops.families import composite, normalise_axis
from pullback.ops.movement import permute_dims, reshape
from pullback.ops.parts import astype, real
from pullback.ops.selection import where

__all__ = ["spectral_norm", "weight_norm"]


def _weight_oracle(v, g, dim=0):
    axes = None if dim is None else tuple(d for d in range(v.ndim) if d != dim % v.ndim)
    return g * v / np.sqrt((np.abs(v) ** 2).sum(axes, keepdims=True))


@composite(
    oracle=_weight_oracle,
    samples=lambda d: [
        Sample((d.real(3, 2), d.real(3, 1))),
        Sample((d.real(3, 2, 2), d.real(1, 2, 1), -2)),
        Sample((d.real(2, 3), d.real(1, 1)), {"dim": None}),
    ],
    errors=lambda d: [
        Bad((d.real(3, 2), d.real(2)), {}, ShapeError, "g must have shape"),
        Bad((d.real(3, 2), d.real(3, 1), 2), {}, ShapeError, "axis 2"),
    ],
    namespace="nn",
)
def weight_norm(v: Any, g: Any, dim: int | None = 0) -> Any:
    """`g * v / norm(v)`, with one norm for each place along `dim`, or one in all if None.

    >>> pb.nn.weight_norm(pb.tensor([[3.0, 4.0]]), pb.tensor([[10.0]]))
    tensor([[6., 8.]], float32, cpu)
    """
    v, g = inexact("weight_norm", v, g)
    kept = None if dim is None else normalise_axis("weight_norm", dim, v._aval.ndim)
    shape = tuple(n if d == kept else 1 for d, n in enumerate(v._aval.shape))
    if g._aval.shape != shape:
        raise ShapeError(f"weight_norm: g must have shape {shape}, got {g._aval.shape}.")
    axes = tuple(d for d in range(v._aval.ndim) if d != kept)
    wide = widened(v)
    length = sqrt(squared(wide).sum(axis=axes, keepdims=True))
    return astype(astype(g, wide._aval.dtype) * wide / length, v._aval.dtype)


class Spectral(NamedTuple):
    """A weight of spectral norm about 1, and the vector that the next call starts from."""

    weight: Any
    u: Any


def _spectral_oracle(weight, u=None, n_power_iterations=1, dim=0, eps=1e-12):
    rows = np.moveaxis(weight, dim, 0).reshape(weight.shape[dim], -1)
    u = np.ones(len(rows), weight.dtype) / np.sqrt(len(rows)) if u is None else u
    v = rows.conj().T @ u
    v = v / np.linalg.norm(v)
    for _ in range(n_power_iterations):
        u = rows @ v
        u = u / np.linalg.norm(u)
        v = rows.conj().T @ u
        v = v / np.linalg.norm(v)
    return weight / (u.conj() @ rows @ v).real, u


def _unit(x: Any, eps: float) -> Any:
    length = sqrt(squared(x).sum())
    return x / where(length > eps, length, eps)


@composite(
    oracle=_spectral_oracle,
    # u and v are constants of the derivative, as in the method; finite differences see them move.
    samples=lambda d: [
        Sample((d.real(3, 2),), order=0),
        Sample((d.real(3, 2, 2), d.real(2)), {"n_power_iterations": 3, "dim": 1}, order=0),
    ],
    errors=lambda d: [
        Bad((d.real(3),), {}, ShapeError, "two axes"),
        Bad((d.real(3, 2), d.real(2)), {}, ShapeError, "u must have shape"),
    ],
    namespace="nn",
)
def spectral_norm(
    weight: Any, u: Any = None, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12
) -> Any:
    """The weight over its largest singular value, which power iterations estimate from `u`.

    >>> pb.nn.spectral_norm(pb.tensor([[2.0, 0.0], [0.0, 1.0]]), pb.tensor([1.0, 0.0])).weight
    tensor([[1. , 0. ],
            [0. , 0.5]], float32, cpu)

    The result is (weight, u); give the new u to the next call. Singular vectors are constants in
    the derivative.
    """
    (w,) = inexact("spectral_norm", weight)
    if w._aval.ndim < 2:
        raise ShapeError(f"spectral_norm: needs at least two axes, got shape {w._aval.shape}.")
    axis = normalise_axis("spectral_norm", dim, w._aval.ndim)
    order = (axis, *[d for d in range(w._aval.ndim) if d != axis])
    n = w._aval.shape[axis]
    rows = reshape(permute_dims(w, order), (n, -1))
    if u is None:
        u = from_numpy(np.full(n, n**-0.5, rows._aval.dtype.numpy), w._aval.device)
    (u,) = inexact("spectral_norm", u)
    if u._aval.shape != (n,):
        raise ShapeError(f"spectral_norm: u must have shape ({n},), got {u._aval.shape}.")
    fixed, u = detached(rows), detached(astype(u, rows._aval.dtype))
    v = _unit(fixed.conj().mT @ u, eps)
    for _ in range(n_power_iterations):
        u = _unit(fixed @ v, eps)
        v = _unit(fixed.conj().mT @ u, eps)
    sigma = real((u.conj() * (rows @ v)).sum()) if w._aval.dtype.is_complex else u @ (rows @ v)
    return Spectral(w / sigma, u)
