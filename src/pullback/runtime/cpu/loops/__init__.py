"""Loop nests: maps, reductions, running folds, and sequences of them row by row."""
