"""Discrete Fourier transforms: the standard's `fft` extension and what is made of it.

The functions are declared in `pullback.ops`.
"""
