"""Measures a running server. docs/reliability.md has the results of attacks and long runs, and
docs/decisions the time that the server adds to a request."""
