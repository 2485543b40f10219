"""The functions that people know from torch.nn.functional, differentiable to any order.

They are plain functions over operations. Where a layout matters, `layout="channels_last"` takes
and gives arrays whose channels are the last axis.
"""

from importlib import import_module
from pkgutil import walk_packages

from pullback.ir.op import REGISTRY

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)

_functions = {e.name: e.function for e in REGISTRY.values() if e.namespace == "nn"}
globals().update(_functions)
__all__ = sorted(_functions)  # pyright: ignore[reportUnsupportedDunderAll]
