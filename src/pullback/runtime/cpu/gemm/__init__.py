"""Matrix products: kernels of our own, and a library's for complex numbers."""
