"""Contains the programs of the other servers, which run in environments without Convoy."""
