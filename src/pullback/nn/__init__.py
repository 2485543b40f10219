"""The functions that people know from torch.nn.functional, differentiable to any order.

They are plain functions over operations. Where a layout matters, `layout="channels_last"` takes
and gives arrays whose channels are the last axis.
"""

from importlib import import_module
from pkgutil import iter_modules

from pullback.ir.op import REGISTRY

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

_functions = {e.name: e.function for e in REGISTRY.values() if e.namespace == "nn"}
globals().update(_functions)
__all__ = sorted(_functions)  # pyright: ignore[reportUnsupportedDunderAll]
