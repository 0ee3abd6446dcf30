"""Loads models, and serves them by name: decodes the images of a request and computes the
scores."""
