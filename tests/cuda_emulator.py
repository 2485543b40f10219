"""Runs printed kernels on the host: the same source, compiled as C++, thread after thread.

It shows that a source means what the CPU's kernels mean; that a GPU compiles it is tested apart.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pullback.runtime.cuda.launch import Plan

COMPILER = shutil.which("g++")
_FLAGS = (
    "-std=c++17",
    "-O0",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fPIC",
    "-shared",
    "-w",
)
_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(')
_HEADER = Path(__file__).with_name("cuda_emulator.hpp")


class Emulator:
    """The kernels of one source, compiled for the host."""

    def __init__(self, source: str, folder: Path):
        code = [f'#include "{_HEADER}"', source]
        for name in _KERNEL.findall(source):
            together = str(name.endswith(("_rows", "_columns", "_merge"))).lower()
            code.append(
                f'extern "C" void run_{name}(unsigned grid, unsigned block, void** args)'
                f" {{ launch({name}, grid, block, args, {together}); }}"
            )
        path = folder / "kernels.cpp"
        path.write_text("\n".join(code))
        library = path.with_suffix(".so")
        assert COMPILER is not None
        subprocess.run([COMPILER, *_FLAGS, str(path), "-o", str(library)], check=True)
        self._library = ctypes.CDLL(str(library))

    def run(self, plan: Plan, outs: Sequence[np.ndarray], ins: Sequence[np.ndarray]) -> None:
        """Run the launches of a plan on arrays that start at the addresses it expects."""
        buffers = {f"out{k}": a.ctypes.data for k, a in enumerate(outs)}
        buffers |= {f"in{k}": a.ctypes.data for k, a in enumerate(ins)}
        scratch = [np.empty(n, np.uint8) for n in plan.scratch]
        buffers |= {f"scratch{k}": a.ctypes.data for k, a in enumerate(scratch)}
        for launch in plan.launches:
            values = [_argument(buffers[a] if isinstance(a, str) else a) for a in launch.arguments]
            pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
            function = getattr(self._library, f"run_{launch.function}")
            function(launch.grid, launch.block, pointers)


def _argument(value: int | bytes) -> ctypes.Array | ctypes.c_int64:
    if isinstance(value, int):
        return ctypes.c_int64(value)
    return ctypes.create_string_buffer(value, len(value))
