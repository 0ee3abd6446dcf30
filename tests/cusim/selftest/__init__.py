"""The simulator's own tests and kernels: each file tests one feature of CUDA, not one module."""
