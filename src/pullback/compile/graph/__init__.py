"""Graphs to graphs: the passes that simplify what was traced."""
