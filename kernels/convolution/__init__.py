"""The convolution algorithms, one file each, and which of them can run a problem."""
