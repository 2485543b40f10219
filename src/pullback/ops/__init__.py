"""Every operation, one block each. Importing this package imports each of its files and so fills
the registry.
"""

from importlib import import_module
from pkgutil import iter_modules

from pullback.core.collector import paused_collector

with paused_collector():
    for _module in iter_modules(__path__):
        import_module(f"{__name__}.{_module.name}")
