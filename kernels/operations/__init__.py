"""Builds the launches of all operations except convolutions."""
