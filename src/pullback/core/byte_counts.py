"""Numbers of bytes as people write them: 1000, or "64 MiB"."""

from __future__ import annotations

import re
from typing import Any

from pullback.core.errors import DTypeError, ShapeError

__all__ = ["nbytes_of"]

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{p}iB": 1 << 10 * k for k, p in enumerate("KMGT", 1)}
_UNITS |= {f"{p}B": 10 ** (3 * k) for k, p in enumerate("kMGT", 1)}
_TEXT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def nbytes_of(given: Any, name: str, parameter: str) -> int:
    """The number of bytes that a parameter of the function `name` says.

    >>> from pullback.core.byte_counts import nbytes_of
    >>> nbytes_of("1.5 KiB", "jit", "memory"), nbytes_of("2 MB", "jit", "memory")
    (1536, 2000000)
    """
    if isinstance(given, str):
        found = _TEXT.fullmatch(given)
        if found is None or found[2] not in _UNITS:
            raise DTypeError(
                f"{name}: {parameter} must be a number of bytes, got {given!r}."
                ' Write it like 67108864, "64 MiB" or "67 MB".'
            )
        given = int(float(found[1]) * _UNITS[found[2]])
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise DTypeError(
            f'{name}: {parameter} must be a number of bytes, or a text such as "64 MiB",'
            f" got {type(given).__name__}."
        )
    nbytes = given.__index__()
    if nbytes <= 0:
        raise ShapeError(f"{name}: {parameter} must be at least 1 byte, got {nbytes}.")
    return nbytes
