"""Simulates a batching server in virtual time, to compare Convoy's policy with bounds that no
policy exceeds."""
