"""Holds the state that all connections of a server share: the limits, the API keys, and the counts
of requests in progress. Checks the connections periodically.

Every request to every route is checked here, so the checks may take only a few microseconds.
"""

import asyncio
import logging
import os
import re
import resource
import secrets
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import count
from math import ceil
from time import perf_counter

from service.edge.call_turns import CallTurns
from service.edge.connections import SPARE, Connection, Connections
from service.edge.keys import Keys
from service.edge.rate_limit import RateLimit
from service.errors import (
    ServiceError,
    TooManyConnectionsError,
    TooManyFromClientError,
    TooManyImagesError,
    UnauthorizedError,
)
from service.fair_queue import Client, Right
from service.telemetry.logs import PROBES
from service.telemetry.record import OnEnd, RequestRecord

_log = logging.getLogger("convoy")

RPC = b"RPC"
"""The method of gRPC requests in records."""

# The request ids that clients may choose; others are replaced.
_SANE_ID = re.compile(rb"[!-~]{1,128}").fullmatch

# Paths that need no key: the page on which users enter their key.
_PAGE = b"/"
_OPEN_FOLDERS = (b"/page/", b"/docs/")
_READS = (b"GET", b"HEAD", RPC)

# Files that a process opens later in addition to connections: for the event loop, logs, a GPU.
_MORE_FILES = 16
_FEW_FILES = 64  # open files, where the system does not list them


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits on each client's connections, images and time."""

    head_s: float = 10.0  # from a connection or the first byte of a head to its last
    body_s: float = 60.0  # from a head to the end of its body; 20 MB in this time is 2.7 Mbit/s
    body_rate: float = 1000.0  # bytes per second after the grace period; the slowest phones do it
    body_grace_s: float = 5.0
    answer_s: float = 60.0  # within which the client must read some of its answer
    refused_s: float = 3.0  # for a client that is still sending to read its refusal
    idle_s: float = 75.0  # load balancers keep connections for a minute
    sweep_s: float = 1.0  # between checks of the limits above
    connections: int = 1024
    per_address: int = 0  # connections of one address; 0: any
    per_client: int = 0  # images inside at once, at least one per request; 0: any
    rate: float = 0.0  # images per second of one client, at least one per request; 0: any
    # For clients without a key, if no key is needed:
    highest_priority: int = 1
    rights: frozenset[Right] = frozenset(Right)
    hosts: frozenset[str] | None = None  # names for the server, in lower case; None: any


