"""Rows of a CUDA tensor by one dense index: the most common case, with as little Python as can be.

What follows from shapes and dtypes is looked up, once a call, and no operator of PyTorch's
dispatcher is called but those that allocate. What is not as plain as that is left to
`torch_operators`: second derivatives, transforms, forward mode, traces.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from pullback.interop import torch_cuda, torch_faults, torch_operators
from pullback.interop.torch_operators import Padding

__all__ = ["rows"]

INDICES = frozenset(
    getattr(torch, name) for name in ("int8", "int16", "int32", "int64", "uint8")
)  # whose tensors PyTorch's own operators take, should they be asked
MOST_KINDS = 4096  # of calls that are remembered; each has a number's memory on the device
VECTOR = 16  # bytes that a thread moves at a time, where memory starts at a multiple

# What a call asks, by names that are found without looking into modules.
device_of: Callable[[Tensor], int] = Tensor.get_device  # -1: none
_are_transforms_active = torch._C._are_functorch_transforms_active
_count_of_modes = torch._C._len_torch_dispatch_stack
_is_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling
_empty_like = torch.empty_like

_Launch = Callable[[tuple[int, ...], int], None]


class _ReadAndAdd:
    """Reading rows by indices, and adding rows to zeros, for one kind of table and of indices."""

    def __init__(self, name: str, x: Tensor, places: Tensor):
        self.name, self.device, self.sizes = name, device_of(x), x.shape[:1]
        self.table, self.result = x.shape, torch.Size((*places.shape, *x.shape[1:]))
        self._dtypes, self._count = (x.dtype, places.dtype), places.numel()
        self.is_complex, self.size = x.is_complex(), self.result.numel()
        # What is like a tensor takes half as long to make as what has a shape. It is one number.
        number = x.detach().new_empty(())
        self._like_table, self._like_result = number.expand(self.table), number.expand(self.result)
        assert _empty_like(self._like_table).is_contiguous()
        self._reads, self._adds = cache(self._reading), cache(self._adding)

    def _reading(self, unit: int) -> _Launch:
        """What reads rows at multiples of `unit` bytes."""
        dtype, index = self._dtypes
        row_bytes = prod(self.table[1:]) * dtype.itemsize
        given = row_bytes, torch_cuda.carrier(index).name, self._count, self.table[0]
        return torch_cuda.kernels().reading(*given, unit, self.device).launch

    def _adding(self, vectors: bool) -> _Launch:
        """What adds rows to zeros."""
        dtype, index = self._dtypes
        width = prod(self.table[1:])
        name = "bfloat16" if dtype is torch.bfloat16 else None
        shapes = (self._count, width), (self.table[0], width)
        given = torch_cuda.carrier(index), self._count, torch_cuda.carrier(dtype), shapes, name
        return torch_cuda.kernels().adding(*given, vectors, self.device).launch

    def read(self, value: int, index: int, places: Tensor) -> Tensor:
        """The rows at dense indices of a table, whose memory starts at `index` and at `value`."""
        line = torch_faults.launching(self.device)
        out = _empty_like(self._like_result)
        result = out.data_ptr()
        start = value | result
        launch = self._reads(start & -start if start % VECTOR else VECTOR)
        slot = line.slot(self.name, (places,), self.sizes)
        launch((index, value, result, 0, slot), line.stream)
        return out

    def add(self, updates: Tensor, places: Tensor) -> Tensor | None:
        """Zeros like the table, with updates added at indices that were read before; None if these
        are zeros that PyTorch only knows of.
        """
        updates = updates.contiguous()
        index, value = places.data_ptr(), updates.data_ptr()
        if not value:
            return None
        line = torch_faults.launching(self.device)
        out = _empty_like(self._like_table)
        result = out.data_ptr()
        launch = self._adds((value | result) % VECTOR == 0)
        aligned = 3
        if (index | value) % VECTOR:
            aligned = (index % VECTOR == 0) + 2 * (value % VECTOR == 0)
        # nobody looks at these words: the call that read has reported bad indices
        launch((index, value, result, aligned, line.own_slot()), line.stream)
        return out


_known: dict[tuple, _ReadAndAdd] = {}


def _met_first(key: tuple, x: Tensor, places: Tensor) -> _ReadAndAdd | None:
    """What a kind of call needs; None if it is not one for this module."""
    name, shape = key[:2]
    if places.dtype not in INDICES:
        return None
    if x.numel() == 0 or places.numel() == 0 or len(shape) == 0:
        return None
    if name == "embedding" and len(shape) != 2:
        return None
    if len(_known) >= MOST_KINDS:
        _known.clear()
    found = _known[key] = _ReadAndAdd(name, x, places)
    return found


class _TorchRows(torch.autograd.Function):
    """The rows of x, whose gradient is a sum; the derivatives of that are the operators'."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: tuple[_ReadAndAdd, int, int, Tensor, Padding]) -> Tensor:
        work, value, index, places, padding = call
        ctx.save_for_backward(places)
        ctx.call = work, padding
        return work.read(value, index, places)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        (places,) = ctx.saved_tensors
        work, padding = ctx.call
        found = None
        if (
            grad.__class__ is Tensor
            and not _is_grad_enabled()
            and not _are_transforms_active()
            and not _count_of_modes()
            and device_of(grad) == work.device
            and grad.numel() == work.size
            and not (grad.is_neg() or (work.is_complex and grad.is_conj()))
        ):
            found = work.add(grad, places)
        if found is None:
            aligned = places[(..., *[None] * (len(work.table) - 1))]
            found = torch_operators.scatter_sum(grad, [aligned], tuple(work.table), None, work.name)
        if padding is not None:
            found = torch_operators.without_row(found, padding)
        return found, None


# What `_TorchRows.apply` comes to where no transform of torch.func is active, and what the engine
# calls comes to where a Function has no `vjp`.
_applied: Callable[..., Tensor] = super(torch.autograd.Function, _TorchRows).apply
_TorchRows._backward_cls.apply = _TorchRows.backward


def rows(x: Any, places: Any, padding: Padding, name: str) -> Tensor | None:
    """The rows of x at places; None if that is not a case for this module."""
    if (
        (x.__class__ is not Parameter and x.__class__ is not Tensor)
        or places.__class__ is not Tensor
        or _is_compiling()
        or (device := device_of(x)) < 0
        or device_of(places) != device
        or _are_transforms_active()
        or _count_of_modes()
        or forward_ad._current_level >= 0
        or not (x.is_contiguous() and places.is_contiguous())
        or x.is_neg()
    ):
        return None
    key = name, x.shape, x.dtype, places.shape, places.dtype, device
    work = _known.get(key) or _met_first(key, x, places)
    if work is None or (work.is_complex and x.is_conj()):
        return None
    try:
        value = x.data_ptr()
        index = places.data_ptr()
    except RuntimeError:  # what a transform of torch.func has left behind has no memory
        return None
    if not (value and index):  # nor have zeros that PyTorch only knows of
        return None
    if x.requires_grad and _is_grad_enabled():
        return _applied(x, (work, value, index, places, padding))
    return work.read(value, index, places)
