"""What the connections of a server share: bounds, keys, who is inside, and the sweep over them all.

Everything here is met by each request of each route, so it is kept to a few microseconds.
"""

import asyncio
import logging
import os
import re
import resource
import secrets
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import Protocol

from service.edge.connections import SPARE, Connection, Connections, Place, network_of
from service.edge.keys import Keys
from service.edge.rates import RateLimit
from service.errors import (
    ServiceError,
    TooManyConnectionsError,
    TooManyFromClientError,
    UnauthorizedError,
)
from service.telemetry.logs import AccessLog, LogFormat, line_writer
from service.telemetry.record import OnEnd, RequestRecord

_log = logging.getLogger("convoy")

# What a client may choose as the id of its request; anything else gets one of ours.
_SANE_ID = re.compile(rb"[!-~]{1,128}").fullmatch

# Load balancers ask after health without a key, and the page is where a person enters one.
_HEALTH = frozenset((b"/v2/health/live", b"/v2/health/ready"))
_OPEN = _HEALTH | {b"/"}
_OPEN_FOLDERS = (b"/page/", b"/docs/")

# What a process opens beside connections, once its models are: the event loop's own, logs, a GPU's.
_MORE_FILES = 16
_OPEN_FILES = Path("/proc/self/fd")
_FEW_FILES = 64  # where the system does not tell

