"""Contains all benchmarks; each package says in its first lines which claim rests on it."""
