"""Proves and measures on a GPU: README, "Compared with other servers", and docs/gpu-day.md."""
