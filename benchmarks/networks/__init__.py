"""Whole networks: `python -m benchmarks.networks`."""
