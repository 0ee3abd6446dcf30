"""Chooses which kernel to run, by estimates or by measurements on the device."""
