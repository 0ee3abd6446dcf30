"""Measures. Each package says in its first lines which claim of the documents rests on it."""
