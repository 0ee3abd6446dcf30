"""Contains the convolution algorithms, one in each file, and decides which can run a problem."""
