"""Reproduces five papers' results, and writes docs/papers.md: a row for each result."""
