"""Contains the convolution algorithms, one in each file, and decides which algorithms can run a
problem."""
