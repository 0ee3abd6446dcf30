"""Runs an application until it is told to stop: listen, warm up, announce, drain, close.

    SIGTERM or SIGINT -> refuse new requests, health says so -> finish what is inside -> leave

A second signal does not wait.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import uvicorn
from starlette.types import ASGIApp

from models import DeviceLostError
from service.edge.edge import EdgeOptions, make_edge
from service.hosting.repository import Repository
from service.http.connection import Connection
from service.http.exchange import Endpoint
from service.http.uvicorn_adapter import ConvoyConfig

# For answers on their way once everything is drained, and for an engine to let go.
LEAVE_S = 2

# For requests on their way while an engine is given up for good: they are answered 503.
_REFUSE_S = 1.0

DEVICE_LOST = 75
"""The process's exit status where the device is lost (EX_TEMPFAIL): another process may have it."""

_log = logging.getLogger("convoy")


class ListenError(Exception):
    """The address cannot be listened on."""


def bind(host: str, port: int, settings: str = "--host and --port") -> socket.socket:
    """A socket bound to the address, not yet listening, so that nobody waits for the model.

    ListenError, naming the settings, where the address is in use, not allowed or not known.
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


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the process at once, with the usual status, where nobody is served yet.

    Of the first process in a container the kernel keeps signals away that it does not ask for.
    SIGHUP, which has files read again, is left alone until there is something to read again.
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
    *,
    access_log: bool,
    edge: EdgeOptions | None = None,
    endpoints: Mapping[str, Endpoint] | None = None,
) -> ConvoyConfig:
    """How uvicorn serves any application here; benchmarks compare Convoy with a bare one."""
    return ConvoyConfig(
        app,
        make_edge(edge or EdgeOptions(), access_log=access_log),
        {path.encode(): endpoint for path, endpoint in (endpoints or {}).items()},
        log_config=None,
        access_log=False,  # uvicorn's own
        server_header=False,
        lifespan="off",
        ws="none",
        http=Connection,
        timeout_graceful_shutdown=LEAVE_S,
    )


def run_server(
    app: ASGIApp,
    endpoints: Mapping[str, Endpoint],
    repository: Repository,
    listener: socket.socket,
    *,
    drain_s: float,
    access_log: bool,
    edge: EdgeOptions | None = None,
    announce: Callable[[], None],
) -> bool:
    """Serve until a signal; `announce` is called once requests are taken.

    Closes the repository. True if every accepted request was answered within `drain_s`. Raises what
    the engine raised if it cannot be warmed up, or why it was given up. Does not return where an
    engine is stuck.
    """
    config = http_settings(app, access_log=access_log, edge=edge, endpoints=endpoints)
    server = Server(config, repository, drain_s, announce)
    server.run(sockets=[listener])
    return outcome_of(server)


class Ended(Protocol):
    """How serving ended."""

    drained: bool  # everything accepted was answered in time
    stuck: bool  # an engine does not end its last batch
    failure: Exception | None  # why it could not go on


def outcome_of(ended: Ended) -> bool:
    """Whether all was answered; raises its failure. Does not return where an engine is stuck."""
    if ended.stuck:
        # The interpreter would wait for the engine's thread, perhaps for ever.
        if ended.failure is not None:
            _log.error("%s", ended.failure)
        _log.error("an engine does not end its last batch; leaving without it")
        logging.shutdown()
        sys.stdout.flush()
        if isinstance(ended.failure, DeviceLostError):
            os._exit(DEVICE_LOST)
        os._exit(0 if ended.drained and ended.failure is None else 1)
    if ended.failure is not None:
        raise ended.failure
    return ended.drained


class Server(uvicorn.Server):
    """uvicorn, with models to warm up after listening and to drain before leaving."""

    def __init__(
        self,
        config: uvicorn.Config,
        repository: Repository,
        drain_s: float,
        announce: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._repository = repository
        self._drain_s = drain_s
        self._announce = announce
        self._warming: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
        self.failure: Exception | None = None
        self.drained = True
        self.stuck = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Drain on a signal; uvicorn's own way ends by killing the process with it again."""
        loop = asyncio.get_running_loop()
        handlers = {
            signal.SIGINT: self.stop,
            signal.SIGTERM: self.stop,
            signal.SIGHUP: self._read_again,
        }
        before = {number: signal.getsignal(number) for number in handlers}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)
                signal.signal(number, before[number])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then begin to warm up; health answers meanwhile."""
        try:
            await super().startup(sockets)
        except OSError as error:  # somebody else bound the address too, and listened first
            self.failure = ListenError(f"cannot listen: {error.strerror or error}")
            self.should_exit = True
            return
        self._warming = asyncio.create_task(self._warm_up())
        self._watching = asyncio.create_task(self._watch())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, let the last answers out, close the models."""
        await super().shutdown(sockets)
        self.stuck = not await self._repository.close(LEAVE_S)

    def stop(self) -> None:
        """Drain; the second time, do not wait for it."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())
            return
        # A second signal: cancelling says whether there was still something to wait for.
        self.drained = not self._draining.cancel()
        self.should_exit = self.force_exit = True

    def _read_again(self) -> None:
        """Read the files again that may have changed."""
        keys = self.config.edge.keys if isinstance(self.config, ConvoyConfig) else None
        if keys is None:
            _log.info("SIGHUP: there is no file to read again (--api-key-file)")
        else:
            keys.reload()

    async def _warm_up(self) -> None:
        try:
            await self._repository.warm_up()
        except Exception as error:  # noqa: BLE001  `run_server` raises it again
            self.failure = error
            self.should_exit = True
            return
        if self._repository.ready:
            self._announce()

    async def _watch(self) -> None:
        """Leave where an engine is beyond help, so that whoever started this starts it afresh."""
        self.failure = await self._repository.failure()
        await asyncio.sleep(_REFUSE_S)
        self.should_exit = True

    async def _drain(self) -> None:
        _log.info("shutting down: finishing %d requests", self._repository.requests)
        self.drained = await self._repository.drain(self._drain_s)
        if not self.drained:
            _log.error("giving up %d requests", self._repository.requests)
            await self._repository.give_up()
        self.should_exit = True
