"""Defines problems. A problem is a frozen dataclass that says what to compute, with all shapes."""
