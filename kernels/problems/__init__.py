"""Defines the problems that kernels solve, such as a convolution or a pooling. A problem is a
frozen dataclass with all shapes."""
