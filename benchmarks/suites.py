"""All workloads that are compared in processes of their own, and their functions."""

from __future__ import annotations

from benchmarks.fft_workloads import FFT_WORKLOADS, fft_program
from benchmarks.libraries import Library
from benchmarks.linalg_workloads import LINALG_WORKLOADS, linalg_program
from benchmarks.nn_programs import program
from benchmarks.nn_workloads import NN_WORKLOADS
from benchmarks.programs import Function
from benchmarks.workloads import WORKLOADS

__all__ = ["ALL_WORKLOADS", "function_of"]

ALL_WORKLOADS = {**WORKLOADS, **NN_WORKLOADS, **FFT_WORKLOADS, **LINALG_WORKLOADS}


def function_of(library: Library, name: str) -> Function:
    """A workload in the words of a library, as a function of the workload's inputs."""
    if name in NN_WORKLOADS:
        return program(library, name)
    if name in LINALG_WORKLOADS:
        return linalg_program(library, name)
    if name in FFT_WORKLOADS:
        return fft_program(library, name)
    return getattr(library, name)()
