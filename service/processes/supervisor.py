"""The engine's process: runs the engines, and starts, replaces and ends the workers.

    SIGTERM or SIGINT -> the workers refuse, finish what is inside, leave -> so does this

A second signal does not wait. A worker that dies takes its own requests with it and no others;
another takes its place. Workers are forked by a process that does nothing else (multiprocessing's
fork server), which has read all the code but has no engine and no thread: so a new one is there in
a moment, and shares the code's memory with the others.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerProcess
from time import monotonic
from typing import Any

from service.engine.runner import EngineRunner
from service.engine.workers import Workers
from service.hosting.repository import Repository
from service.http.server import LEAVE_S, ListenError
from service.processes.memory import Memory
from service.processes.session import Model, Session
from service.processes.worker import Outfit, work

# A worker that ends sooner than this after its start did not work at all.
_SHORT_S = 5.0

# So many of these in a row, and there is no point in another. Before the second of them and those
# after it there is a pause, which doubles.
_TOO_MANY = 5
_PAUSE_S = 0.1

# What multiprocessing says of a process of which it was not told how it ended.
_UNKNOWN = 255

_LAST = "service.processes.preload"

# How often the board is written without a reason.
_PUBLISH_S = 0.1

# Connections that no worker has accepted yet: as many as uvicorn has it.
_BACKLOG = 2048

_log = logging.getLogger("convoy")


class WorkersError(Exception):
    """Workers end as soon as they are started."""


def prepare(modules: Sequence[str] = ()) -> None:
    """Begin to read the code that workers run, these `modules` too.

    Best called before there are engines: it takes a second or more, in a process of its own.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([work.__module__, *modules, _LAST])
    forkserver.ensure_running()


class _Life:
    """One worker, from its start to its end."""

    def __init__(self, process: ForkServerProcess, session: Session) -> None:
        self.process = process
        self.session = session
        self.ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(process.sentinel, self._on_end)

    @property
    def status(self) -> int:
        """How it ended; below 0: by a signal."""
        status = self.process.exitcode
        return -signal.SIGKILL if status is None else status

    def make_sure(self) -> None:
        """Have it really ended where nobody knows: the process that forks them has ended itself.

        Two of one number would count in the same places.
        """
        if self.process.exitcode == _UNKNOWN and self.process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self.process.sentinel)
        self.ended.set()


