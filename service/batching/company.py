"""Counts concurrent requests of a transport that receives each request in several steps.

One read of a connection by HTTP usually has a whole request, and one turn of the event loop reads
all connections. By gRPC a request takes several turns, in which others follow it: a short batch
that begins at once finds only the first of them, and blocks the event loop for the next.
"""


class Company:
    """Counts requests, from their heads to their answers."""

    def __init__(self) -> None:
        self.inside = 0  # now
        self._most = 0  # at once, since the last look
        self._before = 0  # the same, of the look before

    def enter(self) -> None:
        """Count a request whose head has arrived."""
        self.inside += 1
        self._most = max(self._most, self.inside)

    def leave(self) -> None:
        """Stop counting a request."""
        self.inside -= 1

    def look(self) -> bool:
        """Return whether two requests were in progress at once since the second last call."""
        most = max(self._before, self._most)
        self._before, self._most = self._most, self.inside
        return most > 1
