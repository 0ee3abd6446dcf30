"""Measures which kernels run a network fastest, reads these measurements, and compiles kernels."""
