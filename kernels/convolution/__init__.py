"""Contains the convolution algorithms, one file each, and decides which can run a problem."""
