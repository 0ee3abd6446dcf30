"""A day with a GPU, as far as it goes without one."""
