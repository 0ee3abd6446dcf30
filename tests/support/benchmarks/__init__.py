"""Stand-ins for other libraries and servers."""
