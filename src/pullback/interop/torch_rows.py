"""Rows of a CUDA tensor by one dense index: the most common case, with as little Python as can be.

Nothing is brought to another form, and no operator of PyTorch's dispatcher is called but those that
allocate. What is not as plain as that is left to `torch_operators`.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from pullback.interop import torch_cuda, torch_operators
from pullback.interop.torch_operators import Padding

__all__ = ["is_plain", "rows"]

INDICES = frozenset(
    getattr(torch, name) for name in ("int8", "int16", "int32", "int64", "uint8")
)  # whose tensors PyTorch's own operators take, should they be asked


class _TorchRows(torch.autograd.Function):
    """The rows of x, whose gradient is a sum; the derivatives of that are the operators'."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, padding: Padding, name: str) -> Tensor:
        ctx.save_for_backward(places)
        ctx.call = x.shape, padding, name
        return torch_cuda.read_rows(x, places, name, True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        (places,) = ctx.saved_tensors
        shape, padding, name = ctx.call
        if torch.is_grad_enabled() or not _is_dense(grad):
            aligned = places[(..., *[None] * (len(shape) - 1))]
            found = torch_operators.scatter_sum(grad, [aligned], tuple(shape), None, name)
        else:
            found = torch_cuda.add_rows(grad, places, shape)
        if padding is not None:
            found = torch_operators.without_row(found, padding)
        return found, None, None, None


# What `_TorchRows.apply` comes to where no transform of torch.func is active: it takes what
# transforms that have ended left behind out of its wrapping.
_applied, _alive = (
    super(torch.autograd.Function, _TorchRows).apply,
    torch._C._functorch.unwrap_if_dead,
)


def is_on_gpu(x: Tensor) -> bool:
    """Whether a tensor is on CUDA."""
    return x.is_cuda


def _is_dense(x: Tensor) -> bool:
    """Whether the memory of a tensor has its values, and nobody looks on."""
    return (
        (x.__class__ is Tensor or x.__class__ is Parameter)
        and not torch.compiler.is_compiling()
        and is_on_gpu(x)
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
        and not (x.is_neg() or x.is_conj() or x._is_zerotensor())
    )


def is_plain(x: Any, places: Any) -> bool:
    """Whether rows of x at places are a case for this module."""
    return (
        places.__class__ is Tensor
        and _is_dense(x)
        and forward_ad._current_level < 0
        and places.dtype in INDICES
        and places.is_contiguous()
        and x.get_device() == places.get_device()
        and x.numel() > 0
        and places.numel() > 0
    )


def rows(x: Tensor, places: Tensor, padding: Padding, name: str) -> Tensor:
    """The rows of x at places of which `is_plain` holds."""
    x = x.contiguous()
    if x.requires_grad and torch.is_grad_enabled():
        return _applied(_alive(x), _alive(places), padding, name)
    return torch_cuda.read_rows(x, places, name, False)
