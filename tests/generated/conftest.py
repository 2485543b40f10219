"""Puts this folder on the path, so that the generated tests share `matrix`; the device they use."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

import pullback as pb
from cuda_device import emulated
from pullback.runtime import code_cache
from pullback.runtime.cuda import code, nvrtc

sys.path.append(str(Path(__file__).parent))

DEVICE = os.environ.get("PULLBACK_TEST_DEVICE")  # "cuda", or "emulated" for that without a GPU

FULL = os.environ.get("PULLBACK_FULL") == "1"
TEST_LIMIT = 2 << 30  # bytes of the cache: all kernels, which workers compile for each other

# About memory that NumPy can share, and about threads of the CPU.
collect_ignore = ["test_exports.py", "test_threads.py"] if DEVICE else []


def quickly(source: str, target: str, options: Sequence[str]) -> bytes:
    """What NVRTC makes of a source without optimisation; kernels that say how many registers their
    warps have, or whose units write registers behind the compiler's back, are made as for users.
    """
    known = "setmaxnreg" in source or "wgmma" in source
    return nvrtc.compile_source(source, target, nvrtc.OPTIONS if known else options)


@pytest.fixture(autouse=True, scope="session")
def chosen_device() -> Iterator[None]:
    """New arrays go to the device that was asked for."""
    with ExitStack() as stack:
        if DEVICE == "cuda" and not FULL:  # most of the time goes into the compilation of kernels
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr(code, "OPTIONS", nvrtc.QUICK)  # part of what code is kept by
            patch.setattr(code, "compile_source", quickly)
            patch.setattr(code_cache, "LIMIT", TEST_LIMIT)
        if DEVICE:
            stack.callback(pb.set_default_device, "cpu")
            chosen = stack.enter_context(emulated()) if DEVICE == "emulated" else DEVICE
            pb.set_default_device(chosen)
        yield
