"""Measures a running server. docs/reliability.md has the results of attacks and long runs.
docs/decisions has measurements of the time that the server adds to a request."""
