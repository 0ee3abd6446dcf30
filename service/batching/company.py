"""Counts the gRPC requests that are in progress, so that a batch can wait for requests that are
still being received.

With HTTP, one iteration of the event loop usually reads the whole requests of all connections. With
gRPC, receiving a request takes several iterations, and other requests arrive meanwhile. If a short
batch began at once, it would contain only the first of these requests. It would also delay the
others, because it blocks the event loop.
"""


class Company:
    """Counts the requests in progress. A request is in progress from the arrival of its headers to
    its answer."""

    def __init__(self) -> None:
        self.inside = 0  # now
        self._most = 0  # the most at once since the last look
        self._before = 0  # the most at once between the last two looks

    def enter(self) -> None:
        """Count a request whose headers have arrived."""
        self.inside += 1
        self._most = max(self._most, self.inside)

    def leave(self) -> None:
        """Stop counting a request."""
        self.inside -= 1

    def look(self) -> bool:
        """Return whether at least two requests were in progress at once, since the last call of
        this method or between the last two calls."""
        most = max(self._before, self._most)
        self._before, self._most = self._most, self.inside
        return most > 1
