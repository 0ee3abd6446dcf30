"""Finds the orders in which the kernel launches of a plan may run, and estimates when each launch
runs."""
