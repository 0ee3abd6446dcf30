"""Which kernel to run: estimated, or measured on the device."""
