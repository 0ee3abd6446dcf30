"""Proves and measures on a GPU: README, "Beside other servers", and docs/gpu-day.md."""
