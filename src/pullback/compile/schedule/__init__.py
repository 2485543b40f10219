"""Graphs to groups: what gets memory, what runs together, and where values live."""
