"""Contains all parts of Convoy in an installed wheel: `setup.py` moves them into this package."""
