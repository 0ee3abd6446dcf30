"""Contains the CUDA kernels, and the Python code that compiles, launches, tunes and checks them.
This package imports neither `models` nor `service`. Importing it needs neither a GPU nor a
driver."""
