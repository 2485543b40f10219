"""Losses: of numbers, yes and no, classes, rankings, embeddings, and label sequences."""
