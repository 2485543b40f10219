"""Python functions traced, differentiated, and compiled as units."""
