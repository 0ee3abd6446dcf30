"""Runs a worker, which does HTTP and decoding in a process without engines."""

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

from typing_extensions import override

from service.api.app import create_app
from service.edge.keys import Keys
from service.engine.runner import EngineRunner
from service.grpc import port_of
from service.hosting.pipeline import FailedModel
from service.hosting.repository import Repository
from service.http.server import Server, http_settings
from service.processes.remote import Link, RemoteRunner
from service.processes.shared import Crew, Memory, ModelFacts, SharedAdmission, SharedModel
from service.processes.wire import Wire
from service.settings import Settings
from service.telemetry.counts import Counts
from service.telemetry.metrics import ModelMetrics

# How long, and how often, a worker leaves a connection to workers that have fewer; and how long it
# accepts none while no more files can be opened.
_YIELD_S, _YIELDS, _FULL_S = 0.001, 20, 1.0

# Ctrl-C and init systems send them to a group of processes; only the main process follows them.
GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_log = logging.getLogger("convoy")


@dataclass(frozen=True)
class Options:
    """Holds the settings that processes started by `--workers` need."""

    settings: Settings
    keys: Keys | None
    make_repository: Callable[[], Repository]  # without models
    configure: Callable[[], None]  # called first: sets up the log


class Outfit(NamedTuple):
    """Holds everything that a worker starts with, to be pickled."""

    options: Options
    models: Sequence[ModelFacts]
    broken: Sequence[FailedModel]
    memory: Memory
    listener: socket.socket
    main: int  # the main process


def work(outfit: Outfit, number: int, end: socket.socket) -> None:
    """Run a worker, which serves until the main process tells it to stop or ends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    gc.freeze()  # the collector would write to, and so copy, what forked workers share
    options, settings = outfit.options, outfit.options.settings
    options.configure()
    logging.setLogRecordFactory(partial(_record, f"worker-{number}: "))
    repository, link = options.make_repository(), Link(Wire(end))
    metrics, room = repository.metrics, repository.room
    room.max_bytes = max(repository.max_body_bytes, room.max_bytes // settings.workers)
    crew = Crew(outfit.memory, settings.workers)
    for model in outfit.models:
        shared = SharedModel(outfit.memory, settings.workers, model, metrics.max_batch)
        counts = Counts(metrics.max_batch, shared.counts, number)
        metrics.models.append(ModelMetrics(model.info.name, model.info.version, counts))
        runner = cast(EngineRunner, RemoteRunner(link, model, shared, number))
        pipeline = repository.join(model.info, runner, model.prepare, metrics.models[-1])
        pipeline.admission = SharedAdmission(pipeline.admission, shared.inside, number)
    for broken in outfit.broken:
        repository.add_broken(broken)
    app = create_app(repository, metrics_port=settings.metrics_port)
    config = http_settings(app, settings, options.keys, app.endpoints, room)
    own = settings.model_copy(update={"notice_s": 0})  # the main process has given notice
    port = port_of(repository, settings)
    server = _Server(config, repository, own, announce=lambda: None, port=port)
    server.listener, server.link = outfit.listener, link
    server.crew, server.number = crew, number
    server.lost, server.lost_before = metrics.lost_decode_threads, crew.lost_threads[number]
    metrics.lost_decode_threads = lambda: sum(crew.lost_threads)
    metrics.add(crew)
    metrics.process = outfit.main  # each its own, the counters would go up and down
    server.run(sockets=[])
    sys.exit(0 if server.drained else 1)


def _record(prefix: str, *about: Any, **more: Any) -> logging.LogRecord:
    record = logging.LogRecord(*about, **more)
    record.msg = f"{prefix}{record.msg}"
    return record


class _Server(Server):
    """Accepts connections from the socket that all workers share; ends with the main process."""

    listener: socket.socket
    link: Link
    crew: Crew
    number: int
    lost: Callable[[], float]  # decode threads
    lost_before = 0  # by workers in whose place this one is
    _accepting: asyncio.Task[None] | None = None

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._tasks.append(asyncio.create_task(self._follow()))

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        await self.accept_rest(self.listener)
        self.listener.close()
        await super().shutdown(sockets)
        if self.drained:
            await self.link.wire.end("left")

    @override
    async def on_tick(self, counter: int) -> bool:
        self.crew.lost_threads[self.number] = self.lost_before + int(self.lost())
        return await super().on_tick(counter)

    async def _follow(self) -> None:
        commands = {
            "status": self._start,
            "leave": self._give_notice,
            "drain": self.stop,
            "reload": self._read_again,
        }
        await self.link.follow(commands)
        self.should_exit = True

    def _start(self) -> None:
        if self._accepting is None:
            self._accepting = asyncio.create_task(self._accept())
            self.link.wire.say("listening")

    async def _accept(self) -> None:
        """Accept a share of the connections, and treat them like uvicorn's."""
        loop = asyncio.get_running_loop()
        self.listener.setblocking(False)
        while True:
            await self._turn(loop)
            try:
                await asyncio.shield(self.accept(self.listener))
            except BlockingIOError:  # another worker has it
                continue
            except OSError as error:
                _log.error("cannot accept connections: %s", error)
                await asyncio.sleep(_FULL_S)

    async def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for a connection, which is left for some milliseconds to a worker that has fewer."""
        arrived = asyncio.Event()
        loop.add_reader(self.listener, arrived.set)
        try:
            await arrived.wait()
        finally:
            loop.remove_reader(self.listener)
        for _ in range(_YIELDS):
            self.crew.connections[self.number] = len(self.server_state.connections)
            if not self.crew.has_most(self.number):
                return
            await asyncio.sleep(_YIELD_S)
