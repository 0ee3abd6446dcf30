"""Devices, which execute kernels: the interface, the GPU through CuPy, the compiler, launches."""
