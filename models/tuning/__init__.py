"""Measures, reads and compiles ahead of time which kernels a network runs."""
