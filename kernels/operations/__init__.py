"""Builds the launches of all GPU operations except convolutions."""
