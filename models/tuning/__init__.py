"""Measures which kernels run a network fastest, reads such measurements, and compiles kernels."""
