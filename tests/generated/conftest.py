"""Puts this folder on the path, so that the generated tests share `matrix`; the device they use."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import pullback as pb
from cuda_device import emulated

sys.path.append(str(Path(__file__).parent))

DEVICE = os.environ.get("PULLBACK_TEST_DEVICE")  # "cuda", or "emulated" for that without a GPU

# About memory that NumPy can share, and about threads of the CPU.
collect_ignore = ["test_exports.py", "test_threads.py"] if DEVICE else []


@pytest.fixture(autouse=True, scope="session")
def chosen_device() -> Iterator[None]:
    """New arrays go to the device that was asked for."""
    with ExitStack() as stack:
        if DEVICE:
            stack.callback(pb.set_default_device, "cpu")
            chosen = stack.enter_context(emulated()) if DEVICE == "emulated" else DEVICE
            pb.set_default_device(chosen)
        yield
