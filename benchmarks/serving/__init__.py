"""Measures the server: docs/reliability.md on attacks and soaks, docs/decisions on its own time."""
