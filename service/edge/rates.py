"""How many requests a second a client may make: a token bucket for each.

A bucket holds a second's worth of tokens, at least one; a request takes one, and they come back at
the rate. Full buckets are forgotten, so memory is bounded by how many clients there were lately.
"""


class RateLimit:
    """Token buckets of all clients; used from one event loop."""

    def __init__(self, rate: float) -> None:
        """`rate` is in requests a second."""
        self.rate = rate
        self._most = max(1.0, rate)
        self._buckets: dict[object, tuple[float, float]] = {}  # tokens left at a time, in seconds

    def __len__(self) -> int:
        """How many clients are remembered."""
        return len(self._buckets)

    def take(self, client: object, now: float) -> float:
        """Take a token: 0.0, or in how many seconds there will be one, and nothing is taken."""
        tokens, since = self._buckets.get(client, (self._most, now))
        tokens = min(self._most, tokens + (now - since) * self.rate)
        if tokens < 1:
            return (1 - tokens) / self.rate
        self._buckets[client] = (tokens - 1, now)
        return 0.0

    def forget(self, now: float) -> None:
        """Forget the clients whose buckets are full again."""
        full = self._most
        self._buckets = {
            client: (tokens, since)
            for client, (tokens, since) in self._buckets.items()
            if tokens + (now - since) * self.rate < full
        }
