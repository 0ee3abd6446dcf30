"""The simulator's own tests and kernels: each file checks a feature of CUDA, not a module."""
