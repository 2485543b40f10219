"""Launches that may begin before the launch that comes before them has ended.

Their thread blocks take the places of those that end, and wait in the kernel until all have ended:
the time between two launches is saved. CuPy has no name for that, so the driver is called here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from pullback.core.errors import PullbackError

__all__ = ["LEAST_CAPABILITY", "LaunchError", "overlapping"]

LEAST_CAPABILITY = 90  # 9.0, Hopper: the first with launches that begin early
_BEGIN_EARLY = 6  # in cuda.h: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class LaunchError(PullbackError, RuntimeError):
    """The driver refuses a launch."""


class _Attribute(ctypes.Structure):
    """The struct CUlaunchAttribute, with the first word of its value."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_int * 15),
    )


class _Config(ctypes.Structure):
    """The struct CUlaunchConfig."""

    _fields_ = (
        ("sizes", ctypes.c_uint * 7),  # the grid, the thread block, and shared memory
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


@cache
def _driver() -> Any:
    """The driver's `cuLaunchKernelEx`, or None if it has none."""
    try:
        launch = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    except (OSError, AttributeError):
        return None
    launch.argtypes = [ctypes.c_void_p] * 4
    return launch


def overlapping(function: int, sizes: tuple[int, ...]) -> Callable[[int, int], None] | None:
    """A launch as `launch(stream, address of arguments)`, or None where there is no such thing."""
    driver = _driver()
    if driver is None:
        return None
    attribute = _Attribute(_BEGIN_EARLY, 0, 1)
    configs: dict[int, _Config] = {}  # by stream: threads may launch at the same time

    def launch(stream: int, arguments: int) -> None:
        config = configs.get(stream)
        if config is None:
            words = (ctypes.c_uint * 7)(*sizes)
            config = _Config(words, stream, ctypes.pointer(attribute), 1)
            configs[stream] = config
        status = driver(ctypes.addressof(config), function, arguments, None)
        if status:
            raise LaunchError(f"cuda: the driver refuses a launch, error {status}.")

    return launch
