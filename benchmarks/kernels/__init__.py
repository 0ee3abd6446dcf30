"""Convolutions one by one: `python -m benchmarks.kernels`."""
