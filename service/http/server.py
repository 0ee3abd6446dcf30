"""Runs the server. It listens, warms up the models and announces that it is ready. After a signal,
it finishes the accepted requests and exits.

    SIGTERM or SIGINT -> fail readiness, serve for `notice_s` -> refuse, finish accepted -> exit
                      └──────── answers say `connection: close` ────────┘

Idle connections are closed at the end. If `notice_s` is 0, the server accepts requests until no
open connection has had an answer within the last second. A second signal skips the wait.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import uvicorn
from starlette.types import ASGIApp
from typing_extensions import override

from models import DeviceLostError
from service.batching.policy import DEFAULT_PRIORITY
from service.edge.call_turns import CallTurns
from service.edge.edge import Edge, Limits, allowed
from service.edge.keys import Keys
from service.fair_queue import Right
from service.hosting.admission import ByteRoom
from service.hosting.regions import MOST_REGIONS
from service.hosting.repository import Repository
from service.http.acceptor import MOST_WAITING, Acceptor
from service.http.connection import Connection
from service.http.exchange import AnyEndpoint
from service.http.uvicorn_adapter import ConvoyConfig
from service.machine.memory import keep_free_memory
from service.settings import LogLevel, Settings
from service.telemetry.logs import AccessLog, line_writer
from service.telemetry.record import OnEnd

# Seconds after draining for the last answers to be sent, and for an engine to finish its call.
LEAVE_S = 2

# Seconds after which a thread gives up the interpreter's lock to a waiting thread. A request takes
# the lock about six times; with Python's default of 5 ms, it waited 5 ms each time while another
# client's JSON was read.
SWITCH_S = 0.0005

# Seconds for which requests that are on their way are answered with 503, after an engine failed for
# good.
_REFUSE_S = 1.0

# A packet filter (Linux's SO_ATTACH_FILTER) that drops packets with the flag SYN. Its instructions:
# load byte 13 of the TCP header; test bit 1; drop; keep. Then the seconds for handshakes that have
# begun.
_ATTACH_FILTER = 26
_NO_SYN = ((0x30, 0, 0, 13), (0x45, 0, 1, 2), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))
_HANDSHAKE_S = 0.05

# Seconds between two checks for clients that may soon send another request.
_LOOK_S = 0.02

DEVICE_LOST = 75
"""The exit status (EX_TEMPFAIL) of a process that lost the device. A new process may be able to use
the device."""

_log = logging.getLogger("convoy")


class ListenError(Exception):
    """Says why the server cannot listen on the address."""


def bind(host: str, port: int, settings: str = "--host and --port") -> socket.socket:
    """Return a socket that is bound to the address but does not listen yet. Until it listens, the
    operating system refuses connections at once.

    Raises ListenError if the address is in use, forbidden or unknown. Its message names `settings`,
    the flags to change.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ListenError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; "
            f"choose another with {settings}"
        ) from error
    return listener


