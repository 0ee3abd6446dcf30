"""Makes an 8-bit model of a float model, and measures how the results change."""
