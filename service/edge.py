"""What the connections of a server share: bounds, keys, who is inside, and the sweep over them all.

Everything here is met by each request of each route, so it is kept to a few microseconds.
"""

import asyncio
import logging
import re
import resource
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from time import perf_counter
from typing import Protocol

from service.access import Ended, Entry
from service.errors import ServiceError, TooManyFromClientError, UnauthorizedError
from service.keys import Keys
from service.logs import AccessLog, LogFormat, line_writer

_log = logging.getLogger("convoy")

# What a client may choose as the id of its request; anything else gets one of ours.
_SANE_ID = re.compile(rb"[!-~]{1,128}").fullmatch

# Load balancers ask after health without a key, and the page is where a person enters one.
_OPEN = frozenset((b"/", b"/v2/health/live", b"/v2/health/ready"))
_OPEN_FOLDER = b"/page/"

# What a process opens beside connections: models, devices, logs, the event loop's own.
_OTHER_FILES = 128


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
    per_client: int = 0  # requests inside at once; 0: any


@dataclass(frozen=True, slots=True)
class EdgeOptions:
    """What an edge is made of, in whichever process it is needed."""

    limits: Limits = field(default_factory=Limits)
    keys: Keys | None = None
    log_format: LogFormat = LogFormat.TEXT
    traced: bool = False


class Swept(Protocol):
    """A connection, as the sweep sees it."""

    def inspect(self, now: float) -> None:
        """Cut it if its client is too slow."""


class Edge:
    """One for all connections of a server; used from its event loop."""

    def __init__(
        self,
        limits: Limits | None = None,
        keys: Keys | None = None,
        ended: Collection[Ended] = (),
    ) -> None:
        """`ended` is called with every request that was answered or whose client left."""
        self.limits = limits or Limits()
        self.keys = keys
        self._ended = tuple(ended)
        self.inside: dict[object, int] = {}  # requests by holder, where they are bounded
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

    def admit(self, entry: Entry) -> None:
        """Count the request in, or write down why not."""
        if self.keys is None and not self.limits.per_client:
            return
        entry.refusal = self._check(entry)

    def leave(self, entry: Entry) -> None:
        """The request was answered, or its client left."""
        holder = entry.holder
        if holder is not None:
            inside = self.inside[holder] - 1
            if inside:
                self.inside[holder] = inside
            else:
                del self.inside[holder]
        if self._ended:
            entry.ended = perf_counter()
            for tell in self._ended:
                tell(entry)

    def full(self, connections: int) -> bool:
        """Whether one of so many connections is too many, which is counted."""
        if connections <= self.limits.connections:
            return False
        if not self._refused:
            _log.warning(
                "a connection was refused: %d are open, and no more may be (--max-connections)",
                self.limits.connections,
            )
        self._refused += 1
        return True

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
        for connection in tuple(connections):
            connection.inspect(now)

    def _check(self, entry: Entry) -> ServiceError | None:
        path = entry.target.partition(b"?")[0]
        asks = entry.method in (b"GET", b"HEAD")
        if asks and (path in _OPEN or path.startswith(_OPEN_FOLDER)):
            return None
        holder = entry.client
        if self.keys is not None:
            key = self.keys.find(_presented(entry.headers))
            if key is None:
                return UnauthorizedError(
                    "this needs an API key; send it as `Authorization: Bearer KEY`, "
                    "or as `X-API-Key: KEY`"
                )
            entry.client = holder = f"{entry.client} key {key}"
            holder = key
        most = self.limits.per_client
        if most:
            inside = self.inside.get(holder, 0)
            if inside >= most:
                return TooManyFromClientError(
                    f"{inside} requests of yours are being answered, and no more may be at once; "
                    "send the next when one is done"
                )
            self.inside[holder] = inside + 1
            entry.holder = holder
        return None


def make_edge(options: EdgeOptions, *, access_log: bool) -> Edge:
    """An edge for a server in this process."""
    ended: list[Ended] = []
    if access_log:
        ended.append(AccessLog(line_writer(options.log_format)))
    if options.traced:
        from service.tracing import Traces  # noqa: PLC0415  needs what the extra installs

        ended.append(Traces())
    limits = replace(options.limits, connections=_allow(options.limits.connections))
    return Edge(limits, options.keys, ended)


def _allow(connections: int) -> int:
    """Have the system allow so many connections; how many it does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return connections
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    if allowed < wanted:
        connections = max(1, allowed - _OTHER_FILES)
        _log.warning(
            "no more than %d connections can be open: the system allows %d files (ulimit -Hn)",
            connections,
            allowed,
        )
    return connections


def _presented(headers: Mapping[bytes, bytes]) -> bytes:
    """The API key that a request brings; empty if none."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return token.strip()
    return headers.get(b"x-api-key", b"").strip()
