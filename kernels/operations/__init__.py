"""Launches of all operations but convolutions."""
