"""Computes Winograd's matrices, the code of its transforms, and its reference."""
