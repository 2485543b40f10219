"""Counter-based random numbers: every function takes a key, and the same key gives the same numbers
everywhere.

The functions are declared in `pullback.ops.random`.
"""
