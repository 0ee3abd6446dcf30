"""`convoy loadtest`, which imports nothing of the server."""

from loadtest.command import loadtest

__all__ = ["loadtest"]
