"""Reproduces the results of five papers on convolution, and writes docs/papers.md with a row for
each result."""
