"""Convoy beside other servers: the table in README, "Beside other servers"."""
