"""Measures whole networks, for docs/kernels.md, "What happens in a batch", and RESULTS.md."""
