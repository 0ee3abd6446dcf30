"""Contains the convolution algorithms, one per file, and finds the algorithms that support a
convolution."""