def turn_away(listener: socket.socket) -> None:
    """Make the operating system ignore new connections. The clients' systems try again later, when
    the port is closed, and are refused.

    Otherwise, connections that are opened between the last `accept` and the close would be reset.
    Does nothing on systems that cannot filter connections.
    """
    code = ctypes.create_string_buffer(
        b"".join(struct.pack("HBBI", *instruction) for instruction in _NO_SYN)
    )
    program = struct.pack("HP", len(_NO_SYN), ctypes.addressof(code))
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Within the `with` block, end the process on SIGTERM with exit status 128 + 15, and ignore
    SIGHUP.

    The server replaces these handlers while it runs. Without a handler, the first process of a
    container would ignore SIGTERM.
    """
    before = signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGHUP, hangup)


def http_settings(
    app: ASGIApp,
    settings: Settings,
    keys: Keys | None = None,
    endpoints: Mapping[str, AnyEndpoint] | None = None,
    room: ByteRoom | None = None,
) -> ConvoyConfig:
    """Return uvicorn's settings to serve an application. Benchmarks pass an application without
    models."""
    on_end: list[OnEnd] = []
    if settings.access_log and settings.log_level in (LogLevel.DEBUG, LogLevel.INFO):
        on_end.append(AccessLog(line_writer(settings.log_format), settings.log_level))
    if settings.otel:
        from service.telemetry.tracing import Traces  # noqa: PLC0415  needs the extra `otel`

        on_end.append(Traces())
    limits = Limits(
        connections=settings.max_connections,
        per_address=settings.connections_per_address,
        per_client=settings.max_per_client,
        rate=settings.max_rate,
        # Behind a proxy on this machine every client comes from a loopback address.
        highest_priority=DEFAULT_PRIORITY,
        rights=frozenset(Right) if settings.listens_locally else frozenset(),
        hosts=frozenset(map(str.lower, (settings.host, *settings.host_names))),
    )
    # The gRPC port has as many connections, and for a moment twice as many. The processes that run
    # batches have a socket each, and those that decode images two pipes.
    more_files = 0 if settings.grpc_port is None else 2 * limits.connections
    more_files += settings.processes + 2 * settings.thread_count
    direct = (endpoints or {}) if settings.direct_path else {}
    regions = MOST_REGIONS if settings.shared_memory else 0
    # Without the direct path, requests to models take turns with other calls, so no call may pause
    # for them.
    held: Collection[object] = room.inside if room is not None and settings.direct_path else ()
    exposed = "inference-header-content-length, retry-after, x-request-id"
    origin = settings.cors_origin
    cors = {"access-control-allow-origin": origin, "access-control-expose-headers": exposed}
    return ConvoyConfig(
        app,
        Edge(allowed(limits, more_files, regions + MOST_WAITING), keys, on_end, lambda: bool(held)),
        direct,
        room,
        log_config=None,
        access_log=False,  # uvicorn's own
        server_header=False,
        headers=list(cors.items()) if origin else [],
        lifespan="off",
        ws="none",
        http=Connection,
        timeout_graceful_shutdown=LEAVE_S,
    )


class Port(Protocol):
    """The interface of a second port of the server, for another protocol such as gRPC."""

    async def start(self, edge: Edge) -> None:
        """Start to listen; `edge` admits requests. Raises OSError if the address is in use."""

    async def stop(self, grace_s: float) -> None:
        """Refuse new requests, and finish the requests in progress within a time limit."""


class Server(uvicorn.Server):
    """uvicorn's server, with two additions: it warms up the models after it has begun to listen,
    and finishes accepted requests before it exits."""

    def __init__(
        self,
        config: uvicorn.Config,
        repository: Repository,
        settings: Settings,
        announce: Callable[[], None],
        port: Port | None = None,
    ) -> None:
        super().__init__(config)
        self._repository = repository
        self._settings = settings
        self._announce = announce
        self._port = port
        self._edge = config.edge if isinstance(config, ConvoyConfig) else None
        self._tasks: list[asyncio.Task[None]] = []
        self._acceptors: list[Acceptor] = []
        self._draining: asyncio.Task[None] | None = None
        self.failure: Exception | None = None  # why it cannot go on
        self.drained = True  # every accepted request was answered in time
        self.stuck = False  # an engine does not return from its last batch

    @contextlib.contextmanager
    @override
    def capture_signals(self) -> Iterator[None]:
        """Within the `with` block, shut down gracefully on SIGINT or SIGTERM, and reload the API
        keys on SIGHUP. uvicorn's own method would raise the signal again at the end and so kill the
        process.

        The block also sets the interpreter's thread switch interval to `SWITCH_S` seconds.
        """
        loop = asyncio.get_running_loop()
        switch_s = sys.getswitchinterval()
        stop, again = self.stop, self._read_again
        handlers = {signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGHUP: again}
        before = {number: signal.getsignal(number) for number in handlers}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        sys.setswitchinterval(SWITCH_S)
        try:
            yield
        finally:
            sys.setswitchinterval(switch_s)
            for number in handlers:
                loop.remove_signal_handler(number)
                signal.signal(number, before[number])

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, then begin to warm up. During the warm-up, health requests are
        answered."""
        try:
            await super().startup([])
            protocol: Any = self.config.http_protocol_class
            make = partial(protocol, self.config, self.server_state, self.lifespan.state)
            turns = self._edge.turns if self._edge is not None else CallTurns()
            self._acceptors = [
                Acceptor(listener, turns, make, self.config.backlog) for listener in sockets or ()
            ]
            if self._port is not None and self._edge is not None:
                await self._port.start(self._edge)
        except OSError as error:  # another process bound the address too, and listened first
            self._fail(ListenError(f"cannot listen: {error.strerror or error}"))
            return
        self._tasks = [asyncio.create_task(run) for run in (self._warm_up(), self._watch())]
        self._tasks.append(asyncio.create_task(self._repository.give_back_periodically()))

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, send the last answers, and close the models."""
        for listener in sockets or []:
            turn_away(listener)
        if sockets:
            await asyncio.sleep(_HANDSHAKE_S)
        for acceptor in self._acceptors:
            await acceptor.accept_rest()
        await super().shutdown(sockets)
        if self._port is not None:
            await self._port.stop(LEAVE_S)
        self.stuck = not await self._repository.close(LEAVE_S)

    def stop(self) -> None:
        """Begin to finish the accepted requests. If this has begun already, exit without waiting
        for them."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._leave())
            return
        self.drained = not self._draining.cancel()  # False: there were requests to wait for
        self.should_exit = self.force_exit = True

    def _fail(self, failure: Exception) -> None:
        self.failure = failure
        self.should_exit = True

    def _read_again(self) -> None:
        """Reload the file of API keys, if the server uses one."""
        keys = self._edge.keys if self._edge is not None else None
        if keys is None:
            _log.info("SIGHUP: there is no file to read again; --api-key-file is not set")
        else:
            # In a thread, because thousands of keys take long, and a file system may not answer.
            threading.Thread(target=keys.reload, name="keys", daemon=True).start()

    async def _warm_up(self) -> None:
        try:
            await self._repository.warm_up()
        except Exception as error:  # noqa: BLE001  `outcome_of` raises it again
            self._fail(error)
            return
        await self._repository.give_back()
        if self._repository.ready:
            self._announce()

    async def _watch(self) -> None:
        """Exit if an engine fails permanently, so that the process manager restarts the service."""
        failure = await self._repository.failure()
        await asyncio.sleep(_REFUSE_S)
        self._fail(failure)

    async def _leave(self) -> None:
        self._repository.leave()
        if self._edge is not None:
            self._edge.leaving = True
        if notice_s := self._settings.notice_s:
            _log.info("shutting down in %g seconds: readiness fails from now on", notice_s)
            await asyncio.sleep(notice_s)
        else:
            # The answer to a client's next request tells the client to use another server.
            while any(connection.is_kept for connection in self._connections()):
                await asyncio.sleep(_LOOK_S)
        await self._drain()

    def _connections(self) -> Iterator[Connection]:
        return (each for each in self.server_state.connections if isinstance(each, Connection))

    async def _drain(self) -> None:
        if self._port is not None:
            self._tasks.append(asyncio.create_task(self._port.stop(self._settings.drain_s)))
        _log.info("shutting down: finishing %d requests", self._repository.requests)
        self.drained = await self._repository.drain(self._settings.drain_s)
        if not self.drained:
            _log.error("ending with %d unfinished requests", self._repository.requests)
            await self._repository.give_up()
        self.should_exit = True


