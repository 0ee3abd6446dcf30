"""Decides which orders of steps are allowed, and estimates when each step runs."""
