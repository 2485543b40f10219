"""Convolution and pooling: tiles of pixels against panels of channels."""
