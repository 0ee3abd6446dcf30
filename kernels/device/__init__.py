"""What executes kernels: the interface, the GPU through CuPy, the compiler."""
