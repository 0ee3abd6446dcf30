"""Runs the main process, which has the engines and starts the workers.

    SIGTERM or SIGINT -> the workers refuse, finish what is inside, leave -> so does this

A second signal does not wait. A worker that dies takes its own requests with it and no others, and
another takes its place; connections that no worker has accepted yet wait. A worker that does not
answer for 10 seconds is ended.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.context import ForkServerProcess
from time import monotonic
from typing import Any

import uvicorn
from typing_extensions import override

from models import Kind
from service.batching.policy import Urgency
from service.batching.queue import BatchResult, Posted
from service.edge.connections import KEPT_S
from service.engine.ranking import ScoreRow
from service.engine.runner import EngineRunner
from service.errors import ServiceError
from service.fair_queue import Client
from service.hosting.repository import Repository
from service.http.server import LEAVE_S, ListenError, Server, outcome_of
from service.processes.remote import status_of
from service.processes.shared import Crew, Memory, ModelFacts, SharedAdmission, SharedModel
from service.processes.wire import Wire
from service.processes.worker import GROUP_SIGNALS, Options, Outfit, work
from service.telemetry.counts import Counts

# Connections that no worker has accepted yet: uvicorn's default backlog.
_BACKLOG = 2048

# A worker that ends sooner than this after its start did not work at all. So many of these in a
# row, and another would not either; before each there is a longer pause.
_SHORT_S, _TOO_MANY, _PAUSE_S = 5.0, 5, 0.2

# How many statuses a worker that listens may leave unanswered, of ten per second. They are
# counted, rather than seconds: this process may have been stopped too.
_MOST_UNKNOWN = 100

_Model = tuple[EngineRunner, SharedModel]

_log = logging.getLogger("convoy")


class WorkersError(Exception):
    """Says that workers end as soon as they start."""


def prepare(modules: list[str]) -> None:
    """Start the process that forks workers; it imports `modules` while engines are being opened."""
    get_context("forkserver").set_forkserver_preload([work.__module__, *modules])
    resource_tracker.ensure_running()  # which would unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)  # it inherits that
    forkserver.ensure_running()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_workers(
    repository: Repository, listener: socket.socket, options: Options, announce: Callable[[], None]
) -> bool:
    """Run the service like `run_server`, but with HTTP and decoding in other processes.

    The repository has the models and decodes nothing. The edge's limits hold for each worker.
    Raises WorkersError where workers end as soon as they are started.
    """
    try:
        listener.listen(_BACKLOG)
    except OSError as error:  # another process bound the address too, and listened first
        raise ListenError(f"cannot listen: {error.strerror or error}") from error
    listener.setblocking(False)
    models = []
    for pipeline in repository.models.values():
        runner, max_images = pipeline.runner, pipeline.admission.max_images
        fixed = runner.classes, runner.max_batch, runner.device, runner.precision, runner.takes
        models.append(ModelFacts(pipeline.info, pipeline.prepare, max_images, *fixed))
    broken = list(repository.broken.values())
    outfit = Outfit(options, models, broken, Memory(), listener, os.getpid())
    supervisor = _Supervisor(repository, outfit, announce)
    supervisor.run(sockets=[])
    return outcome_of(supervisor)


class Session:
    """Serves one worker's requests, from its start to its end."""

    def __init__(self, wire: Wire, number: int, models: Sequence[_Model]) -> None:
        self.wire, self._number, self._models = wire, number, models
        self._open: dict[int, Posted[Any, ScoreRow]] = {}
        self.unknown = 1  # statuses that the worker has not read; the first is said by `serve`
        self._early = 0  # those of them that were sent before it listened
        self.knows = asyncio.Event()  # the worker has read the last status, or is gone
        self.left = False  # all that was inside the worker was answered

    @property
    def is_stuck(self) -> bool:
        """Return whether the worker has left too many statuses unread since it listens."""
        return self.unknown - self._early > _MOST_UNKNOWN

    def tell(self, status: Any) -> None:
        """Send the worker the status of the engines."""
        self.unknown += 1
        self.knows.clear()
        self.wire.say("status", status)

    async def serve(self, status: Any, on_listening: Callable[[], None]) -> None:
        """Handle the worker's messages until the worker is gone."""
        try:
            async for what, *about in self.wire.messages("status", status):
                if what == "submit":
                    self._submit(*about)
                elif what == "known":
                    self.unknown -= 1
                    self._early = min(self._early, self.unknown)
                    if not self.unknown:
                        self.knows.set()
                elif what == "listening":
                    self._early = self.unknown
                    on_listening()
                elif what == "left":
                    self.left = True
                else:
                    self._withdraw(about[0])
        except (LookupError, TypeError, ValueError):
            _log.exception("worker %d sent an invalid message", self._number)
        finally:
            self.knows.set()
            for posted in self._open.values():
                posted.withdraw()

    def _withdraw(self, number: int) -> None:
        """Withdraw a request if none of its images is dispatched; others end with their batches,
        which read the slots."""
        posted = self._open.get(number)
        if posted is not None and posted.left == len(posted.items):
            del self._open[number]
            posted.withdraw()
            self.wire.say("withdrawn", number)

    def _submit(
        self,
        number: int,
        index: int,
        slots: list[int],
        kinds: str,
        urgency: Sequence[Any],
        client: Sequence[Any],
        inner: Sequence[str],
    ) -> None:
        runner, shared = self._models[index]
        scores, flags = shared.scores[self._number], shared.flags[self._number]

        def then(outcome: BatchResult[ScoreRow] | ServiceError) -> None:
            self._open.pop(number, None)
            if isinstance(outcome, ServiceError):
                kind = type(outcome).__name__
                self.wire.say("failed", number, kind, str(outcome), vars(outcome))
                return
            for slot, row in zip(slots, outcome.results, strict=True):
                scores[slot], flags[slot] = row.scores, row.flags
                for name in inner:
                    shared.inner[name][self._number][slot] = row.inner[name]
            self.wire.say("done", number, *outcome[1:])

        try:
            own = [
                shared.image(self._number, slot, Kind(int(kind)))
                for slot, kind in zip(slots, kinds, strict=True)
            ]
            asked = Urgency(*urgency), Client(*client), inner
            self._open[number] = runner.post(own, then, *asked)
        except ServiceError as error:
            then(error)


