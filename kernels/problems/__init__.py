"""Defines problems, which say what to compute, as frozen dataclasses with their shapes."""
