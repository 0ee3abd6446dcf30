"""Chooses an algorithm and a configuration for each convolution, by an estimate of the time or by
measurements on the device."""
