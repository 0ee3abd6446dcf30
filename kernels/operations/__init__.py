"""Launches of everything that is not a convolution."""
