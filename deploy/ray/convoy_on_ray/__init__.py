"""Convoy on Ray Serve: `deploy/ray/README.md`."""
