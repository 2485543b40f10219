"""The device "cuda" on a host without a GPU: a stand-in for CuPy, and emulated kernels."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import cuda_fake
import pullback as pb
from cuda_fake_driver import FakeDriver
from pullback.core import avals
from pullback.runtime.cuda import driver, gpu, modules

__all__ = ["emulated"]


def _forget() -> None:
    for index in range(cuda_fake.COUNT):
        avals._devices.pop(("cuda", index), None)


@contextmanager
def emulated() -> Iterator[Any]:
    """A block in which the emulated GPU is there; its arrays are of no use afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", cuda_fake)
        patch.setattr(modules, "machine_code", lambda source, target: cuda_fake.precompile(source))
        patch.setattr(cuda_fake, "LEVEL", "-O0")
        library = FakeDriver()
        patch.setattr(driver, "library", lambda: library)
        gpu.cupy_module.cache_clear()
        gpu._gpu.cache_clear()
        _forget()
        try:
            yield pb.device("cuda")
        finally:
            _forget()
            gpu.cupy_module.cache_clear()
            gpu._gpu.cache_clear()
