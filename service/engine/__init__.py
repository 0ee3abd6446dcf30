"""Runs engines on threads with watchdogs, limits the cores they may use, and ranks scores."""
