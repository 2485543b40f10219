"""Fourier transforms on the CPU: mixed-radix Stockham passes on vectors, as LLVM IR of our own."""
