"""Kernels as CUDA C: the same kernel IR as the CPU's, printed for a GPU."""
