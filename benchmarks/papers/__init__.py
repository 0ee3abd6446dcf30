"""Reproduces the results of five papers, and writes docs/papers.md with a row for each result."""
