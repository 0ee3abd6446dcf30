"""Speaks HTTP: connections, parsing, bodies, answers, the server."""
