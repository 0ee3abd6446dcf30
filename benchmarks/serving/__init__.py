"""The server: what it adds to HTTP, under load, for a long time."""
