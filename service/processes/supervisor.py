"""The main process: runs the engines, and keeps as many workers as wanted.

    SIGTERM or SIGINT -> the workers refuse, finish what is inside, leave -> so does this

A second signal does not wait. A worker that dies takes its own requests with it and no others, and
another takes its place; connections that no worker has accepted wait for it.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from time import monotonic
from typing import Any

import uvicorn

from service.batching.policy import Urgency
from service.batching.waiting import Answered, Request
from service.engine.ranking import ScoreRow
from service.engine.runner import EngineRunner, State
from service.errors import ServiceError
from service.hosting.repository import Repository
from service.http.server import LEAVE_S, Server
from service.processes.shared import (
    BUSY_UNTIL, DEPTH, LISTENING, QUICKEST_S, REPLACED, RESTARTS, STATE, WAIT_S, Crew, Shared,
)  # fmt: skip
from service.processes.wire import Wire
from service.processes.worker import Outfit, work

# A worker that ends sooner than this after its start did not work at all. So many of these in a
# row, and another would not either; before each there is a pause, which doubles.
_SHORT_S = 5.0
_TOO_MANY = 5
_PAUSE_S = 0.1

_STATES = tuple(State)

_log = logging.getLogger("convoy")


class WorkersError(Exception):
    """Workers end as soon as they are started."""


class Session:
    """What one worker asks of the runners, from its start to its end."""

    def __init__(
        self, wire: Wire, number: int, models: Sequence[tuple[EngineRunner, Shared]]
    ) -> None:
        self.wire = wire
        self._number = number
        self._models = models
        self._open: dict[int, Request[Any, ScoreRow]] = {}

    async def serve(self, on_listening: Callable[[], None]) -> None:
        """Do what the worker asks, until it is gone."""
        try:
            async for what, *about in self.wire.messages():
                if what == "submit":
                    self._submit(*about)
                elif what == "listening":
                    on_listening()
                elif posted := self._open.pop(about[0], None):
                    posted.withdraw()
        except (LookupError, TypeError, ValueError):
            _log.exception("worker %d asks for what there is not", self._number)
        finally:
            for posted in self._open.values():
                posted.withdraw()

    def _submit(
        self, number: int, place: int, slots: list[int], deadline: float, priority: int
    ) -> None:
        runner, shared = self._models[place]
        images, scores = shared.images[self._number], shared.scores[self._number]

        def then(outcome: Answered[ScoreRow] | ServiceError) -> None:
            self._open.pop(number, None)
            if isinstance(outcome, ServiceError):
                error = type(outcome).__name__, str(outcome), vars(outcome)
                self.wire.say("failed", number, *error)
                return
            for slot, row in zip(slots, outcome.results, strict=True):
                scores[slot] = row.scores
            self.wire.say("done", number, *outcome[1:])

        try:
            pixels = [images[slot] for slot in slots]
            self._open[number] = runner.post(pixels, then, Urgency(deadline, priority))
        except ServiceError as error:
            then(error)


class Supervisor(Server):
    """A server without connections of its own: workers have them."""

    def __init__(
        self, repository: Repository, outfit: Outfit, crew: Crew,
        shared: Sequence[Shared], announce: Callable[[], None],
    ) -> None:  # fmt: skip
        """`announce` is called once requests are taken."""
        config = uvicorn.Config(_no_app, log_config=None, lifespan="off", ws="none")
        super().__init__(config, repository, outfit.drain_s, announce)
        self._outfit = outfit
        self._crew = crew
        runners = [pipeline.runner for pipeline in repository.models.values()]
        self._models = list(zip(runners, shared, strict=True))
        self._alive: dict[int, tuple[ForkServerProcess, Wire]] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._all_listen = asyncio.Event()
        self._ending = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the workers; the models warm up once all of them listen."""
        self._publish()
        self._keepers = [asyncio.create_task(self._keep(n)) for n in range(self._outfit.workers)]
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the workers that have not left, and close the models."""
        await self._end_workers(2 * LEAVE_S)
        for process, _ in self._alive.values():
            process.kill()
        await asyncio.wait(self._keepers)
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        self._publish()
        return await super().on_tick(counter)

    def _read_again(self) -> None:
        """Have the workers do it, who have what the files are for."""
        for process, _ in self._alive.values():
            if process.pid is not None:
                os.kill(process.pid, signal.SIGHUP)

    async def _warm_up(self) -> None:
        await self._all_listen.wait()
        await super()._warm_up()

    async def _drain(self) -> None:
        _log.info("shutting down: the workers finish what is inside")
        for runner, _ in self._models:
            runner.refuse()
        self._publish()
        await self._end_workers(self._drain_s)
        self.should_exit = True

    async def _end_workers(self, timeout_s: float) -> None:
        """Have them finish what is inside, and leave; said again: not wait for it."""
        self._ending = True
        for _, wire in self._alive.values():
            wire.say("drain")
        await asyncio.wait(self._keepers, timeout=timeout_s)

    def _publish(self) -> None:
        """Let the workers know how the models are."""
        for runner, shared in self._models:
            status, batcher = shared.status, runner.batcher
            status[STATE] = _STATES.index(runner.state)
            status[DEPTH] = batcher.depth
            status[RESTARTS] = runner.restarts
            status[WAIT_S] = batcher.expected_wait_s()
            status[BUSY_UNTIL] = batcher.busy_until
            status[QUICKEST_S] = batcher.latency.of(1)

    async def _keep(self, number: int) -> None:
        """Have a worker of this number, until the end."""
        short = 0
        while not self._ending:
            began = monotonic()
            status = await self._live(number)
            if self._ending:
                self.drained = self.drained and status == 0
                return
            self._crew.all[REPLACED] += 1
            how = f"by signal {-status}" if status < 0 else f"with status {status}"
            _log.error("worker %d ended %s; another takes its place", number, how)
            short = short + 1 if monotonic() - began < _SHORT_S else 0
            if short == _TOO_MANY:
                reason = f"worker {number} ended as soon as it was started, {short} times in a row"
                self.failure = WorkersError(reason)
                self.should_exit = True
                return
            await asyncio.sleep(short and _PAUSE_S * 2**short)

    async def _live(self, number: int) -> int:
        """A worker, from its start to its end; its exit status, below 0: by a signal."""
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = self._outfit, number, theirs
            process = get_context("forkserver").Process(target=work, args=arguments, daemon=True)
            # In a thread: it takes a second where the process that forks them has ended.
            await asyncio.to_thread(ForkServerProcess.start, process)
        session = Session(Wire(ours), number, self._models)
        self._alive[number] = process, session.wire
        row = self._crew.workers[number]

        def listens() -> None:
            _log.info("worker %d listens", number)
            row[LISTENING] = 1
            if all(each[LISTENING] for each in self._crew.workers):
                self._all_listen.set()
            if self._ending:
                session.wire.say("drain")

        await session.serve(listens)
        await asyncio.to_thread(process.join, LEAVE_S)
        process.kill()  # where it holds on
        await asyncio.to_thread(process.join)
        del self._alive[number]
        row[LISTENING] = 0
        for _, shared in self._models:
            shared.inside[number][0] = 0
        return process.exitcode or 0


async def _no_app(*_: Any) -> None:
    """No request comes here."""
