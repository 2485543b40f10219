"""Gather and scatter by any indices, element by element."""
