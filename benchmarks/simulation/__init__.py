"""Simulates a batching server in virtual time: docs/decisions on batches, CHANGELOG on fair
turns.
"""