def run_server(
    app: ASGIApp,
    endpoints: Mapping[str, AnyEndpoint],
    repository: Repository,
    listener: socket.socket,
    settings: Settings,
    keys: Keys | None,
    announce: Callable[[], None],
    port: Port | None = None,
) -> bool:
    """Serve until a signal, then close the repository. `announce` is called when the models are
    ready.

    Returns True if every accepted request was answered within `drain_s`. The function `outcome_of`
    describes the other outcomes.
    """
    config = http_settings(app, settings, keys, endpoints, repository.room)
    server = Server(config, repository, settings, announce, port)
    keep_free_memory()
    server.run(sockets=[listener])
    return outcome_of(server)


def outcome_of(server: Server) -> bool:
    """Return whether all accepted requests were answered. If an engine is stuck, exit the process
    instead.

    Raises ListenError, or the error of an engine that could not warm up or failed permanently.
    """
    if server.stuck:
        # Without this the interpreter would wait for the engine's thread, perhaps forever.
        if server.failure is not None:
            _log.error("%s", server.failure)
        _log.error("an engine is stuck in its last batch; the server exits anyway")
        logging.shutdown()
        sys.stdout.flush()
        lost = isinstance(server.failure, DeviceLostError)
        os._exit(DEVICE_LOST if lost else int(not server.drained or server.failure is not None))
    if server.failure is not None:
        raise server.failure
    return server.drained
