"""Simulates a batching server in virtual time: how far its policy is from what none exceeds."""
