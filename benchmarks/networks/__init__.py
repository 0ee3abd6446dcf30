"""Measures whole networks: docs/kernels.md, "What happens in a batch", and RESULTS.md."""
