"""Proves and measures Convoy on a GPU, for "Compared with other servers" in README and for
docs/gpu-day.md."""
