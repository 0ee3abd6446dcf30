"""Tracks how many clients were active in the last second, and the fewest images that one of them
has in progress.

A running batch delays the requests that arrive while it runs. So the policy
(`service/batching/policy.py`) uses both numbers to limit how long a batch may take.
"""

from collections import OrderedDict
from collections.abc import Iterable

from service.batching.policy import ALONE, PATIENCE_S, Rivals


class Rivalry:
    """Tracks each client until PATIENCE_S seconds after its last request, or after the last batch
    with one of its images. Callers pass the current time."""

    def __init__(self) -> None:
        # For each client: the time of its last request, its most items in progress, and since when.
        self._clients: OrderedDict[str, tuple[float, int, float]] = OrderedDict()

    def asked(self, now: float, client: str, inside: int) -> None:
        """Record that a client sent a request. `inside` is the number of the client's images that
        wait or run now."""
        _, most, since = self._clients.pop(client, (0.0, 0, now))
        if inside >= most or now - since > PATIENCE_S:
            most, since = inside, now
        self._clients[client] = now, most, since

    def served(self, now: float, clients: Iterable[str]) -> None:
        """Record that a batch began that contains images of these clients."""
        for client in clients:
            if client in self._clients:
                self._clients[client] = (now, *self._clients.pop(client)[1:])

    def rivals(self, now: float, most: float) -> Rivals:
        """Return the number of recent clients, and the fewest images that one of them has in
        progress. If there are `most` clients or more, return only the number."""
        clients = self._clients
        while clients and next(iter(clients.values()))[0] < now - PATIENCE_S:
            clients.popitem(last=False)
        if len(clients) < 2:
            return ALONE
        if len(clients) >= most:
            return Rivals(len(clients))
        return Rivals(len(clients), min(inside for _, inside, _ in clients.values()))
