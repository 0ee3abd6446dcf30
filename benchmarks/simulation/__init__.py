"""Simulates a server that batches requests, and compares Convoy's batching policy with the best
results that any policy could reach."""