class Edge:
    """Checks the requests on all connections of a server. Not thread-safe: used from the server's
    event loop."""

    def __init__(
        self,
        limits: Limits | None = None,
        keys: Keys | None = None,
        on_end: Collection[OnEnd] = (),
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Each function in `on_end` is called with a request's record after the request's answer,
        or after its client has closed the connection. `is_busy` returns whether any model has
        requests."""
        self.limits = limits = limits or Limits()
        self.keys = keys
        self.connections = Connections(limits.connections, limits.per_address or sys.maxsize)
        self.turns = CallTurns(is_busy)  # turns of calls that no model answers
        self._rates = RateLimit(limits.rate) if limits.rate else None
        self._on_end = tuple(on_end)
        self.inside: dict[str, int] = {}  # images by client, if they are limited
        self._holders: dict[RequestRecord, int] = {}  # the images of those requests
        self.leaving = False  # the server ends: answers tell clients to close their connections
        self._refused = 0  # connections, since the last sweep
        self.sweeping = False
        self._prefix = secrets.token_hex(4).encode()
        self._numbers = count(1)

    def client_of(self, address: str) -> Client:
        """Return a `Client` for this address. Requests belong to it until an API key identifies
        their client."""
        limits = self.limits
        return Client(address, 1.0, limits.highest_priority, limits.rights)

    def request_id(self, headers: Mapping[bytes, bytes]) -> bytes:
        """Return the request id that the client sent, if it is valid. Otherwise, return a new
        unique id."""
        given = headers.get(b"x-request-id")
        if given is not None and _SANE_ID(given):
            return given
        return b"%b-%x" % (self._prefix, next(self._numbers))

    def admit(self, record: RequestRecord, *, health_only: bool) -> ServiceError | None:
        """Count a request as in progress and return None, or return an error if the request must be
        refused."""
        if self.keys is None:
            record.known_as = self.limits.hosts
        if health_only and not (record.path in PROBES and record.method in _READS):
            return self.connections.full()
        if self.keys is None and self._rates is None and not self.limits.per_client:
            return None
        return self._check(record)

    def leave(self, record: RequestRecord) -> None:
        """Stop counting a request, because it was answered or its client has closed the
        connection."""
        images = self._holders.pop(record, 0) if self._holders else 0
        if images:
            name = record.caller.name
            self.inside[name] -= images
            if not self.inside[name]:
                del self.inside[name]
        if self._on_end:
            record.ended = perf_counter()
            for call in self._on_end:
                call(record)

    def open(self, new: Connection, connections: Collection[Connection]) -> bool:
        """Count a new connection, which `connections` already contains. Return True if the
        connection may only send health requests. Raises TooManyConnectionsError if a limit is
        exceeded; the caller then closes the connection.
        """
        self._watch(connections)
        try:
            return self.connections.open(new, connections, asyncio.get_running_loop().time())
        except TooManyConnectionsError as error:
            if not self._refused:
                flags = "--max-connections, --max-connections-per-address"
                _log.warning("refused a connection from %s: %s (%s)", new.address, error, flags)
            self._refused += 1
            raise

    def _watch(self, connections: Collection[Connection]) -> None:
        """Start the periodic checks of the connections. They end when no connection is open."""
        if not self.sweeping:
            self.sweeping = True
            asyncio.get_running_loop().call_later(self.limits.sweep_s, self._sweep, connections)

    def _sweep(self, connections: Collection[Connection]) -> None:
        self.sweeping = False
        if connections:
            self._watch(connections)  # first, so that an error below does not end the sweeps
        if self._refused > 1:
            _log.warning("refused %d more connections", self._refused - 1)
        self._refused = 0
        now = asyncio.get_running_loop().time()
        if self._rates is not None:
            self._rates.forget(now)
        for connection in tuple(connections):
            connection.inspect(now)

    def _check(self, record: RequestRecord) -> ServiceError | None:
        path, reads = record.path, record.method in _READS
        if reads and path in PROBES:
            return None
        if record.method == b"OPTIONS" and b"access-control-request-method" in record.headers:
            return None  # browsers send a CORS preflight without a key
        known: Client | None = record.caller
        if self.keys is not None:
            scheme, _, token = record.headers.get(b"authorization", b"").partition(b" ")
            bearer = scheme.lower() == b"bearer"
            presented = token if bearer else record.headers.get(b"x-api-key", b"")
            known = self.keys.find(presented.strip())
        # A request with a wrong key takes a token of its address, which limits the rate of guesses.
        refused = self._pace(known or record.caller)
        if refused is not None:
            return refused
        if reads and (path == _PAGE or path.startswith(_OPEN_FOLDERS)):
            return None
        if known is None:
            problem = "this API key is not known" if presented.strip() else "an API key is required"
            return UnauthorizedError(
                f"{problem}; send `Authorization: Bearer KEY` or `X-API-Key: KEY`"
            )
        if self.keys is not None:
            record.caller = known
            record.client = f"{record.client} {known.name}"
        if self.limits.per_client:
            inside = self.inside.get(known.name, 0)
            if inside >= self.limits.per_client:
                return self._too_many_inside(inside)
            self.inside[known.name] = inside + 1
            self._holders[record] = 1
        if self.limits.per_client or self._rates is not None:
            record.charge = self._charge
        return None

    def _charge(self, record: RequestRecord, images: int) -> None:
        """Count all images of a request, which counted as one image when it was admitted. Raises
        TooManyImagesError or TooManyFromClientError if a limit is exceeded."""
        more, allowed, name = images - 1, self.limits.per_client, record.caller.name
        if more <= 0:
            return
        inside = self.inside.get(name, 0)
        if allowed and images > allowed:
            raise TooManyImagesError(
                f"the request has {images} images; at most {allowed} of your images may be in "
                "progress at once; send fewer"
            )
        if allowed and inside + more > allowed:
            raise self._too_many_inside(inside - 1)
        refused = self._pace(record.caller, more, taken=1)
        if refused is not None:
            raise refused
        if record in self._holders:
            self.inside[name] += more
            self._holders[record] += more

    def _pace(self, client: Client, images: int = 1, taken: int = 0) -> ServiceError | None:
        """Return an error if the client sends too many images per second, otherwise None."""
        if self._rates is None:
            return None
        wait_s = self._rates.take(client.name, asyncio.get_running_loop().time(), images, taken)
        if not wait_s:
            return None
        return TooManyFromClientError(
            f"you sent more than the {self._rates.rate:g} images per second that are allowed; "
            f"send the next image in {max(1, ceil(wait_s))} s",
            wait_s,
        )

    def _too_many_inside(self, inside: int) -> ServiceError:
        return TooManyFromClientError(
            f"{inside} of your images are in progress; at most {self.limits.per_client} are "
            "allowed at once; send the next image when one of them is answered"
        )


def allowed(limits: Limits, more_files: int = 0, spare_files: int = 0) -> Limits:
    """Raise the operating system's limit on open files, so that it allows all connections and
    `more_files` other files, and if possible `spare_files` more. If the system does not allow
    enough files, return `limits` with fewer connections; otherwise, return `limits` unchanged."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        open_now = len(os.listdir("/proc/self/fd"))
    except OSError:  # not on Linux
        open_now = _FEW_FILES
    others = open_now + _MORE_FILES + SPARE + more_files
    needed = limits.connections + others
    wanted = needed + spare_files
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return limits
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    if files >= needed:
        return limits
    limits = replace(limits, connections=max(1, files - others))
    only = "at most %d connections are allowed: the system limits open files to %d (ulimit -Hn)"
    _log.warning(only, limits.connections, files)
    return limits
