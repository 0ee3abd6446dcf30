"""Makes pixels of decoded images, on a device or here: to the bit those that Pillow makes."""
