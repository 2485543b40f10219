"""The functions that people know from torch.nn.functional, differentiable to any order, and layers.

Functions are plain functions over operations; a layer is one of them with its parameters. Where a
layout matters, `layout="channels_last"` takes and gives arrays whose channels are the last axis.
"""

from importlib import import_module
from pkgutil import iter_modules

from pullback.ir.op import REGISTRY
from pullback.missing_names import missing_name

_MADE_OF_FUNCTIONS = ("init", "layers")  # imported when all functions are in the registry

for _module in iter_modules(__path__):
    if _module.name not in _MADE_OF_FUNCTIONS:
        _home = import_module(f"{__name__}.{_module.name}")
        for _part in iter_modules(_home.__path__) if _module.ispkg else ():
            import_module(f"{_home.__name__}.{_part.name}")

_public = {e.name: e.function for e in REGISTRY.values() if e.namespace == "nn"}
_public |= {name: import_module(f"{__name__}.{name}") for name in ("init",)}
_layers = import_module(f"{__name__}.layers")
_public |= {name: vars(_layers)[name] for name in _layers.__all__}
globals().update(_public)
__all__ = sorted(_public)  # pyright: ignore[reportUnsupportedDunderAll]


def __dir__() -> list[str]:
    return sorted({*__all__, *(n for n in globals() if n.startswith("__"))})


def __getattr__(name: str) -> object:
    raise missing_name("nn", name, __all__)
