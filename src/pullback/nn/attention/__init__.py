"""Attention: scaled dot products in tiles of queries and keys, and layers with several heads."""
