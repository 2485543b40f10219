"""Scatter-add: the strategies, their kernels, and plans of indices."""
