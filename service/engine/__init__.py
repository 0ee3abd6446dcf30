"""Runs engines in threads and processes, each with a watchdog, and ranks scores."""
