"""The device "webgpu" for tests: a software driver does; without any adapter they are skipped, but
not in CI.
"""

from __future__ import annotations

import os

import pytest

import pullback as pb

__all__ = ["ADAPTER", "needs_adapter"]


def _found() -> bool:
    try:
        pb.device("webgpu").runtime  # noqa: B018  (opens the adapter)
    except pb.DeviceError:
        if os.environ.get("CI"):
            raise
        return False
    return True


ADAPTER = _found()
needs_adapter = pytest.mark.skipif(not ADAPTER, reason="there is no adapter for WebGPU")
