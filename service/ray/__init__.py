"""Holds Convoy's application for Ray Serve: `deploy/ray/README.md`."""
