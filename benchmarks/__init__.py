"""Measurements: what the service adds to HTTP, kernels, whole networks."""
