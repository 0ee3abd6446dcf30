"""Measurements: what the service adds to bare HTTP, kernels, whole networks."""
