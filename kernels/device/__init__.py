"""Runs kernels on devices: the interface, the GPU through CuPy, the compiler, launches."""
