"""Runs inference engines in threads and processes with watchdogs, and ranks classes by score."""
