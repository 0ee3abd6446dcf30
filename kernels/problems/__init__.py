"""Defines problems: what is to be computed, as frozen dataclasses with their shapes."""
