"""Makes a network's pixels of decoded images on a device or in NumPy, bit for bit as Pillow
does."""
