"""Runs Convoy's tests and benchmarks on a GPU that is available only for a limited time. The
results are for "Compared with other servers" in README and for docs/gpu-day.md."""
