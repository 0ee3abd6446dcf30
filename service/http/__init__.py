"""Implements HTTP: connections, parsing, bodies, answers and the server."""
