"""Reads of a device's tensors, as PyTorch's dispatcher sees them.

Values leave a device by few operators: `item`, the forms of `to` that name a device, and `copy_`.
They are overridden where a call comes from outside, so that the copies and casts in PyTorch's own
kernels stay what they are.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

__all__ = ["call_after_reads"]

_aten = torch.ops.aten
_Key = torch._C.DispatchKey

# The operator, the key of PyTorch's own kernel, and the keys to override. The second of two is for
# calls without autograd: in inference mode, and from kernels. `copy_` is left alone there, since
# every clone and cast ends in one.
_OVERRIDES = (
    (_aten.item.default, _Key.CompositeImplicitAutograd, ("Autograd{}", "{}")),
    (_aten.to.device, _Key.CompositeImplicitAutograd, ("Autograd{}", "{}")),
    (_aten.to.dtype_layout, _Key.CompositeImplicitAutograd, ("Autograd{}", "{}")),
    (_aten.to.other, _Key.CompositeImplicitAutograd, ("Autograd{}", "{}")),
    (_aten.copy_.default, _Key.Autograd, ("Autograd{}",)),
)


def call_after_reads(action: Callable[[], None], device: str = "CUDA") -> Any:
    """Have `action` called whenever values of a device's tensor have been read or copied elsewhere.

    That lasts as long as the library that is returned. A copy with `non_blocking=True` counts when
    it is enqueued.
    """
    library = torch.library.Library("aten", "IMPL")
    for operator, own, keys in _OVERRIDES:
        # This way of calling a kernel lets other threads run while it waits for the device.
        kernel = partial(operator._op_dk, own)
        for key in keys:
            override = _followed(kernel, action)
            library.impl(operator, override, key.format(device), allow_override=True)
    return library


def _followed(kernel: Callable[..., Any], action: Callable[[], None]) -> Callable[..., Any]:
    @torch.compiler.disable  # or a read between two compiled graphs would be compiled itself
    def read(*args: Any, **kwargs: Any) -> Any:
        result = kernel(*args, **kwargs)
        if not _is_on_device(result) and not _is_traced(args[0]):
            action()
        return result

    return read


def _is_on_device(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_cuda


def _is_traced(value: Any) -> bool:
    """Whether a tensor has no values of its own, as when a function is compiled."""
    return isinstance(value, Tensor) and torch._C._dispatch_keys(value).has(_Key.Python)
