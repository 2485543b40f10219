"""Which version of the package this is, down to an edited line: for what outlives a process."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["fingerprint", "tuning"]

_SUFFIXES = (".py", ".ll")
_ROOT = Path(__file__).parent.parent


@cache
def fingerprint() -> str | None:
    """A digest of the names, sizes and times of all source files; None if there are none.

    To read 600 files would take ten times as long.
    """
    found = sorted(_files(os.fspath(_ROOT)))
    if not found:
        return None
    return hashlib.sha256("\n".join([sys.version, *found]).encode()).hexdigest()


def _files(folder: str) -> Iterator[str]:
    try:
        entries = list(os.scandir(folder))
    except OSError:  # inside of an archive
        return
    for entry in entries:
        if entry.name.endswith(_SUFFIXES):
            about = entry.stat()
            yield f"{entry.path} {about.st_size} {about.st_mtime_ns}"
        elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
            yield from _files(entry.path)


_tuned: tuple[int, list[str]] = (0, [])  # modules that were loaded, and names of tuned ones


def tuning() -> str:
    """The tuning constants of all modules that are loaded, which tests change."""
    global _tuned
    if _tuned[0] != len(sys.modules):
        ours = [m for m in sys.modules if m.startswith("pullback.")]
        _tuned = (len(sys.modules), [m for m in ours if "__tuning__" in vars(sys.modules[m])])
    found = []
    for name in sorted(_tuned[1]):
        constants = vars(sys.modules[name])
        found += [f"{name}.{n}={constants[n]!r}" for n in constants["__tuning__"]]
    return " ".join(found)
