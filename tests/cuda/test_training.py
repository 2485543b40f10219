"""A training run on the emulated GPU ends with the bits of the CPU; the name of the GPU."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import pullback as pb
from cuda_device import emulated
from cuda_emulator import COMPILER

TOOL = Path(__file__).parents[2] / "tools" / "cuda_training.py"

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")


def test_a_training_run_has_the_bits_of_the_cpu():
    """Embedding, layer_norm, two hidden layers, cross entropy and Adam, compiled."""
    tool = runpy.run_path(str(TOOL))
    expected = tool["digest"](tool["trained"](3, True, "cpu"))
    with emulated() as cuda, cuda:
        found = tool["digest"](tool["trained"](3, True, "cuda"))
    assert found == expected


def test_the_gpu_has_a_name():
    with emulated() as cuda:
        assert cuda.runtime.capabilities()["GPU"] == "emulated GPU"
        assert pb.ones(1, device=cuda).device is cuda
