"""Computes Winograd's matrices, the instructions of its transforms, and its reference."""
