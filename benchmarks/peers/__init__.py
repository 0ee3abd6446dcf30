"""Compares Convoy with other servers for the table in README, "Compared with other servers"."""
