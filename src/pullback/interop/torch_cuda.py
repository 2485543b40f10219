"""The kernels of `pullback.torch` on CUDA: on torch's memory and torch's current stream.

The CUDA kernels take one index per row. Other forms are brought to it: several index arrays become
one, of positions in the flattened axes.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib import import_module
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pullback.core.errors import DeviceError
from pullback.interop import torch_faults
from pullback.interop.torch_errors import out_of_range
from pullback.interop.torch_plans import planned

__all__ = [
    "carrier",
    "gather",
    "kernels",
    "make_plan",
    "scatter_add",
    "scatter_sum",
]


@cache
def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise DeviceError(
            f"pullback.torch: CUDA tensors need CuPy, got {error}. Install 'pullback[cuda]'."
        ) from None


class _IndexRows(NamedTuple):
    """One index per row, and how many rows of what width there are."""

    places: Tensor
    rows: int
    width: int


def _whole(indices: Sequence[Tensor]) -> tuple[int, ...]:
    """The shape that index arrays broadcast to."""
    if len(indices) == 1:
        return indices[0].shape
    return torch.broadcast_shapes(*[i.shape for i in indices])


def _flattened(indices: Sequence[Tensor], shape: Sequence[int]) -> _IndexRows:
    """The indices as one index per row of an array of `shape`."""
    k = len(indices)
    rest = list(shape[k:])
    whole = _whole(indices)
    lead = len(whole) - len(rest)
    if all(n == 1 for n in whole[lead:]):
        if k == 1:
            return _IndexRows(indices[0].reshape(-1).contiguous(), shape[0], prod(rest))
        target, axes = whole[:lead], [i.reshape(i.shape[:lead]) for i in indices]
    else:  # an index for each element: the rest is indexed too
        target, axes = (*whole[:lead], *rest), list(indices)
        for d, n in enumerate(rest):
            place = torch.arange(n, device=indices[0].device)
            axes.append(place.reshape(-1, *[1] * (len(rest) - 1 - d)))
    sizes = shape[: len(axes)]
    position = _position(axes, sizes).expand(target).reshape(-1).contiguous()
    return _IndexRows(position, prod(sizes), prod(shape[len(axes) :]))


def _position(axes: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Row-major positions; an index out of range gives one that is out of range too."""
    total, bad = torch.zeros((), dtype=torch.int64, device=axes[0].device), None
    for axis, n in zip(axes, sizes, strict=True):
        wide = axis.to(torch.int64)
        outside = (wide < -n) | (wide >= n)
        bad = outside if bad is None else bad | outside
        total = total * n + torch.where(wide < 0, wide + n, wide)
    assert bad is not None
    return torch.where(bad, prod(sizes), total)


# -- the kernels -----------------------------------------------------------------------------------


def kernels() -> Any:
    """Our gather and scatter on CUDA."""
    return _module("pullback.runtime.cuda.scatter")


@lru_cache(256)
def _stream(pointer: int, device: int) -> Any:
    """A stream of torch's for CuPy."""
    return _module("cupy").cuda.ExternalStream(pointer, device)


@contextmanager
def _working_on(device: Any) -> Iterator[Any]:
    """Our kernels, launched on torch's current stream of the device."""
    stream = _stream(torch_faults.launching(device.index).stream, device.index)
    with torch.cuda.device(device.index), stream:
        yield kernels()


def _watch(checked: Any, name: str, indices: Sequence[Tensor], sizes: Sequence[int]) -> None:
    slots, number = checked.words
    line = torch_faults.line_of(checked.device, checked.stream.ptr)
    line.add(slots, number, name, tuple(indices), tuple(sizes))


class _Flags(NamedTuple):
    """Those of a dense array."""

    c_contiguous: bool = True


class _Array:
    """As much of a CuPy array as our kernels ask for, in the memory of a dense tensor."""

    __slots__ = ("dtype", "itemsize", "ptr", "shape", "size", "tensor")
    flags = _Flags()

    def __init__(self, t: Tensor):
        self.tensor, self.ptr = t, t.data_ptr()
        self.dtype, self.shape = carrier(t.dtype), tuple(t.shape)
        self.itemsize, self.size = self.dtype.itemsize, t.numel()

    @property
    def data(self) -> _Array:
        return self


@cache
def carrier(dtype: torch.dtype) -> np.dtype:
    """NumPy's dtype for a tensor's elements, or for their bits."""
    name = str(dtype).removeprefix("torch.")
    return np.dtype("uint16" if name == "bfloat16" else name)


def _shared(t: Tensor) -> Any:
    """The memory of a dense tensor as a CuPy array, which keeps it alive."""
    cupy = _module("cupy")
    memory = cupy.cuda.UnownedMemory(t.data_ptr(), t.numel() * t.itemsize, t, t.device.index)
    return cupy.ndarray(tuple(t.shape), carrier(t.dtype), cupy.cuda.MemoryPointer(memory, 0))


def _checked_sizes(name: str, indices: Sequence[Tensor], sizes: Sequence[int]) -> None:
    """No index is right where an axis is empty."""
    if 0 in sizes and all(i.numel() for i in indices):
        raise out_of_range(name, indices, sizes)


def gather(x: Tensor, indices: Sequence[Tensor], plan: Tensor | None, name: str) -> Tensor:
    """`x` read at the positions given: the form of `pullback.primitive.gather`."""
    rest, sizes = tuple(x.shape[len(indices) :]), x.shape[: len(indices)]
    whole = _whole(indices)
    out = x.new_empty((*whole[: len(whole) - len(rest)], *rest))
    if out.numel() == 0:
        return out
    _checked_sizes(name, indices, sizes)
    with _working_on(x.device) as kernels:
        index, rows, width = _flattened(indices, x.shape)
        table = x.contiguous().view(rows, width)
        checked = kernels.gather(*map(_Array, (table, index, out.view(-1, width))))
        _watch(checked, name, indices, sizes)
    return out


def _added(
    out: Tensor, updates: Tensor, indices: Sequence[Tensor], plan: Tensor | None, name: str
) -> Tensor:
    if updates.numel() == 0:
        return out
    sizes = out.shape[: len(indices)]
    _checked_sizes(name, indices, sizes)
    with _working_on(out.device) as kernels:
        index, rows, width = _flattened(indices, out.shape)
        values = updates.reshape(-1, width).contiguous()
        checked = kernels.scatter_add(
            *map(_Array, (index, values, out.view(rows, width))),
            plan=None if plan is None else planned(plan),
            dtype="bfloat16" if out.dtype is torch.bfloat16 else None,
        )
        _watch(checked, name, indices, sizes)
    return out


def scatter_add(
    x: Tensor, updates: Tensor, indices: Sequence[Tensor], plan: Tensor | None, name: str
) -> Tensor:
    """`x` with the updates added: the form of `pullback.primitive.scatter_add`."""
    out = x.new_empty(x.shape).copy_(x)
    return _added(out, updates, indices, plan, name)


def scatter_sum(
    updates: Tensor, indices: Sequence[Tensor], shape: Sequence[int], plan: Tensor | None, name: str
) -> Tensor:
    """The updates added into zeros of the given shape."""
    return _added(updates.new_zeros(tuple(shape)), updates, indices, plan, name)


def make_plan(indices: Tensor, size: int) -> Any:
    """The CUDA plan of indices into `size` rows."""
    with _working_on(indices.device) as kernels:
        return kernels.make_plan(_shared(indices.reshape(-1)), size)
