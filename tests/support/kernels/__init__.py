"""Cases and devices for the tests of kernels."""
