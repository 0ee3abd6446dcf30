"""Counts, metrics, logs and traces of requests."""
