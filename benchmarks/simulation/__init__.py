"""Simulates a batching server in virtual time, to compare its policy with bounds that no policy
exceeds."""
