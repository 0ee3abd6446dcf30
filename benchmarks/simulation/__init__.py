"""Simulates a batching server in virtual time, for docs/decisions on batches and CHANGELOG on
turns."""