class Supervisor:
    """Used from one event loop, which is the engines' too."""

    def __init__(
        self,
        repository: Repository,
        outfit: Outfit,
        listener: socket.socket,
        *,
        workers: int,
        announce: Callable[[], None],
    ) -> None:
        """`outfit` is for the repository's models; `announce` is called once requests are taken."""
        self._repository = repository
        self._outfit = outfit
        self._listener = listener
        self._count = workers
        self._announce = announce
        self._models: list[Model] = []
        self._lives: dict[int, _Life] = {}
        self._listening: set[int] = set()
        self._starter = Workers("start", 1)  # a thread: starting one takes milliseconds
        self._signals = 0
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self.failure: Exception | None = None
        self.drained = True
        self.stuck = False

    async def run(self) -> None:
        """Serve until a signal, or until something is broken for good: see `failure`."""
        for pipeline, remote in zip(
            self._repository.models.values(), self._outfit.models, strict=True
        ):
            assert isinstance(pipeline.runner, EngineRunner)  # noqa: S101  here they all are
            self._models.append(Model(pipeline.runner, remote.board.line()))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGHUP, self._pass_on, signal.SIGHUP)
        try:
            self._listener.listen(_BACKLOG)
        except OSError as error:  # somebody else bound the address too, and listened first
            self._fail(ListenError(f"cannot listen: {error.strerror or error}"))
            return
        keepers = [asyncio.create_task(self._keep(number)) for number in range(self._count)]
        for keeper in keepers:
            keeper.add_done_callback(self._on_kept)
        watching = [asyncio.create_task(work) for work in (self._warm_up(), self._watch())]
        publishing = asyncio.create_task(self._publish())
        try:
            await self._stopping.wait()
            await self._drain(keepers)
        finally:
            for life in self._lives.values():
                life.process.kill()
            for task in (*keepers, *watching, publishing):
                task.cancel()
            self._starter.close()
            self.stuck = not await self._repository.close(LEAVE_S)

    def _on_signal(self) -> None:
        self._signals += 1
        (self._stopping if self._signals == 1 else self._hurrying).set()

    def _pass_on(self, number: signal.Signals) -> None:
        """What is for whoever has connections."""
        for life in self._lives.values():
            if life.process.pid is not None and not life.ended.is_set():
                os.kill(life.process.pid, number)

    def _fail(self, failure: Exception) -> None:
        """End, for this reason."""
        self.failure = self.failure or failure
        self._stopping.set()

    def _on_kept(self, keeper: "asyncio.Task[None]") -> None:
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            assert isinstance(error, Exception)  # noqa: S101  what is none ends the loop
            self._fail(error)

    async def _publish(self) -> None:
        while True:
            for model in self._models:
                model.publish()
            await asyncio.sleep(_PUBLISH_S)

    async def _warm_up(self) -> None:
        try:
            await self._repository.warm_up()
        except Exception as error:  # noqa: BLE001  whoever reads `failure` raises it
            self._fail(error)
            return
        for model in self._models:
            model.publish()
        self._on_ready()

    async def _watch(self) -> None:
        self._fail(await self._repository.failure())

    def _on_listening(self, number: int) -> None:
        _log.info("worker %d listens", number)
        first = number not in self._listening
        self._listening.add(number)
        if first:
            self._on_ready()

    def _on_ready(self) -> None:
        """Announce the service, once all of it is there."""
        if self._repository.ready and len(self._listening) == self._count:
            self._announce()

    async def _keep(self, number: int) -> None:
        """Have a worker of this number, until the end."""
        short = 0
        while not self._stopping.is_set():
            began = monotonic()
            try:
                life = self._lives[number] = await self._start(number)
            except (OSError, EOFError) as error:  # of the process that forks them
                _log.error("worker %d cannot be started: %s", number, error)
            else:
                if self._stopping.is_set():
                    life.session.drain()
                await life.ended.wait()
                life.make_sure()
                del self._lives[number]
                self._outfit.crew.replace(number)
                for model in self._outfit.models:
                    model.board.inside(number).forget()
                if self._stopping.is_set():
                    self.drained = self.drained and life.status == 0
                    return
                _log.log(
                    logging.ERROR if life.status else logging.INFO,
                    "worker %d ended %s; another takes its place",
                    number,
                    _how(life.status),
                )
            short = short + 1 if monotonic() - began < _SHORT_S else 0
            if short == _TOO_MANY:
                self._fail(
                    WorkersError(
                        f"worker {number} ended as soon as it was started, {short} times in a row"
                    )
                )
            elif short > 1:
                await _either(self._stopping, timeout_s=_PAUSE_S * 2 ** (short - 2))

    async def _start(self, number: int) -> _Life:
        ours, theirs = socket.socketpair()
        with theirs:
            memories = [Memory(model.slot_bytes) for model in self._outfit.models]
            process = get_context("forkserver").Process(
                target=work,
                name=f"worker-{number}",
                args=(self._outfit, number, self._listener, theirs, memories),
                daemon=True,
            )
            await self._starter.run(ForkServerProcess.start, process)
        slots = [
            model.slots_in(memory)
            for model, memory in zip(self._outfit.models, memories, strict=True)
        ]
        session = Session(
            list(zip(self._models, slots, strict=True)), lambda: self._on_listening(number)
        )
        await asyncio.get_running_loop().create_unix_connection(lambda: session, sock=ours)
        return _Life(process, session)

    async def _drain(self, keepers: Sequence["asyncio.Task[None]"]) -> None:
        """Have the workers finish, and end them that do not."""
        for pipeline in self._repository.models.values():
            pipeline.refuse()
        for model in self._models:
            model.publish()
        for life in self._lives.values():
            life.session.drain()
        ending = asyncio.gather(*keepers, return_exceptions=True)  # of which `_on_kept` hears
        await _either(self._hurrying, ending, timeout_s=self._outfit.drain_s)
        if ending.done():
            return
        self.drained = False
        await self._repository.give_up()
        for life in self._lives.values():
            life.session.drain()
        # What is given up is answered yet.
        await _either(ending, timeout_s=2 * LEAVE_S)


def _how(status: int) -> str:
    return f"by signal {-status}" if status < 0 else f"with status {status}"


async def _either(*those: "asyncio.Event | asyncio.Future[Any]", timeout_s: float) -> None:
    """Wait until one of those has happened, or for so long."""
    waiting = {
        asyncio.ensure_future(each.wait() if isinstance(each, asyncio.Event) else each)
        for each in those
    }
    _, pending = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for each in pending - set(those):
        each.cancel()
