"""Machine code of kernels: compiled once for a device, kept in the user's cache.

CuPy could compile too, but it flushes subnormal numbers to zero whatever the options say.
"""

from __future__ import annotations

import hashlib

from pullback.runtime.code_cache import CodeCache
from pullback.runtime.cuda.nvrtc import OPTIONS, compile_source, version

__all__ = ["machine_code"]

_CACHE = CodeCache("cuda")


# Instructions that are of one architecture, and not of those that follow it.
_SPECIAL = {"sm_90": "wgmma."}


def machine_code(source: str, target: str) -> bytes:
    """The machine code of a source for a target like "sm_90"."""
    special = _SPECIAL.get(target)
    if special is not None and special in source:
        target += "a"
    text = "\n".join([source, target, *OPTIONS, str(version())])
    key = hashlib.sha256(text.encode()).hexdigest()
    code = _CACHE.read(key)
    if code is None:
        code = compile_source(source, target, OPTIONS)
        _CACHE.write(key, code)
    return code
