"""The CPU runtime: LLVM kernels, BLAS for complex products, one pool of native threads."""
