"""A running server, of which no single module is what is tested."""
