"""The device "webgpu" for tests: a software driver does; without any adapter they are skipped, but
not in CI.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

import pullback as pb

__all__ = ["ADAPTER", "needs_adapter", "without_subnormal"]


def _found() -> bool:
    try:
        pb.device("webgpu").runtime  # noqa: B018  (opens the adapter)
    except pb.DeviceError:
        if os.environ.get("CI"):
            raise
        return False
    return True


LEAST = 2.0**-100  # squares of numbers of 2**-26 and more are far above it


def without_subnormal(x: np.ndarray) -> np.ndarray:
    """Without what comes of subnormal numbers, where the adapter flushes them."""
    if x.dtype.kind not in "fcV" or not vars(pb.device("webgpu").runtime)["_gpu"].flushes:
        return x
    wide = x.astype("complex128" if x.dtype.kind == "c" else "float64")
    return np.where(np.abs(wide) < LEAST, 0, wide).astype(x.dtype)


ADAPTER = _found()
needs_adapter = pytest.mark.skipif(not ADAPTER, reason="there is no adapter for WebGPU")
