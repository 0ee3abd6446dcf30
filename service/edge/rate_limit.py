"""Limits how many images a client sends per second."""


class RateLimit:
    """Limits each client's rate with a token bucket; used from one event loop.

    A full bucket holds the tokens of one second, and at least one token. Full buckets are deleted,
    so memory is bounded by the number of recent clients.
    """

    def __init__(self, rate: float) -> None:
        """Allow each client `rate` images per second."""
        self.rate = rate
        self._capacity = max(1.0, rate)
        self._buckets: dict[object, tuple[float, float]] = {}  # tokens left at a time, in seconds

    def take(self, client: object, now: float, images: int = 1, taken: int = 0) -> float:
        """Take one token for each of the `images`, and return 0.0. If there are too few tokens,
        take none and return the seconds until there are enough. A full bucket is enough for a
        request of any size; its number of tokens may become negative. `taken` is the number of
        tokens that the same request has already taken.
        """
        tokens, since = self._buckets.get(client, (self._capacity, now))
        tokens = min(self._capacity, tokens + (now - since) * self.rate)
        needed = min(images, self._capacity - taken)
        if tokens < needed:
            return (needed - tokens) / self.rate
        self._buckets[client] = (tokens - images, now)
        return 0.0

    def forget(self, now: float) -> None:
        """Delete the buckets that are full at the time `now`."""
        self._buckets = {
            client: (tokens, since)
            for client, (tokens, since) in self._buckets.items()
            if tokens + (now - since) * self.rate < self._capacity
        }
