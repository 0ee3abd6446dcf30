"""Finds the orders in which steps may run, and estimates when each step runs."""
