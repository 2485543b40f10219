"""Runs printed kernels on the host: the same source, compiled as C++, thread after thread.

It shows that a source means what the CPU's kernels mean; that a GPU compiles it is tested apart.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from pullback.runtime.cuda.launch import Launches

COMPILER = shutil.which("g++")
ALONE, BLOCKS, TOGETHER = range(3)  # which threads wait for each other
MOST_ARGUMENTS = 256  # of a kernel
_FLAGS = (
    "-std=c++17",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-gnu-unique",  # or static variables of templates would be one for all sources of a process
    "-fPIC",
    "-shared",
    "-w",
    "-fsanitize=alignment",
    "-fsanitize-undefined-trap-on-error",
)
_KERNEL = re.compile(
    r'(?:extern "C" __global__ void|^KERNEL) '
    r"(?:PB_CLUSTER\([^()]*\) )?(?:__launch_bounds__\([^()]*\)\s)?(\w+)\(",
    re.M,
)
_ALONE = frozenset({"exact_clear", "exact_add", "exact_finish", "gather_rows"})
# What waits, and a function of `folds` that does.
_WAITS = re.compile(r"__sync|pb_meet|_sync\(|_down\(|pb_tile\(|pb_multiply\(")
_HEADER = Path(__file__).with_name("cuda_emulator.hpp")


@cache
def _folder() -> Path:
    """Where compiled kernels are kept, for all processes of this user."""
    path = Path(tempfile.gettempdir()) / f"pullback-emulator-{os.geteuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.stat()
    assert found.st_uid == os.geteuid() and not found.st_mode & 0o077, path
    return path


def _made(kind: str, text: str, level: str, flags: Sequence[str] = ()) -> Path:
    """What g++ makes of a text, written in one step."""
    key = hashlib.sha256("\n".join((text, level, *flags, *_FLAGS)).encode()).hexdigest()
    target = _folder() / f"{key}{kind}"
    if not target.exists():
        assert COMPILER is not None
        with tempfile.TemporaryDirectory(dir=_folder()) as own:
            source, made = Path(own) / "kernels.cpp", Path(own) / "made"
            source.write_text(text)
            command = [COMPILER, *_FLAGS, level, *flags, str(source), "-o", str(made)]
            subprocess.run(command, check=True)
            os.replace(made, target)
    return target


@cache
def _header(level: str) -> Path:
    """The header, which is compiled once: it takes longer than the kernels."""
    text = _HEADER.read_text()
    compiled = _made(".hpp.gch", text, level, ("-x", "c++-header"))
    plain = compiled.with_suffix("")
    if not plain.exists():
        plain.write_text("#error the compiled header was not used\n")
    return plain


def waits(source: str) -> dict[str, bool]:
    """The kernels of a source, and whether threads of a block wait for each other in them."""
    places = [(m.start(), m.group(1)) for m in _KERNEL.finditer(source)]
    ends = [start for start, _ in places[1:]] + [len(source)]
    found = {}
    for (start, name), end in zip(places, ends, strict=True):
        written = source.startswith("KERNEL", start)  # by hand: it may call functions that wait
        found[name] = name not in _ALONE if written else bool(_WAITS.search(source, start, end))
    return found


def library_of(source: str, level: str) -> Path:
    """The library of the kernels of a source, for the host."""
    code = [f'#include "{_header(level)}"', "namespace kernels {", source]
    for name in _KERNEL.findall(source):
        code.append(
            f'extern "C" void run_{name}(unsigned grid, unsigned grid_y, unsigned block,'
            " unsigned shared, void** args, int mode)"
            f" {{ launch({name}, grid, grid_y, block, shared, args, mode); }}\n"
            f'extern "C" int sizes_{name}(int* to) {{ return sizes({name}, to); }}'
        )
    return _made(".so", "\n".join([*code, "}"]), level)


class Emulator:
    """The kernels of one source, compiled for the host."""

    def __init__(self, source: str, level: str = "-O0"):
        self._library = ctypes.CDLL(str(library_of(source, level)))
        self._waits = waits(source)

    def mode(self, name: str) -> int:
        """Which threads of a kernel wait for each other."""
        return BLOCKS if self._waits[name] else ALONE

    def sizes(self, name: str) -> list[int]:
        """The bytes of each argument of a kernel."""
        found = (ctypes.c_int * MOST_ARGUMENTS)()
        return found[: getattr(self._library, f"sizes_{name}")(found)]

    def run(
        self,
        plan: Launches,
        outs: Sequence[np.ndarray],
        ins: Sequence[np.ndarray],
        scratch: Sequence[np.ndarray] | None = None,
    ) -> None:
        """Run the launches of a plan on arrays that start at the addresses it expects."""
        buffers = {f"out{k}": a.ctypes.data for k, a in enumerate(outs)}
        buffers |= {f"in{k}": a.ctypes.data for k, a in enumerate(ins)}
        if scratch is None:
            scratch = [np.empty(n, np.uint8) for n in plan.scratch]
        buffers |= {f"scratch{k}": a.ctypes.data for k, a in enumerate(scratch)}
        for launch in plan.launches:
            values = [buffers[a] if isinstance(a, str) else a for a in launch.arguments]
            mode = self.mode(launch.function)
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
