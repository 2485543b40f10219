"""Linear algebra: the functions of the standard's `linalg` extension that there are so far.

The functions are declared in `pullback.ops`.
"""
