"""Primitives that are not part of the public API: what the public functions are made of, for the
curious and for tests.

The functions are declared in `pullback.ops`.
"""
