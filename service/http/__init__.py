"""How bytes come and go: connections, limits, keys, bodies, answers, the server."""
