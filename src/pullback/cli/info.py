"""`pullback info`: what this installation has."""

from __future__ import annotations

import argparse
import platform

import numpy as np

import pullback as pb

__all__ = ["arguments", "device_lines", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """This command takes no options."""


def device_lines() -> list[str]:
    """One line per device found, with what its runtime offers."""
    lines = []
    for dev in pb.__array_namespace_info__().devices():
        facts = ", ".join(f"{k}: {v}" for k, v in dev.runtime.capabilities().items())
        lines.append(f"{dev}  ({facts})")
    return lines


def run(options: argparse.Namespace) -> int:
    print(f"pullback {pb.__version__}, numpy {np.__version__}, Python {platform.python_version()}")
    print("devices:")
    for line in device_lines():
        print(f"  {line}")
    return 0
