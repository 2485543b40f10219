"""The library behind factorisations that are not our own, found on first use.

It runs on the calling thread alone, so that bits do not depend on the number of threads.
"""

from __future__ import annotations

import ctypes
import functools
import os
from contextlib import contextmanager

from pullback.core.errors import DeviceError

__all__ = ["address", "handle"]


@functools.cache
def handle() -> ctypes.CDLL:
    """The loaded library, which starts no threads."""
    with _environment("OPENBLAS_NUM_THREADS", "1"):  # else it starts threads of its own on loading
        found = _load("scipy-openblas32", "libscipy_openblas")
    if found is None:
        raise DeviceError(
            "linalg: this factorisation on the CPU needs OpenBLAS, got none."
            " Install the package scipy-openblas32."
        )
    found.scipy_openblas_set_num_threads(1)
    return found


def address(library: ctypes.CDLL, name: str) -> int:
    """Where a function of the library is."""
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def _load(package: str, stem: str) -> ctypes.CDLL | None:
    """The shared library of an installed package, or None if it is missing or unusable."""
    from importlib import metadata

    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name.startswith(stem) and {".so", ".dylib", ".dll"} & set(file.suffixes):
            try:
                return ctypes.CDLL(os.path.realpath(file.locate()))
            except OSError:  # for another platform, or without its OpenMP runtime
                return None
    return None


@contextmanager
def _environment(name: str, value: str):
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
