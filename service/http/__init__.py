"""How bytes come and go: connections, bodies, answers, the server."""
