"""Contains cases and devices for the tests of kernels."""
