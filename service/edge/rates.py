"""Limits on the request rate of a client: one token bucket each.

A bucket holds the tokens of one second, at least one. A request takes a token. Full buckets are
deleted, so memory is bounded by the number of recent clients.
"""


class RateLimit:
    """The token buckets of all clients; used from one event loop."""

    def __init__(self, rate: float) -> None:
        """`rate` is in requests a second."""
        self.rate = rate
        self._most = max(1.0, rate)
        self._buckets: dict[object, tuple[float, float]] = {}  # tokens left at a time, in seconds

    def take(self, client: object, now: float) -> float:
        """Take a token: 0.0, or the seconds until there is one to take."""
        tokens, since = self._buckets.get(client, (self._most, now))
        tokens = min(self._most, tokens + (now - since) * self.rate)
        if tokens < 1:
            return (1 - tokens) / self.rate
        self._buckets[client] = (tokens - 1, now)
        return 0.0

    def forget(self, now: float) -> None:
        """Delete the buckets that are full again."""
        self._buckets = {
            client: (tokens, since)
            for client, (tokens, since) in self._buckets.items()
            if tokens + (now - since) * self.rate < self._most
        }
