"""Convoy as it is installed: `setup.py` puts the parts into this one top-level name."""
