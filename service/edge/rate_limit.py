"""Limits how many images a client sends per second."""

from collections import OrderedDict

# How many buckets are looked at once a second, and when a new client comes: two for each new one,
# so there are never many more than clients whose bucket is not full.
_LOOK, _LOOK_NEW = 2048, 2


class RateLimit:
    """Limits each client's rate of images with a token bucket. Not thread-safe.

    A full bucket holds the tokens of one second, and at least one token. Full buckets are deleted,
    so memory is bounded by the number of recent clients.
    """

    def __init__(self, rate: float) -> None:
        """Allow each client `rate` images per second."""
        self.rate = rate
        self._capacity = max(1.0, rate)
        # Tokens left at a time, in seconds. Buckets to look at next are first.
        self._buckets: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def take(self, client: object, now: float, images: int = 1, taken: int = 0) -> float:
        """Take one token for each of the `images`, and return 0.0. If there are too few tokens,
        take none, and return the seconds until there are enough.

        A full bucket admits a request with any number of images; its number of tokens may then
        become negative. `taken` is the number of tokens that the same request took earlier. A retry
        takes them again, so they lengthen the returned time.
        """
        bucket = self._buckets.get(client)
        if bucket is None:
            self.forget(now, _LOOK_NEW)
        tokens, since = bucket or (self._capacity, now)
        tokens = min(self._capacity, tokens + (now - since) * self.rate)
        needed = min(images, self._capacity - taken)
        if tokens < needed:
            return (needed + taken - tokens) / self.rate
        self._buckets[client] = (tokens - images, now)
        return 0.0

    def forget(self, now: float, most: int = _LOOK) -> None:
        """Check up to `most` buckets, and delete the buckets that are full at the time `now`. The
        next call continues with the next buckets. To check many thousands at once would take
        milliseconds."""
        buckets = self._buckets
        for _ in range(min(most, len(buckets))):
            client, (tokens, since) = buckets.popitem(last=False)
            if tokens + (now - since) * self.rate < self._capacity:
                buckets[client] = tokens, since
