"""Machine code of kernels: compiled once for a device, kept in the user's cache.

CuPy could compile too, but it flushes subnormal numbers to zero whatever the options say.

Every kernel waits at its beginning until the launch before it has ended, and lets the next one
begin. Where launches are not told to begin early, neither does anything.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from pullback.runtime.code_cache import CodeCache
from pullback.runtime.cuda.nvrtc import OPTIONS, compile_source, version

__all__ = ["following", "machine_code", "waiting_source"]

_CACHE = CodeCache("cuda")
_KERNEL = re.compile(
    r'extern "C" __global__ void\s+(?:__launch_bounds__\([^()]*\)\s*)?(\w+)\([^{}()]*\)\s*\{'
)
# In a branch of its own, so that no load is moved above it: the compiler takes what is read through
# `const ... __restrict__` for something that never changes.
_WAIT = """
#if __CUDA_ARCH__ >= 900
#define PB_WAIT()                                                                \\
  if (gridDim.x) {                                                               \\
    asm volatile("griddepcontrol.wait;" ::: "memory");                           \\
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");              \\
  }
#else
#define PB_WAIT()
#endif
"""


@lru_cache(4096)
def following(source: str) -> frozenset[str]:
    """The kernels of a source that may begin early."""
    return frozenset(_KERNEL.findall(source))


def waiting_source(source: str) -> str:
    """A source whose kernels wait for the launch before them."""
    return _WAIT + _KERNEL.sub(lambda found: f"{found.group()} PB_WAIT()", source)


def machine_code(source: str, target: str) -> bytes:
    """The machine code of a source for a target like "sm_90"."""
    text = "\n".join([_WAIT, source, target, *OPTIONS, str(version())])
    key = hashlib.sha256(text.encode()).hexdigest()
    code = _CACHE.read(key)
    if code is None:
        code = compile_source(waiting_source(source), target)
        _CACHE.write(key, code)
    return code
