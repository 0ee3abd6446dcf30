"""Limits open connections, in total and from one address.

    open ── address over its limit? ─┬─ close its longest silent connection, or refuse
            server over its limit? ──┴─ close the longest silent of all, or answer health only

A connection is silent while the server waits for a request on it. When a limit is reached, a new
connection replaces the connection that has been silent longest, if that has been silent for longer
than a grace period. So a client that opens many connections and sends nothing loses them.
"""

import ipaddress
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Protocol

from service.errors import TooManyConnectionsError

# Connections for health checks beyond the limit: a load balancer has a few probes.
SPARE = 16

GRACE_S = 0.25
"""Seconds for which a silent connection stays open, because its request may be on its way."""

KEPT_S = 1.0
"""Seconds after an answer within which a client is likely to send another request. A server that
shuts down without a notice waits this long for the request."""

# The prefix length of an IPv6 network that counts as one client: a provider gives each customer at
# least such a network.
_IPV6_PREFIX = 64


class Connection(Protocol):
    """The interface through which `Connections` and `Edge` watch and close a connection."""

    address: str  # the client's, see `network_of`

    @property
    def silent_since(self) -> float | None:
        """Return the loop time at which the server began to wait for a request.

        Returns None if the server waits for no request, or if the connection is closing.
        """

    def hang_up_on(self) -> None:
        """Close this silent connection, because a new connection replaces it."""

    def inspect(self, now: float) -> None:
        """Close the connection if its client has been too slow up to the loop time `now`."""


class Connections:
    """Counts a server's open connections by address. Not thread-safe."""

    def __init__(self, max_open: int, max_an_address: int) -> None:
        """Allow `max_open` connections, and `SPARE` additional connections that may only send
        health requests. At most `max_an_address` connections may come from one address."""
        self._max_open = max_open
        self._max_an_address = max_an_address
        self._by_address: Counter[str] = Counter()

    def open(self, new: Connection, all_open: Collection[Connection], now: float) -> bool:
        """Count a new connection, which `all_open` already contains. Return True if the connection
        may only send health requests. Raises TooManyConnectionsError if a limit is exceeded; the
        caller then closes the connection.
        """
        before, address = now - GRACE_S, new.address
        self._by_address[address] += 1
        if self._by_address[address] > self._max_an_address:
            if not _displace(
                (connection for connection in all_open if connection.address == address), before
            ):
                raise TooManyConnectionsError(
                    f"all {self._max_an_address} connections allowed for your address are in use; "
                    "reuse them, or try again in a second"
                )
        elif len(all_open) > self._max_open and not _displace(all_open, before):
            if len(all_open) > self._max_open + SPARE:
                raise self.full()
            return True
        return False

    def close(self, old: Connection) -> None:
        """Stop counting a connection."""
        self._by_address[old.address] -= 1
        if not self._by_address[old.address]:
            del self._by_address[old.address]

    def full(self) -> TooManyConnectionsError:
        """Return the error for a new connection when the server has reached its limit."""
        return TooManyConnectionsError(
            f"all {self._max_open} connections of the server are in use; try again in a second"
        )


def _displace(among: Iterable[Connection], before: float) -> bool:
    """Close the connection that has been silent longest, if its silence began before the time
    `before`. Return whether a connection was closed."""
    silent = [
        (since, index, connection)
        for index, connection in enumerate(among)
        if (since := connection.silent_since) is not None and since <= before
    ]
    if silent:
        min(silent)[2].hang_up_on()
    return bool(silent)


def network_of(host: str) -> str:
    """Return the address for which limits are counted: the IPv4 address, or the /64 network of an
    IPv6 address."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, _IPV6_PREFIX), strict=False))
