"""Computes the matrices of Winograd convolution, the code of its transforms, and a reference."""
