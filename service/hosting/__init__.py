"""Hosts models by name: from the bytes of images to scores."""
