"""Runs engines on threads and in processes with watchdogs, and ranks scores."""
