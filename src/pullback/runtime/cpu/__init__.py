"""The CPU runtime: LLVM kernels, oneDNN and BLAS intrinsics, one pool of native threads."""
