"""Counts concurrent requests of a transport that receives each request in several steps.

With HTTP, one read of a connection usually returns a whole request, and one iteration of the event
loop reads all connections. With gRPC, receiving a request takes several iterations, and other
requests arrive meanwhile. A short batch that begins at once would take only the first request, and
would delay the other requests because it blocks the event loop.
"""


class Company:
    """Counts requests in progress, from the arrival of their heads to their answers."""

    def __init__(self) -> None:
        self.inside = 0  # now
        self._most = 0  # the most at once since the last look
        self._before = 0  # the most at once between the two looks before

    def enter(self) -> None:
        """Count a request whose head has arrived."""
        self.inside += 1
        self._most = max(self._most, self.inside)

    def leave(self) -> None:
        """Stop counting a request."""
        self.inside -= 1

    def look(self) -> bool:
        """Return whether at least two requests were in progress at the same time since the
        second-to-last call of this method."""
        most = max(self._before, self._most)
        self._before, self._most = self._most, self.inside
        return most > 1
