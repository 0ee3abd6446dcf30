"""A worker: HTTP and decoding, in a process that has no engine."""

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from service.api.app import create_app
from service.edge.edge import EdgeOptions
from service.engine.runner import EngineRunner
from service.hosting.repository import Repository
from service.http.server import Server, http_settings
from service.processes.remote import Link, RemoteRunner
from service.processes.shared import (
    LOST_THREADS, Crew, Memory, RemoteModel, Shared, SharedAdmission, SharedCounts,
)  # fmt: skip
from service.processes.wire import Wire
from service.telemetry.counts import Counts
from service.telemetry.metrics import ModelMetrics

# After it accepted a connection a worker leaves the next ones to others, which may have fewer.
_YIELD_S = 0.001

# As many files are open as may be.
_FULL_S = 1.0


@dataclass(frozen=True)
class Outfit:
    """What workers are made of; pickled for each."""

    workers: int
    models: Sequence[RemoteModel]
    memory: Memory
    listener: socket.socket
    make_repository: Callable[[], Repository]  # without models
    configure: Callable[[], None]  # the process, its log above all
    edge: EdgeOptions
    access_log: bool
    metrics: bool  # whether the clients' port tells them
    drain_s: float
    main: int  # the main process

    def open_memory(self, max_batch: int) -> tuple[Crew, list[Shared]]:
        """All that is shared; metrics are for batches of so many."""
        crew, width = Crew(self.memory, self.workers), len(Counts(max_batch).row)
        return crew, [Shared(self.memory, model, self.workers, width) for model in self.models]


def work(outfit: Outfit, number: int, end: socket.socket) -> None:
    """Serve until the main process says to stop, or ends; the whole life of a worker."""
    # Signals to a group of processes, as Ctrl-C, are for the main process to follow.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    gc.freeze()  # the collector would write to, and so copy, what forked workers share
    outfit.configure()
    _name_in_log(f"worker-{number}")
    repository, link = outfit.make_repository(), Link(Wire(end))
    metrics, room = repository.metrics, repository.room
    room.most = max(repository.max_body_bytes, room.most // outfit.workers)
    crew, every = outfit.open_memory(metrics.max_batch)
    for place, (model, shared) in enumerate(zip(outfit.models, every, strict=True)):
        info = model.info
        counts = SharedCounts(metrics.max_batch, shared.counts, number)
        metrics.models.append(ModelMetrics(info.name, info.version, counts))
        runner = cast(EngineRunner, RemoteRunner(link, place, model, shared, number))
        pipeline = repository.join(info, runner, model.prepare, metrics.models[-1])
        pipeline.admission = SharedAdmission(pipeline.admission, shared.inside, number)
    metrics.add(crew)
    metrics.process = outfit.main  # each its own, the counters would go up and down
    row, lost = crew.workers[number], metrics.lost_decode_threads
    metrics.lost_decode_threads, before = crew.lost_threads, row[LOST_THREADS]

    def count_lost() -> None:
        row[LOST_THREADS] = before + int(lost())

    app = create_app(repository, metrics=outfit.metrics)
    config = http_settings(
        app, access_log=outfit.access_log, edge=outfit.edge, endpoints=app.endpoints
    )
    server = _Server(config, repository, outfit.drain_s, announce=lambda: None)
    server.outfit, server.link, server.count_lost = outfit, link, count_lost
    server.run(sockets=[])
    sys.exit(0 if server.drained else 1)


def _name_in_log(name: str) -> None:
    """Have every line of the log say which worker it is of."""
    make = logging.getLogRecordFactory()

    def make_named(*about: Any, **more: Any) -> logging.LogRecord:
        record = make(*about, **more)
        record.msg = f"{name}: {record.msg}"
        return record

    logging.setLogRecordFactory(make_named)


class _Server(Server):
    """A server that accepts from the socket of all workers, and ends with the main process."""

    outfit: Outfit
    link: Link
    count_lost: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, and say so."""
        await super().startup(sockets)
        self._work = [asyncio.create_task(self._accept()), asyncio.create_task(self._follow())]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, let the last answers out."""
        self._work[0].cancel()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        self.count_lost()
        return await super().on_tick(counter)

    async def _follow(self) -> None:
        await self.link.follow(self.stop)
        self.should_exit = True

    async def _accept(self) -> None:
        """Take a share of the connections, as uvicorn makes them of those it accepts itself."""
        loop = asyncio.get_running_loop()
        protocol: Any = self.config.http_protocol_class
        make = partial(protocol, self.config, self.server_state, self.lifespan.state)
        while True:
            try:
                connection, _ = await loop.sock_accept(self.outfit.listener)
            except OSError as error:
                _log.error("no connection can be accepted: %s", error)
                await asyncio.sleep(_FULL_S)
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.connect_accepted_socket(make, connection)
            await asyncio.sleep(_YIELD_S)


_log = logging.getLogger("convoy")
