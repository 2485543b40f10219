"""Fourier transforms on a GPU, in the order of `compile.kernel.fft_order`."""
