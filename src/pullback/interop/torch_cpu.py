"""The kernels of `pullback.torch` on the CPU: torch's memory seen by our operations, and back.

Nothing is copied on the way in, whatever the strides, and nothing on the way out.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pullback.core import dtypes as dt
from pullback.core.avals import aval, device
from pullback.core.dtypes import DType
from pullback.core.errors import IndexOutOfRange
from pullback.interop.torch_errors import out_of_range
from pullback.interop.torch_plans import planned
from pullback.ir.array import make
from pullback.ir.op import Op, bind
from pullback.ops.creation import constant
from pullback.ops.gather_scatter import gather as gather_rows
from pullback.ops.gather_scatter import scatter_add as scatter_rows
from pullback.ops.index_plans import scatter_plan
from pullback.runtime.cpu import native

__all__ = ["DTYPES", "gather", "make_plan", "scatter_add", "scatter_sum"]

DTYPES: dict[Any, DType] = {getattr(torch, d.name): d for d in dt.ALL}
_TORCH = {ours: theirs for theirs, ours in DTYPES.items()}


_CPU = device("cpu")


def _shared(t: Tensor) -> Any:
    """Our array on the memory of a torch tensor, which it keeps alive."""
    shape, strides = tuple(t.shape), t.stride()
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    nbytes = (last + 1) * t.itemsize if t.numel() else 0
    buf = native.wrap(t.data_ptr(), nbytes, t)
    return make(buf, aval(shape, DTYPES[t.dtype], _CPU, strides))


def _exported(x: Any) -> Tensor:
    """A torch tensor on the memory of our array, which nobody else holds."""
    dtype, shape = _TORCH[x._aval.dtype], x._aval.shape
    if x._aval.size == 0:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(x._buf, dtype=dtype, count=x._aval.size)
    return flat if len(shape) == 1 else flat.view(shape)


def _places(indices: Sequence[Tensor], plan: Tensor | None, rest: int) -> list[Any]:
    """Our index arrays; that of a plan has the buffer it is found by, and `rest` more axes."""
    if plan is None:
        return [_shared(i) for i in indices]
    own = planned(plan).indices
    return [make(own._buf, aval((*own._aval.shape, *[1] * rest), own._aval.dtype, _CPU))]


def _run(
    name: str, op: Op, arrays: Sequence[Any], indices: Sequence[Tensor], shape: Sequence[int]
) -> Tensor:
    try:
        return _exported(bind(op, *arrays))
    except IndexOutOfRange:
        raise out_of_range(name, indices, shape[: len(indices)]) from None


def gather(x: Tensor, indices: Sequence[Tensor], plan: Tensor | None, name: str) -> Tensor:
    """`x` read at the positions given: the form of `pullback.primitive.gather`."""
    arrays = [_shared(x), *_places(indices, plan, x.ndim - 1)]
    return _run(name, gather_rows.op, arrays, indices, x.shape)


def scatter_add(
    x: Tensor, updates: Tensor, indices: Sequence[Tensor], plan: Tensor | None, name: str
) -> Tensor:
    """`x` with the updates added: the form of `pullback.primitive.scatter_add`."""
    return _scattered(_shared(x), updates, indices, plan, name)


def scatter_sum(
    updates: Tensor, indices: Sequence[Tensor], shape: Sequence[int], plan: Tensor | None, name: str
) -> Tensor:
    """The updates added into zeros of the given shape."""
    return _scattered(_zeros(tuple(shape), updates.dtype), updates, indices, plan, name)


@lru_cache(maxsize=256)
def _zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    """Zeros, which take no memory."""
    return constant(0, shape, DTYPES[dtype], _CPU)


def _scattered(
    x: Any, updates: Tensor, indices: Sequence[Tensor], plan: Tensor | None, name: str
) -> Tensor:
    arrays = [x, _shared(updates), *_places(indices, plan, x._aval.ndim - 1)]
    return _run(name, scatter_rows.op, arrays, indices, x._aval.shape)


def make_plan(indices: Tensor, size: int) -> Any:
    """Our plan of indices into `size` elements."""
    return scatter_plan(_shared(indices), size)
