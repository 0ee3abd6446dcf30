"""Simulates a batching server in virtual time. Compares Convoy's policy with bounds that no policy
can exceed."""
