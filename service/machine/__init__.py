"""Finds out which cores and how much memory this process may use. Gives free memory back to the
operating system."""
