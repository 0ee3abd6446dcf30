"""Hosts models by name, from bytes to scores: repository, pipeline, bounds, loading."""
