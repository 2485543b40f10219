"""Products of matrices: kernels as CUDA C, the choice of one for a shape, and their launches."""
