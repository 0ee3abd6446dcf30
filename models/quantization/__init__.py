"""Converts a float model to an 8-bit model, and measures how this changes its results."""
