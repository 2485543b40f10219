"""Signals: convolution by Fourier transforms, spectrograms, the analytic signal, windows.

The functions are declared in `pullback.ops`.
"""
