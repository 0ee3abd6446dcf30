"""Compares Convoy with other servers for the table in README, "Beside other servers"."""
