"""Contains the installed Convoy: `setup.py` moves all parts into this single top-level package."""
