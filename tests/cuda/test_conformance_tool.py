"""The tool that runs the registry on a GPU: what fails is a row of its table."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

import pytest

import cuda_registry
import pullback as pb
from cuda_device import emulated
from cuda_emulator import COMPILER
from generated import matrix

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")

PATH = Path(__file__).parents[2] / "tools" / "cuda_conformance.py"


def fails(*_: object) -> None:
    raise pb.DeviceError("no library")


def test_a_sample_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch):
    """On either side, and where the comparison itself fails: the others are to be run."""
    monkeypatch.setattr(sys, "path", [str(PATH.parent), *sys.path])
    spec = importlib.util.spec_from_file_location("cuda_conformance", PATH)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    given = ("sin", 0, "float32", 0, time.time() + 600)
    threads = pb.get_num_threads()
    try:
        with emulated():
            assert tool.job(given) == (*given[:4], tool.EQUAL, "")
            with monkeypatch.context() as patch:
                patch.setattr(matrix, "call", fails)
                text = "on the CPU, DeviceError: no library"
                assert tool.job(given)[4:] == (tool.FAIL, text)
            monkeypatch.setattr(cuda_registry, "same_bits", fails)
            assert tool.job(given)[4:] == (tool.FAIL, "DeviceError: no library")
    finally:
        pb.set_num_threads(threads)
