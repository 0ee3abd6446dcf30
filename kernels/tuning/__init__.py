"""Chooses which kernel to run: by estimate, or by measurements on the device."""
