"""Pooling: maxima, averages and norms over windows, to sizes that are asked for, of everything."""
