"""Converts images to a network's pixels, on a device or in NumPy, with the same bits as Pillow."""
