"""Sorting by radix, and binary search."""
