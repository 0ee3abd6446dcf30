"""Finds the cores and the memory that this process may use, and gives memory back to the system."""
