"""Attention on matrix units of a GPU: kernels as CUDA C, the tiles for a width, and launches."""
