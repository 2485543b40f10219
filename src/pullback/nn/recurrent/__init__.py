"""Recurrent cells, and layers of them along sequences."""
