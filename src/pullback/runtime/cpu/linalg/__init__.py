"""Factorisations and solutions: routines of LAPACK, called by address."""
