"""Computes the matrices of Winograd convolution, generates the code of its transforms, and defines
a reference in NumPy."""
