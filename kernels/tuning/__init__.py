"""Chooses the kernel for each convolution, by estimates or by measurements on the device."""
