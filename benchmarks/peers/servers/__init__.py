"""The other servers' programs: each runs in its own environment, where Convoy is not installed."""
