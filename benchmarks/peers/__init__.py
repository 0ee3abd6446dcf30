"""Convoy beside other servers, each installed for the comparison only."""
