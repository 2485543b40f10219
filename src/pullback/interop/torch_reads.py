"""Reading a CUDA tensor of PyTorch, as an occasion to raise what launches before it have found."""
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from pullback.interop.torch_cuda import check

__all__ = ["checked_reads"]

_READS = frozenset(
    getattr(Tensor, name)
    for name in (
        *("item", "tolist", "numpy", "__array__", "__repr__", "__format__"),
        *("__bool__", "__int__", "__float__", "__complex__", "__index__"),
    )
)
_COPIES = frozenset((Tensor.cpu, Tensor.to, Tensor.copy_))


def checked_reads() -> TorchFunctionMode:
    """In `with checked_reads():` a CUDA tensor that is read raises the `IndexError` of a bad index.

    Reading is `item()`, `tolist()`, a copy to the host, printing, and use as a number or as a
    condition. Every call of PyTorch goes through Python for that, some microseconds; without it
    `check()` does the same when it is called.
    """
    return _CheckedReads()


class _CheckedReads(TorchFunctionMode):
    """Looks at the result of every function of PyTorch."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        left = func in _READS or (func in _COPIES and not _is_on_device(result))
        if left and any(map(_is_on_device, args)):
            check()
        return result


def _is_on_device(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_cuda
