"""Decides the order in which steps may run, and estimates when each runs."""
