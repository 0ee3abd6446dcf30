"""Proves that Convoy computes correctly on a GPU, and measures it there. The results are for
"Compared with other servers" in README and for docs/gpu-day.md."""
