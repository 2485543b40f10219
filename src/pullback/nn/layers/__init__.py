"""Layers: the functions of `pb.nn` together with their parameters, under PyTorch's names.

Attributes are called as PyTorch calls them too, so that its files load by name. What draws numbers
takes a key, when it is made and when it is called; training is an argument of the call.
"""

from importlib import import_module
from pkgutil import iter_modules

from pullback.module import Module

_layers: dict[str, type[Module]] = {}
for _entry in iter_modules(__path__):
    _module = import_module(f"{__name__}.{_entry.name}")
    for _name in _module.__all__:
        _value = getattr(_module, _name)
        if isinstance(_value, type) and issubclass(_value, Module):
            _layers[_name] = _value
globals().update(_layers)
__all__ = sorted(_layers)  # pyright: ignore[reportUnsupportedDunderAll]
