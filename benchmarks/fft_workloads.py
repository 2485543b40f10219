"""The workloads of `pullback bench fft`: Fourier transforms of complex and of real arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.programs import Function
from benchmarks.workloads import Inputs, Sizes, Workload

__all__ = ["FFT_LIBRARIES", "FFT_WORKLOADS", "fft_program"]

FFT_LIBRARIES = ("pullback", "torch", "jax", "scipy", "numpy")
DTYPES = {"c64": np.complex64, "c128": np.complex128, "r32": np.float32, "r64": np.float64}
# Name: rows, points of a row, and both of a quick run. Powers, a product, a prime.
SHAPES = {
    "256x4000": ((4000, 256), (5, 256)),
    "1024x1000": ((1000, 1024), (5, 1024)),
    "4096x250": ((250, 4096), (2, 4096)),
    "2^20": ((1, 1 << 20), (1, 1 << 16)),
    "105000": ((1, 105000), (1, 37800)),
    "1009x1000": ((1000, 1009), (3, 1009)),
    "2d": ((1024, 1024), (32, 64)),
}
TOLERANCE = {"c64": 1e-5, "c128": 1e-13, "r32": 1e-5, "r64": 1e-13}


def _inputs(kind: str) -> Inputs:
    def draw(rng: np.random.Generator, s: Sizes) -> tuple:
        x = rng.standard_normal((s["rows"], s["n"]))
        if kind[0] == "c":
            x = x + 1j * rng.standard_normal(x.shape)
        return (x.astype(DTYPES[kind]),)

    return draw


def _sizes(shape: tuple[int, int]) -> Sizes:
    return {"rows": shape[0], "n": shape[1]}


def _workload(kind: str, shape: str) -> Workload:
    full, quick = SHAPES[shape]
    what = "fft2" if shape == "2d" else "fft"
    what = what if kind[0] == "c" else f"r{what}"
    rows = f"{full[0]} x {full[1]}" if shape == "2d" else f"{full[0]} rows of {full[1]}"
    title = f"{what}, {rows}, {np.dtype(DTYPES[kind]).name}"
    tolerance = TOLERANCE[kind]
    return Workload(
        f"fft.{kind}.{shape}", title, _inputs(kind), _sizes(full), _sizes(quick), 1.0,
        tolerance=tolerance,
    )  # fmt: skip


FFT_WORKLOADS = {w.name: w for w in (_workload(k, s) for k in DTYPES for s in SHAPES)}


def fft_program(library: Any, name: str) -> Function:
    """The function of a workload's input."""
    _, kind, shape = name.split(".")
    what = ("fft" if kind[0] == "c" else "rfft") + ("2" if shape == "2d" else "")
    transform: Callable[..., Any] = library.fourier(what)
    return library.jit(lambda x: transform(x))
