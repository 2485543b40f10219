"""Machine code of kernels, in files: compiled once for a device, kept in the user's cache.

CuPy could compile too, but it flushes subnormal numbers to zero whatever the options say.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path

from pullback.runtime.cuda.nvrtc import OPTIONS, compile_source, version

__all__ = ["machine_code"]


@cache
def _directory() -> Path:
    """$PULLBACK_CACHE_DIR, or the user's cache; one for this process if there is neither."""
    chosen, base = os.environ.get("PULLBACK_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError, OSError):  # no home directory, or one that is read-only
        if chosen is None:
            folder = (Path(base) if base else Path.home() / ".cache") / "pullback" / "cuda"
        elif chosen:
            folder = Path(chosen) / "cuda"
        else:
            raise OSError
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="pullback-cuda-"))


def machine_code(source: str, target: str) -> Path:
    """The file with the machine code of a source for a target like "sm_90"."""
    text = "\n".join([source, target, *OPTIONS, str(version())])
    path = _directory() / f"{hashlib.sha256(text.encode()).hexdigest()}.cubin"
    if not path.exists():
        code = compile_source(source, target)
        temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
        temporary.write_bytes(code)
        os.replace(temporary, path)  # in one step: another process sees all of it or nothing
    return path
