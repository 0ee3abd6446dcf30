"""Who of several workers accepts a connection; here they are in one process."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from service.processes.crew import Acceptor, Crew, CrewCollector

from tests.support.service.client import metric_in, until


class Worker:
    """Accepts, and keeps what it accepted."""

    def __init__(self, crew: Crew, number: int, listener: socket.socket) -> None:
        self.has: list[socket.socket] = []
        self.acceptor = Acceptor(crew, number, listener, self.connect)

    async def connect(self, accepted: socket.socket) -> None:
        self.has.append(accepted)

    def lose(self) -> None:
        self.has.pop().close()
        self.acceptor.gone()


@asynccontextmanager
async def working(count: int) -> AsyncIterator[tuple[Crew, list[Worker], list[socket.socket]]]:
    """Workers on one socket, and what their clients have opened."""
    crew, clients = Crew(count), list[socket.socket]()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        workers = [Worker(crew, number, listener.dup()) for number in range(count)]
        for worker in workers:
            worker.acceptor.start()
        clients.append(listener)
        yield crew, workers, clients
        for worker in workers:
            worker.acceptor.close()
    for each in (*clients, *(s for w in workers for s in w.has)):
        each.close()


async def opened(workers: list[Worker], clients: list[socket.socket], more: int) -> list[int]:
    """How many connections each has, once `more` were opened."""
    address = clients[0].getsockname()
    before = sum(len(worker.has) for worker in workers)
    clients += [socket.create_connection(address) for _ in range(more)]
    await until(lambda: sum(len(worker.has) for worker in workers) == before + more)
    return sorted(len(worker.has) for worker in workers)


@pytest.mark.anyio
async def test_connections_are_shared_evenly() -> None:
    async with working(2) as (_, workers, clients):
        assert max(await opened(workers, clients, 8)) <= 5
        assert max(await opened(workers, clients, 32)) <= 24


@pytest.mark.anyio
async def test_who_lost_connections_gets_the_next() -> None:
    async with working(2) as (_, workers, clients):
        await opened(workers, clients, 8)
        first, second = workers
        while first.has:
            first.lose()
        before = len(second.has)
        await opened(workers, clients, 3)
        assert (len(first.has), len(second.has)) == (3, before)


@pytest.mark.anyio
async def test_nobody_waits_for_one_that_accepts_none() -> None:
    async with working(2) as (crew, (first, second), clients):
        assert crew.accepting == 2
        first.acceptor.close()
        assert crew.accepting == 1
        await opened([first, second], clients, 6)
        assert (len(first.has), len(second.has)) == (0, 6)


@pytest.mark.anyio
async def test_what_is_left_to_one_that_is_busy_is_taken_after_all() -> None:
    async with working(1) as (crew, workers, clients):
        # Another that has none, and takes none: nobody else is there to do it.
        crew.least = lambda but: 0  # type: ignore[method-assign]
        assert await opened(workers, clients, 4) == [4]


def test_metrics_tell_how_many_workers_there_are_and_were() -> None:
    crew = Crew(3)
    crew.set(0, 0)
    crew.set(2, 7)
    crew.replace(2)
    crew.set_lost(1, 2)
    assert [crew.lost(number) for number in range(3)] == [0, 2, 0]
    registry = CollectorRegistry()
    registry.register(CrewCollector(crew))
    text = generate_latest(registry).decode()
    assert metric_in(text, "convoy_workers") == 1
    assert metric_in(text, "convoy_workers_replaced_total") == 1
