"""The workers among themselves: who has how many connections, so that each takes its share.

All of them accept from one listening socket. Left alone, whoever wakes first takes all that there
are: of 8 connections opened at once, one of two workers had all in 19 of 30 trials. So a worker
that has more than another leaves a connection to it, for a moment; then it takes one after all,
because the other may be busy.

One socket each (SO_REUSEPORT) would be dealt out by a hash: more than 5 of 8 to one of two workers
in 3 trials of 10.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.processes.memory import Memory

# How long a connection is left to others.
_YIELD_S = 0.001

# After the system had no room for another connection.
_FULL_S = 1.0

# The share by which one may have more than another: exact balance is for few connections, which
# are busy ones; of many it would only slow accepting down.
_SLACK = 8

_WORD = 8
_LINE = 64 // _WORD  # words of a cache line

_log = logging.getLogger("convoy")


class Crew:
    """Of each worker its connections, below 0 where it accepts none; and threads that it lost."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._memory = Memory((workers + 1) * _LINE * _WORD)
        for number in range(workers):
            self.set(number, -1)

    def set(self, worker: int, connections: int) -> None:
        """Write down a worker's."""
        self._memory.view.cast("q")[worker * _LINE] = connections

    def least(self, but: int) -> int | None:
        """The fewest that another has that accepts; None if there is none."""
        words = self._memory.view.cast("q")
        others = [words[number * _LINE] for number in range(self.workers) if number != but]
        return min((count for count in others if count >= 0), default=None)

    def lost(self, worker: int) -> int:
        """How many decode threads a worker, and those in its place before it, lost."""
        return int(self._memory.view.cast("q")[worker * _LINE + 1])

    def set_lost(self, worker: int, threads: int) -> None:
        """Write down a worker's."""
        self._memory.view.cast("q")[worker * _LINE + 1] = threads

    @property
    def accepting(self) -> int:
        """How many workers accept connections."""
        words = self._memory.view.cast("q")
        return sum(words[number * _LINE] >= 0 for number in range(self.workers))

    @property
    def replaced(self) -> int:
        """How many workers another took the place of."""
        return int(self._memory.view.cast("q")[self.workers * _LINE])

    def replace(self, worker: int) -> None:
        """One ended that should not have."""
        self.set(worker, -1)
        self._memory.view.cast("q")[self.workers * _LINE] += 1


class CrewCollector(Collector):
    """Tells Prometheus of the workers."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def collect(self) -> Iterable[Metric]:
        """How many there are, and how many there have been."""
        yield GaugeMetricFamily(
            "convoy_workers", "Processes that accept connections.", self._crew.accepting
        )
        yield CounterMetricFamily(
            "convoy_workers_replaced",
            "Processes that ended, and another took the place of.",
            self._crew.replaced,
        )


class Acceptor:
    """Takes one worker's share of connections; used from its event loop."""

    def __init__(
        self,
        crew: Crew,
        worker: int,
        listener: socket.socket,
        connect: Callable[[socket.socket], Coroutine[Any, Any, Any]],
    ) -> None:
        """`connect` makes an accepted socket a connection."""
        self._crew = crew
        self._worker = worker
        self._listener = listener
        self._connect = connect
        self._count = 0
        self._connecting: set[asyncio.Task[Any]] = set()
        self._pause: asyncio.Handle | None = None
        self._closed = False

    def start(self) -> None:
        """Accept from now on."""
        self._listener.setblocking(False)
        self._crew.set(self._worker, 0)
        self._watch()

    def close(self) -> None:
        """Accept no more."""
        self._closed = True
        self._crew.set(self._worker, -1)
        if self._pause is not None:
            self._pause.cancel()
        else:
            asyncio.get_running_loop().remove_reader(self._listener)

    def gone(self) -> None:
        """A connection is closed."""
        self._add(-1)

    def _add(self, connections: int) -> None:
        self._count += connections
        if not self._closed:
            self._crew.set(self._worker, self._count)

    def _watch(self) -> None:
        asyncio.get_running_loop().add_reader(self._listener, self._on_connection)

    def _on_connection(self) -> None:
        least = self._crew.least(self._worker)
        if least is None or self._count <= least + least // _SLACK:
            self._accept()
        else:
            self._wait(_YIELD_S)

    def _wait(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._pause = loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._watch()
        self._accept()  # if nobody else did

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # somebody else has it, or its client left
        except OSError as error:  # as many files are open as may be
            _log.error("no connection can be accepted: %s", error)
            self._wait(_FULL_S)
            return
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._add(1)
        task = asyncio.get_running_loop().create_task(self._connect(accepted))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)


def counting(protocol: type[Any], gone: Callable[[], None]) -> type[Any]:
    """A protocol that says when its connection is closed."""

    class Counted(protocol):  # type: ignore[misc]
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            gone()

    return Counted
