"""The kernels of `pullback.torch` on the CPU: torch's memory seen by our operations, and back.

Nothing is copied on the way in, whatever the strides, and nothing on the way out.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from pullback.ir.op import bind
from pullback.ops.creation import constant
from pullback.ops.gather_scatter import gather as gather_rows
from pullback.ops.gather_scatter import scatter_add as scatter_rows
from pullback.ops.index_plans import scatter_plan
from pullback.ops.indexing import take
from pullback.ops.scattering import scatter_add as scatter_along
from pullback.runtime.cpu import native

__all__ = ["DTYPES", "gather", "make_plan", "scatter_add", "scatter_sum"]

DTYPES: dict[Any, DType] = {getattr(torch, d.name): d for d in dt.ALL}
_TORCH = {ours: theirs for theirs, ours in DTYPES.items()}


def _shared(t: Tensor) -> Any:
    """Our array on the memory of a torch tensor, which it keeps alive."""
    shape, strides = tuple(t.shape), t.stride()
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    nbytes = (last + 1) * t.itemsize if t.numel() else 0
    buf = native.wrap(t.data_ptr(), nbytes, t)
    return make(buf, aval(shape, DTYPES[t.dtype], device("cpu"), strides))


def _exported(x: Any) -> Tensor:
    """A torch tensor on the memory of our array, which nobody else holds."""
    dtype = _TORCH[x._aval.dtype]
    if x._aval.size == 0:
        return torch.empty(x._aval.shape, dtype=dtype)
    return torch.frombuffer(x._buf, dtype=dtype, count=x._aval.size).view(x._aval.shape)


def _run(
    name: str,
    work: Callable[..., Any],
    arrays: Sequence[Any],
    indices: Sequence[Tensor],
    shape: Any,
) -> Tensor:
    try:
        return _exported(work(*arrays))
    except IndexOutOfRange:
        raise out_of_range(name, indices, shape[: len(indices)]) from None


def gather(x: Tensor, indices: Sequence[Tensor], plan: Tensor | None, name: str) -> Tensor:
    """`x` read at the positions given: the form of `pullback.primitive.gather`."""
    if plan is not None:
        return _run(name, take, [_shared(x), planned(plan), 0], indices, x.shape)
    arrays = [gather_rows.op, _shared(x), *map(_shared, indices)]
    return _run(name, bind, arrays, indices, x.shape)


def scatter_add(
    x: Tensor, updates: Tensor, indices: Sequence[Tensor], plan: Tensor | None, name: str
) -> Tensor:
    """`x` with the updates added: the form of `pullback.primitive.scatter_add`."""
    return _scattered(_shared(x), updates, indices, plan, name)


def scatter_sum(
    updates: Tensor, indices: Sequence[Tensor], shape: Sequence[int], plan: Tensor | None, name: str
) -> Tensor:
    """The updates added into zeros of the given shape."""
    zeros = constant(0, tuple(shape), DTYPES[updates.dtype], device("cpu"))
    return _scattered(zeros, updates, indices, plan, name)


def _scattered(
    x: Any, updates: Tensor, indices: Sequence[Tensor], plan: Tensor | None, name: str
) -> Tensor:
    shape = x._aval.shape
    if plan is not None:
        return _run(name, scatter_along, [x, planned(plan), _shared(updates)], indices, shape)
    arrays = [scatter_rows.op, x, _shared(updates), *map(_shared, indices)]
    return _run(name, bind, arrays, indices, shape)


def make_plan(indices: Tensor, size: int) -> Any:
    """Our plan of indices into `size` elements."""
    return scatter_plan(_shared(indices), size)
