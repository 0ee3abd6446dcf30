"""Measures how a hostile client, which sends the most expensive requests per byte, affects other
clients."""