class _Supervisor(Server):
    """Runs a server that leaves all connections to its workers."""

    def __init__(
        self, repository: Repository, outfit: Outfit, announce: Callable[[], None]
    ) -> None:
        config = uvicorn.Config(_no_app, log_config=None, lifespan="off", ws="none")
        super().__init__(config, repository, outfit.options.settings, announce)
        metrics, workers = repository.metrics, outfit.options.settings.workers
        self._crew = Crew(outfit.memory, workers)
        self._models: list[_Model] = []
        for pipeline, model in zip(repository.models.values(), outfit.models, strict=True):
            shared = SharedModel(outfit.memory, workers, model, metrics.max_batch)
            pipeline.metrics.counts = Counts(metrics.max_batch, shared.counts, workers)
            pipeline.admission = SharedAdmission(pipeline.admission, shared.inside, 0)
            self._models.append((pipeline.runner, shared))
        metrics.lost_decode_threads = lambda: sum(self._crew.lost_threads)
        metrics.add(self._crew)
        self._outfit = outfit
        self._alive: dict[int, tuple[ForkServerProcess, Session]] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._all_listen = asyncio.Event()
        self._ending = False

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        workers = range(self._outfit.options.settings.workers)
        self._keepers = [asyncio.create_task(self._keep(number)) for number in workers]
        await super().startup(sockets)

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._end_workers(2 * LEAVE_S)
        for process, _ in self._alive.values():
            process.kill()
        await asyncio.wait(self._keepers)
        await super().shutdown(sockets)

    @override
    async def on_tick(self, counter: int) -> bool:
        self._tell_status()
        for number, (process, session) in self._alive.items():
            if self._crew.listening[number] and session.is_stuck:
                _log.error("worker %d does not answer: it is stuck or stopped", number)
                self._crew.listening[number] = 0
                process.kill()
        return await super().on_tick(counter)

    def _tell(self, *message: Any) -> None:
        for _, session in self._alive.values():
            session.wire.say(*message)

    def _tell_status(self) -> None:
        status = self._status()
        for _, session in self._alive.values():
            session.tell(status)

    def _status(self) -> Sequence[Any]:
        return [status_of(runner) for runner, _ in self._models]

    @override
    def _read_again(self) -> None:
        self._tell("reload")  # workers have the keys

    @override
    async def _warm_up(self) -> None:
        await self._all_listen.wait()  # so that L(n) is not measured while they start
        await super()._warm_up()

    @override
    async def _tell_ready(self) -> None:
        """Announce readiness after telling all workers, because one that does not know
        answers 503."""
        self._tell_status()
        listening = (number for number in self._alive if self._crew.listening[number])
        await asyncio.gather(*(self._alive[number][1].knows.wait() for number in listening))
        await super()._tell_ready()

    @override
    def _give_notice(self) -> None:
        self._tell("leave")  # workers answer for readiness

    @override
    async def _drain(self) -> None:
        _log.info("shutting down: the workers finish the requests inside")
        # They refuse what is new, but first serve clients that kept their connections.
        await self._end_workers(KEPT_S + self._settings.drain_s)
        self.should_exit = True

    async def _end_workers(self, timeout_s: float) -> None:
        """Drain the workers; a second call ends them at once."""
        self._ending = True
        self._outfit.listener.close()  # the last worker to leave ends the listening
        self._tell("drain")
        await asyncio.wait(self._keepers, timeout=timeout_s)

    async def _keep(self, number: int) -> None:
        """Keep a worker with this number running: start another whenever it ends, until the service
        ends."""
        short = 0
        while not self._ending:
            began = monotonic()
            try:
                status = await self._live(number)
            except Exception:  # noqa: BLE001  logged; a few of them end the service
                _log.exception("starting or following worker %d failed", number)
                status = 1
            another = "" if self._ending else "; another takes its place"
            if another or status:
                _log.error("worker %d ended with status %d%s", number, status, another)
            if self._ending:
                self.drained = self.drained and status == 0
                return
            self._crew.replaced[number] += 1
            short = short + 1 if monotonic() - began < _SHORT_S else 0
            if short == _TOO_MANY:
                reason = f"worker {number} ended as soon as it was started, {short} times in a row"
                self._fail(WorkersError(reason))
                return
            await asyncio.sleep(short * _PAUSE_S)

    async def _live(self, number: int) -> int:
        """Run one worker, and return its exit status, -N if signal N ended it.

        It is 0 if the worker said that it left: its status is unknown where its parent has ended.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = self._outfit, number, theirs
            process = get_context("forkserver").Process(target=work, args=arguments, daemon=True)
            # In a thread: it takes a second where the process that forks them has ended.
            await asyncio.to_thread(ForkServerProcess.start, process)
        session = Session(Wire(ours), number, self._models)
        self._alive[number] = process, session

        def listens() -> None:
            _log.info("worker %d listens", number)
            self._crew.listening[number] = 1
            if sum(self._crew.listening) == self._outfit.options.settings.workers:
                self._all_listen.set()
            if self._ending:
                session.wire.say("drain")

        try:
            await session.serve(self._status(), listens)
            await asyncio.to_thread(process.join, LEAVE_S)
        finally:
            self._crew.listening[number] = 0
            process.kill()  # where it holds on
            await asyncio.to_thread(process.join)
            del self._alive[number]
            for _, shared in self._models:
                shared.inside[number][0] = 0
        return 0 if session.left else process.exitcode or 0


async def _no_app(_scope: Any, _receive: Any, _send: Any) -> None:
    """Serve as the application of a server that never calls it."""
