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

from pullback.runtime.cuda.launch import Launches

COMPILER = shutil.which("g++")
ALONE, BLOCKS, TOGETHER = range(3)  # which threads wait for each other
_FLAGS = (
    "-std=c++17",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fPIC",
    "-shared",
    "-w",
    "-fsanitize=alignment",
    "-fsanitize-undefined-trap-on-error",
)
_KERNEL = re.compile(
    r'(?:extern "C" __global__ void|^KERNEL) (?:__launch_bounds__\([^()]*\)\s)?(\w+)\(', re.M
)
_HEADER = Path(__file__).with_name("cuda_emulator.hpp")


class Emulator:
    """The kernels of one source, compiled for the host."""

    def __init__(self, source: str, folder: Path, level: str = "-O0"):
        code = [f'#include "{_HEADER}"', source]
        for name in _KERNEL.findall(source):
            code.append(
                f'extern "C" void run_{name}(unsigned grid, unsigned grid_y, unsigned block,'
                " unsigned shared, void** args, int mode)"
                f" {{ launch({name}, grid, grid_y, block, shared, args, mode); }}"
            )
        path = folder / "kernels.cpp"
        path.write_text("\n".join(code))
        library = path.with_suffix(".so")
        assert COMPILER is not None
        subprocess.run([COMPILER, *_FLAGS, level, str(path), "-o", str(library)], check=True)
        self._library = ctypes.CDLL(str(library))

    def run(self, plan: Launches, outs: Sequence[np.ndarray], ins: Sequence[np.ndarray]) -> None:
        """Run the launches of a plan on arrays that start at the addresses it expects."""
        buffers = {f"out{k}": a.ctypes.data for k, a in enumerate(outs)}
        buffers |= {f"in{k}": a.ctypes.data for k, a in enumerate(ins)}
        scratch = [np.empty(n, np.uint8) for n in plan.scratch]
        buffers |= {f"scratch{k}": a.ctypes.data for k, a in enumerate(scratch)}
        for launch in plan.launches:
            values = [buffers[a] if isinstance(a, str) else a for a in launch.arguments]
            waits = launch.function.endswith(("_rows", "_columns", "_merge"))
            mode = BLOCKS if waits else ALONE
            self.launch(launch.function, (launch.grid, 1), launch.block, 0, values, mode)

    def launch(
        self,
        name: str,
        grid: tuple[int, int],
        block: int,
        shared: int,
        values: Sequence[int | bytes],
        mode: int,
    ) -> None:
        """Run one kernel on addresses, int64s and structs."""
        held = [_argument(v) for v in values]
        pointers = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
        self.start(name, grid, block, shared, ctypes.addressof(pointers), mode)

    def start(
        self, name: str, grid: tuple[int, int], block: int, shared: int, arguments: int, mode: int
    ) -> None:
        """Run one kernel; at `arguments` are the addresses of its arguments."""
        place = ctypes.c_void_p(arguments)
        getattr(self._library, f"run_{name}")(*grid, block, shared, place, mode)


def _argument(value: int | bytes) -> ctypes.Array | ctypes.c_int64:
    if isinstance(value, int):
        return ctypes.c_int64(value)
    return ctypes.create_string_buffer(value, len(value))
