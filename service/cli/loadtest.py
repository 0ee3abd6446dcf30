"""Implements `convoy loadtest`, which imports no module of the server."""

from loadtest.command import loadtest

__all__ = ["loadtest"]
