"""A day with a GPU, as far as it is possible without one."""
