"""Rewrite rules: one a file, each with its equation and a reason when it refuses."""