_READS = (b"GET", b"HEAD")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how much a client may make the server wait or hold."""

    head_s: float = 10.0  # from a connection or the first byte of a head to its last
    body_s: float = 60.0  # from a head to the end of its body; 20 MB in this time is 2.7 Mbit/s
    body_rate: float = 1000.0  # bytes a second, the grace not counted; of phones the slowest do it
    body_grace_s: float = 5.0
    answer_s: float = 60.0  # in which some of an answer has to be taken
    refused_s: float = 3.0  # for a client that is still sending, to notice
    idle_s: float = 75.0  # load balancers keep connections for a minute
    sweep_s: float = 1.0  # how often all of these are looked at
    connections: int = 1024
    per_address: int = 0  # connections of one address; 0: any
    per_client: int = 0  # requests inside at once; 0: any
    rate: float = 0.0  # requests a second of one client; 0: any


@dataclass(frozen=True, slots=True)
class EdgeOptions:
    """What an edge is made of, in whichever process it is needed."""

    limits: Limits = field(default_factory=Limits)
    keys: Keys | None = None
    log_format: LogFormat = LogFormat.TEXT
    traced: bool = False


class Swept(Connection, Protocol):
    """A connection, as the sweep sees it."""

    def inspect(self, now: float) -> None:
        """Cut it if its client is too slow."""


class Edge:
    """One for all connections of a server; used from its event loop."""

    def __init__(
        self,
        limits: Limits | None = None,
        keys: Keys | None = None,
        on_end: Collection[OnEnd] = (),
    ) -> None:
        """`on_end` are called with every request that was answered or whose client left."""
        self.limits = limits = limits or Limits()
        self.keys = keys
        most = limits.connections
        self._connections = Connections(most, limits.per_address or sys.maxsize)
        self._rates = RateLimit(limits.rate) if limits.rate else None
        self._on_end = tuple(on_end)
        self.inside: dict[object, int] = {}  # requests by client, where they are bounded
        self._holders: dict[RequestRecord, object] = {}  # the clients of those requests
        self._refused = 0  # connections, since the last sweep
        self.sweeping = False
        self._prefix = secrets.token_hex(4).encode()
        self._numbers = count(1)

    def request_id(self, headers: Mapping[bytes, bytes]) -> bytes:
        """The client's own, or one that no other request of any server has."""
        given = headers.get(b"x-request-id")
        if given is not None and _SANE_ID(given):
            return given
        return b"%b-%x" % (self._prefix, next(self._numbers))

    def admit(self, record: RequestRecord) -> ServiceError | None:
        """Count the request in; or why it is not let in."""
        if self.keys is None and self._rates is None and not self.limits.per_client:
            return None
        return self._check(record)

    def leave(self, record: RequestRecord) -> None:
        """The request was answered, or its client left."""
        holder = self._holders.pop(record, None) if self._holders else None
        if holder is not None:
            inside = self.inside[holder] - 1
            if inside:
                self.inside[holder] = inside
            else:
                del self.inside[holder]
        if self._on_end:
            record.ended = perf_counter()
            for tell in self._on_end:
                tell(record)

    def open(self, new: Swept, connections: Collection[Swept]) -> Place:
        """Count in a new connection, which is among the others already; see `Connections`."""
        self.watch(connections)
        now = asyncio.get_running_loop().time()
        place = self._connections.open(new, connections, now)
        if place in (Place.REFUSED, Place.ADDRESS_REFUSED):
            if not self._refused:
                _log.warning("a connection of %s was refused: %s", new.address, self._full(place))
            self._refused += 1
        return place

    def close(self, old: Swept) -> None:
        """Count out a connection."""
        self._connections.close(old)

    def full(self, place: Place) -> TooManyConnectionsError:
        """What the client is told that has no place, or none for what it asks."""
        if place is Place.ADDRESS_REFUSED:
            return TooManyConnectionsError(
                f"{self._connections.most_an_address} connections of your address are at work, "
                "and no more may be; use them again, or try again in a second"
            )
        return TooManyConnectionsError("too many connections are open; try again in a second")

    def may_ask_after_health(self, record: RequestRecord) -> bool:
        """Whether that is what a request does."""
        return record.path in _HEALTH and record.method in _READS

    def watch(self, connections: Collection[Swept]) -> None:
        """Sweep over these, as long as there are any."""
        if not self.sweeping:
            self.sweeping = True
            loop = asyncio.get_running_loop()
            loop.call_later(self.limits.sweep_s, self._sweep, loop, connections)

    def _sweep(self, loop: asyncio.AbstractEventLoop, connections: Collection[Swept]) -> None:
        self.sweeping = False
        if connections:
            self.watch(connections)  # first: the next sweep is due whatever comes of this one
        if self._refused > 1:
            _log.warning("%d connections more were refused", self._refused - 1)
        self._refused = 0
        now = loop.time()
        if self._rates is not None:
            self._rates.forget(now)
        for connection in tuple(connections):
            connection.inspect(now)

    def _full(self, place: Place) -> str:
        """For whoever runs the server."""
        if place is Place.ADDRESS_REFUSED:
            most, setting = self._connections.most_an_address, "--max-connections-per-address"
        else:
            most, setting = self._connections.most, "--max-connections"
        return f"{most} are open, and no more may be ({setting})"

    def _check(self, record: RequestRecord) -> ServiceError | None:
        path = record.path
        if record.method in _READS and (path in _OPEN or path.startswith(_OPEN_FOLDERS)):
            return None
        holder: object = network_of(record.client)
        key = None
        if self.keys is not None:
            key = self.keys.find(_presented(record.headers))
            holder = key or holder
        if self._rates is not None:
            # A wrong key takes a token of its address, so that keys cannot be tried at any rate.
            wait_s = self._rates.take(holder, asyncio.get_running_loop().time())
            if wait_s:
                return TooManyFromClientError(
                    f"more than {self._rates.rate:g} requests a second of yours; "
                    f"send the next in {max(1, ceil(wait_s))} s",
                    wait_s,
                )
        if self.keys is not None:
            if key is None:
                return UnauthorizedError(
                    "this needs an API key; send it as `Authorization: Bearer KEY`, "
                    "or as `X-API-Key: KEY`"
                )
            record.client = f"{record.client} key {key}"
        most = self.limits.per_client
        if most:
            inside = self.inside.get(holder, 0)
            if inside >= most:
                return TooManyFromClientError(
                    f"{inside} requests of yours are being answered, and no more may be at once; "
                    "send the next when one is done"
                )
            self.inside[holder] = inside + 1
            self._holders[record] = holder
        return None


def make_edge(options: EdgeOptions, *, access_log: bool) -> Edge:
    """An edge for a server in this process."""
    on_end: list[OnEnd] = []
    if access_log:
        on_end.append(AccessLog(line_writer(options.log_format)))
    if options.traced:
        from service.telemetry.tracing import Traces  # noqa: PLC0415  needs what the extra installs

        on_end.append(Traces())
    limits = replace(options.limits, connections=_allow(options.limits.connections))
    return Edge(limits, options.keys, on_end)


def _allow(connections: int) -> int:
    """Have the system allow so many connections; how many it does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = _open_files() + _MORE_FILES + SPARE
    wanted = connections + others
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return connections
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    if allowed < wanted:
        connections = max(1, allowed - others)
        _log.warning(
            "no more than %d connections can be open: the system allows %d files (ulimit -Hn)",
            connections,
            allowed,
        )
    return connections


def _open_files() -> int:
    """How many this process has."""
    try:
        return len(os.listdir(_OPEN_FILES))
    except OSError:  # no Linux
        return _FEW_FILES


def _presented(headers: Mapping[bytes, bytes]) -> bytes:
    """The API key that a request brings; empty if none."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return token.strip()
    return headers.get(b"x-api-key", b"").strip()
