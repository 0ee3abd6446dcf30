"""Measures Convoy and other servers with the same requests. The results are in the README,
"Compared with other servers"."""
