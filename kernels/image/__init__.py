"""Converts images to the pixels that a network reads, on a device or in NumPy. The pixels equal
Pillow's bit for bit."""
