"""Factorisations, solutions, eigenvalues and singular values of matrices on a GPU."""
