"""Measures the server, for docs/reliability.md (attacks and soaks) and docs/decisions
(overhead)."""
