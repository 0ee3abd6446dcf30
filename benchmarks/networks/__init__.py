"""Builds test networks, and measures them with Convoy and PyTorch. The results are for
docs/kernels.md, "What happens in a batch", and for RESULTS.md."""
