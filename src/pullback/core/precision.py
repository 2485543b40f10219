"""How precise products of matrices are where a device has faster units for less."""

from __future__ import annotations

import threading
from typing import Any

from pullback.core.blocks import Restored
from pullback.core.errors import DTypeError, briefly

__all__ = [
    "DEFAULT",
    "HIGHEST",
    "NAMES",
    "get_matmul_precision",
    "matmul_precision",
    "set_matmul_precision",
]

DEFAULT, HIGHEST = "default", "highest"
NAMES = (DEFAULT, HIGHEST, "tf32", "bfloat16")
# What other libraries call it, or somebody may try.
_ALIASES = {
    "high": "tf32", "tensorfloat32": "tf32", "TF32": "tf32", "fast": "tf32",
    "medium": "bfloat16", "bf16": "bfloat16", "float32": HIGHEST, "fp32": HIGHEST,
    "ieee": HIGHEST, "exact": HIGHEST,
}  # fmt: skip


class _Chosen(threading.local):
    """What the innermost `with` of this thread says, else what the program has set."""

    base = DEFAULT
    name: str | None = None


_chosen = _Chosen()


def _checked(function: str, name: Any) -> str:
    if isinstance(name, str) and name in NAMES:
        return name
    known = ", ".join(map(repr, NAMES))
    hint = _ALIASES.get(name) if isinstance(name, str) else None
    more = "" if hint is None else f" Write {hint!r}."
    raise DTypeError(f"{function}: a precision is one of {known}, got {name!r}.{more}")


class matmul_precision:  # noqa: N801  (used like a function)
    """Another precision of products of matrices inside a `with` block.

    "default": float32 in the order of the CPU, with its bits; float16 and bfloat16 by tensor cores.
    "highest": these too in the order of the CPU. "tf32", "bfloat16": float32 is rounded to that for
    tensor cores, which add up in float32. Only CUDA has such units: elsewhere it changes nothing.
    Derivatives have the precision of the product that they are of.

    >>> with pb.matmul_precision("tf32"):
    ...     print(pb.get_matmul_precision())
    tf32
    """

    @briefly
    def __init__(self, name: str):
        self._name = _checked("matmul_precision", name)

    def __enter__(self) -> None:
        _chosen.name = self._name

    __exit__ = Restored(_chosen, "name")


@briefly
def set_matmul_precision(name: str) -> None:
    """Let products of matrices have this precision, which `matmul_precision` explains.

    >>> pb.set_matmul_precision("highest")
    >>> pb.get_matmul_precision()
    'highest'
    >>> pb.set_matmul_precision("default")
    """
    _Chosen.base = _checked("set_matmul_precision", name)


def get_matmul_precision() -> str:
    """The precision of products of matrices that are made now.

    >>> pb.get_matmul_precision()
    'default'
    """
    return _chosen.name or _Chosen.base
