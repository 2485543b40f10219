"""Linear algebra: the standard's `linalg` extension, and what SciPy and PyTorch have beside it.

All functions work on batches of matrices in the last two axes, and are differentiable to any order.
"""

from importlib import import_module
from pkgutil import iter_modules

from pullback import primitive
from pullback.core.errors import LinAlgError
from pullback.ir.op import REGISTRY
from pullback.missing_names import missing_name
from pullback.ops.products import matmul, matrix_transpose, outer, tensordot, vecdot

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

_functions = {e.name: e.function for e in REGISTRY.values() if e.namespace == "linalg"}
globals().update(_functions)
for _entry in REGISTRY.values():
    if _entry.namespace == "primitive" and _entry.module.startswith("linalg."):
        setattr(primitive, _entry.name, _entry.function)
_shared = (matmul, matrix_transpose, outer, tensordot, vecdot)  # with the main namespace
__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll]
    [*_functions, LinAlgError.__name__, *[f.__name__ for f in _shared]]
)


def __dir__() -> list[str]:
    return sorted({*__all__, *(n for n in globals() if n.startswith("__"))})


def __getattr__(name: str) -> object:
    raise missing_name("linalg", name, __all__)
