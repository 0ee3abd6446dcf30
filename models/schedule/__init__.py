"""Decides the order in which steps may run, and models when each runs."""
