"""Compares Convoy with other servers: the table in README, "Beside other servers"."""
