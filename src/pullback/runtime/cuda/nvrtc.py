"""NVRTC through ctypes: CUDA C to PTX or machine code, on any host, with no GPU and no toolkit.

The library is the one of the package `nvidia-cuda-nvrtc` if that is installed (CuPy and PyTorch
bring it too), else the system's. It is loaded when something is compiled, not before.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pullback.core.errors import PullbackError

__all__ = ["OPTIONS", "QUICK", "CudaCompileError", "compile_source", "is_available", "version"]

# IEEE arithmetic as the scalar language has it: nothing contracted, nothing flushed to zero.
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-sqrt=true", "--prec-div=true")
# To see whether a source compiles: the same meaning, without optimisation; NVRTC 13 has it.
QUICK = (*OPTIONS, "--Ofast-compile=max")
_PACKAGES = ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "nvidia/cu13/bin", "nvidia/cuda_nvrtc/bin")
_SONAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so")


class CudaCompileError(PullbackError, RuntimeError):
    """NVRTC is missing, or refused a source."""


def _candidates() -> list[str]:
    folders = [Path(p) / sub for p in sys.path if p for sub in _PACKAGES]
    names = ("libnvrtc.so.*", "nvrtc64_*.dll")
    packaged = [str(f) for d in folders for n in names for f in sorted(d.glob(n))]
    return [*(f for f in packaged if ".alt." not in f), *_SONAMES]


@cache
def _library() -> ctypes.CDLL:
    for name in _candidates():
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CudaCompileError(
        "cuda: the compiler NVRTC was not found. Install it with `pip install nvidia-cuda-nvrtc`."
    )


def is_available() -> bool:
    """Whether NVRTC can be loaded."""
    try:
        _library()
    except CudaCompileError:
        return False
    return True


def version() -> tuple[int, int]:
    """NVRTC's version."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
    return major.value, minor.value


def _check(status: int, what: str, log: str = "") -> None:
    if status:
        text = _library().nvrtcGetErrorString
        text.restype = ctypes.c_char_p
        raise CudaCompileError(f"cuda: {what} failed, got {text(status).decode()}.\n{log}".rstrip())


def compile_source(source: str, target: str, options: Sequence[str] = OPTIONS) -> bytes:
    """PTX of a source for a target like "compute_75", machine code for one like "sm_90"."""
    lib, program = _library(), ctypes.c_void_p()
    text = ctypes.c_char_p(source.encode())
    made = lib.nvrtcCreateProgram(ctypes.byref(program), text, b"kernels.cu", 0, None, None)
    _check(made, "nvrtcCreateProgram")
    try:
        flags = [f"--gpu-architecture={target}".encode(), *(o.encode() for o in options)]
        status = lib.nvrtcCompileProgram(
            program, len(flags), (ctypes.c_char_p * len(flags))(*flags)
        )
        if status:
            log = _fetch(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            _check(status, f"the compilation for {target}", log)
        return _fetch(program, "PTX" if target.startswith("compute") else "CUBIN")
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


def _fetch(program: ctypes.c_void_p, what: str) -> bytes:
    lib, size = _library(), ctypes.c_size_t()
    _check(getattr(lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), f"nvrtcGet{what}Size")
    data = ctypes.create_string_buffer(size.value)
    _check(getattr(lib, f"nvrtcGet{what}")(program, data), f"nvrtcGet{what}")
    return data.raw
