"""Contains stand-ins for other libraries and servers."""
