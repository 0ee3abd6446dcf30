"""Hostile clients: their cost, and their effect on other clients."""
