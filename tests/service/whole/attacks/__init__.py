"""Hostile clients: what they cost, and what other clients notice of them."""
