"""A running server, tested as a whole."""
