"""Which connections may be open: so many in all, so many from one address, some for health checks.

    open ── of its address too many? ─┬─ the longest silent of that address makes room, or refused
            in all too many? ─────────┴─ the longest silent of all makes room, or: health alone

A connection is silent while it owes a request: nothing of it is being answered. So a client that
opens many and sends nothing loses them to those who come after it, but for the youngest, which may
be about to send something.
"""

import ipaddress
from collections import Counter
from collections.abc import Collection, Iterable
from enum import Enum, auto
from typing import Protocol

# For health checks, beyond all others: a load balancer has a few probes.
SPARE = 16

# What a client may need to send its request.
_GRACE_S = 0.25

# Of an address in IPv6: what a provider gives one customer at the least.
_IPV6_PREFIX = 64


class Connection(Protocol):
    """A connection, as far as it matters here."""

    address: str  # of its client, see `network_of`

    @property
    def silent_since(self) -> float | None:
        """Loop time since when the client owes a request; None: it does not, or it is closing."""

    def hang_up_on(self) -> None:
        """Close it: another needs its place."""


class Place(Enum):
    """What becomes of a new connection."""

    OPEN = auto()
    HEALTH = auto()  # it may ask after health, nothing else
    REFUSED = auto()  # all of them are at work
    ADDRESS_REFUSED = auto()  # all that its address may have are


class Connections:
    """The connections of a server, by address; used from one event loop."""

    def __init__(self, most: int, most_an_address: int, grace_s: float = _GRACE_S) -> None:
        """At most so many in all, `SPARE` beside them; `most_an_address` of one address.

        One makes room that was silent for `grace_s` seconds.
        """
        self._grace_s = grace_s
        self.most = most
        self.most_an_address = most_an_address
        self.displaced = 0  # so far: silent ones that made room
        self._by_address: Counter[str] = Counter()

    def open(self, new: Connection, all_open: Collection[Connection], now: float) -> Place:
        """Count in a new connection, which is among `all_open` already, and make room for it."""
        before = now - self._grace_s
        address = new.address
        self._by_address[address] += 1
        if self._by_address[address] > self.most_an_address:
            own = (each for each in all_open if each.address == address)
            return Place.OPEN if self._displace(own, before) else Place.ADDRESS_REFUSED
        if len(all_open) <= self.most or self._displace(all_open, before):
            return Place.OPEN
        return Place.HEALTH if len(all_open) <= self.most + SPARE else Place.REFUSED

    def close(self, old: Connection) -> None:
        """Count out a connection."""
        self._by_address[old.address] -= 1
        if not self._by_address[old.address]:
            del self._by_address[old.address]

    def _displace(self, among: Iterable[Connection], before: float) -> bool:
        """Close the longest silent one, since before then; False if there is none."""
        silent = [
            (since, place, each)
            for place, each in enumerate(among)
            if (since := each.silent_since) is not None and since <= before
        ]
        if not silent:
            return False
        self.displaced += 1
        min(silent)[2].hang_up_on()
        return True


def network_of(host: str) -> str:
    """What counts as one address: an IPv4 address, or the 64 bits that an IPv6 network has."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, _IPV6_PREFIX), strict=False))
