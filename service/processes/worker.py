"""A worker: HTTP and decoding, in a process that has no engine."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from multiprocessing import current_process
from typing import Any

import uvicorn

from service.api.app import create_app
from service.hosting.pipeline import ModelInfo
from service.hosting.repository import Repository
from service.http.edge import EdgeOptions
from service.http.server import Server, http_settings
from service.images.pool import Decoding
from service.processes import messages
from service.processes.board import Board
from service.processes.crew import Acceptor, Crew, CrewCollector, counting
from service.processes.memory import Memory
from service.processes.remote import Channel, RemoteRunner
from service.processes.slots import Slots


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """One model, as a worker has to know it."""

    info: ModelInfo
    classes: int
    max_batch: int
    device: str
    prepare: Callable[[bytes], Decoding]
    board: Board
    slots: int

    @property
    def slot_bytes(self) -> int:
        """How much memory a worker's slots take."""
        return Slots.bytes_of(self.info.image_shape, self.classes, self.slots)

    def slots_in(self, memory: Memory) -> Slots:
        """A worker's slots."""
        return Slots(memory.view, self.info.image_shape, self.classes, self.slots)


@dataclass(frozen=True)
class Outfit:
    """What workers are made of; pickled on the way to each."""

    models: Sequence[RemoteModel]
    make_repository: Callable[[], Repository]  # without models
    access_log: bool
    metrics: bool  # whether they are told on the port that clients use
    edge: EdgeOptions
    configure: Callable[[], None]  # the process, its log above all
    drain_s: float
    crew: Crew


def work(
    outfit: Outfit,
    number: int,
    listener: socket.socket,
    engine: socket.socket,
    memories: Sequence[Memory],
) -> None:
    """Serve until told to stop; the whole life of a worker."""
    outfit.configure()
    _name_in_log()
    repository = outfit.make_repository()
    repository.metrics.add(CrewCollector(outfit.crew))
    channel = Channel()
    for place, (model, memory) in enumerate(zip(outfit.models, memories, strict=True)):
        runner = RemoteRunner(
            channel,
            place,
            model.board.line(),
            model.slots_in(memory),
            model.info.output,
            classes=model.classes,
            max_batch=model.max_batch,
            device=model.device,
        )
        rows = partial(model.board.rows, worker=number)
        metrics = repository.metrics.model(model.info.name, model.info.version, rows)
        repository.join(model.info, runner, model.prepare, metrics, model.board.inside(number))
    app = create_app(repository, metrics=outfit.metrics)
    config = http_settings(app, access_log=outfit.access_log, edge=outfit.edge, lanes=app.lanes)
    server = _WorkerServer(config, repository, outfit.drain_s, channel, engine)
    server.acceptor = Acceptor(outfit.crew, number, listener, server.connect)
    server.count_lost = _count_lost(repository, outfit.crew, number)
    server.run(sockets=[])
    sys.exit(0 if server.drained else 1)


def _count_lost(repository: Repository, crew: Crew, number: int) -> Callable[[], None]:
    """What writes down the decode threads that this worker lost; metrics tell of all workers'."""
    own, before = repository.metrics.lost_decode_threads, crew.lost(number)
    repository.metrics.lost_decode_threads = lambda: sum(map(crew.lost, range(crew.workers)))
    return lambda: crew.set_lost(number, before + int(own()))


def _name_in_log() -> None:
    """Have every line of the log say which worker it is of."""
    make, name = logging.getLogRecordFactory(), current_process().name

    def make_named(*about: Any, **more: Any) -> logging.LogRecord:
        record = make(*about, **more)
        record.msg = f"{name}: {record.msg}"
        return record

    logging.setLogRecordFactory(make_named)


class _WorkerServer(Server):
    """A server that leaves with the engine's process, or by itself."""

    def __init__(
        self,
        config: uvicorn.Config,
        repository: Repository,
        drain_s: float,
        channel: Channel,
        engine: socket.socket,
    ) -> None:
        super().__init__(config, repository, drain_s, announce=lambda: None)
        # These are set before it runs.
        self.acceptor: Acceptor
        self.count_lost: Callable[[], None]
        self._channel = channel
        self._engine = engine
        channel.on_drain = self.stop
        channel.on_lost = self._orphaned

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave on SIGTERM; others go on, and another takes this one's place."""
        loop = asyncio.get_running_loop()
        with super().capture_signals():
            loop.add_signal_handler(signal.SIGTERM, self._leave)
            # Ctrl-C is for the whole group of processes; the engine's says what follows from it.
            loop.add_signal_handler(signal.SIGINT, lambda: None)
            yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self._channel, sock=self._engine)
        await super().startup(sockets)
        protocol = counting(self.config.http_protocol_class, self.acceptor.gone)
        self.config.http_protocol_class = protocol
        self.acceptor.start()
        if not self._channel.lost:
            self._channel.say(messages.listening())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, let the last answers out."""
        self.acceptor.close()
        await super().shutdown(sockets)

    async def connect(self, accepted: socket.socket) -> None:
        """Make an accepted socket a connection, as uvicorn does with those it accepts."""
        loop = asyncio.get_running_loop()
        protocol: Any = self.config.http_protocol_class  # with more parameters than it is said to
        make = partial(
            protocol,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        await loop.connect_accepted_socket(make, accepted)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        self.count_lost()
        return await super().on_tick(counter)

    def _leave(self) -> None:
        """Stop listening, answer what is inside; connections are closed as they are idle."""
        self.config.timeout_graceful_shutdown = ceil(self._drain_s)
        self.should_exit = True

    def _orphaned(self) -> None:
        """Without an engine there is nothing to do but say so to who is there."""
        self.should_exit = True
