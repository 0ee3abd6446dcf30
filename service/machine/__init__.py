"""Finds the cores and the memory that this process may use, and gives free memory back to the
operating system."""
