"""Contains the other servers' programs, which run in environments without Convoy."""
