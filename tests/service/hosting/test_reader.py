"""Long bodies are read in their clients' turns, each as long as it takes."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf

import pytest

from service.engine.lane import Lane
from service.engine.threads import ThreadPool
from service.fair_queue import Client
from service.hosting.reader import Reader
from tests.support.service import virtual_time
from tests.support.service.desk import in_virtual_time
from tests.support.service.virtual_time import now

A, B = Client("a"), Client("b")


class Desk:
    """A reader without threads, and when what took how long there."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, float]] = []
        self.reader = Reader(Lane(ThreadPool("read", 0, bound_s=inf), 0))
        self.used_s = 0.0

    def ask(self, *clients: Client) -> None:
        """Have clients ask for anything."""
        for client in clients:
            self.reader.asked(client.name, now())

    def read(self, name: str, takes_s: float) -> None:
        """Work for so long."""
        self.begun.append((name, round(now(), 6)))
        self.used_s += takes_s

    def post(self, name: str, client: Client, then: Callable[..., None] = lambda *_: None) -> None:
        """Have a client's body read for a tenth of a second."""
        self.reader.post(partial(self.read, name, 0.1), then, client)


@contextmanager
def desk_of() -> Iterator[Desk]:
    with pytest.MonkeyPatch.context() as patch:
        desk = Desk()
        patch.setattr("service.hosting.reader.thread_time", lambda: desk.used_s)
        patch.setattr("service.hosting.reader.perf_counter", now)
        yield desk


@in_virtual_time
async def test_while_others_ask_a_clients_reading_rests_as_long_as_it_worked() -> None:
    with desk_of() as desk:
        desk.ask(A, B, A)
        for name in ("a1", "a2", "a3"):
            desk.post(name, A)
        desk.post("b1", B)  # who rests is no concern of others
        await virtual_time.until(0.5)
        assert desk.begun == [("a1", 0), ("b1", 0), ("a2", 0.1), ("a3", 0.2)]
        desk.ask(B)
        desk.post("a4", A)
        desk.post("a5", A)
        await virtual_time.until(0.9)
        assert desk.begun[4:] == [("a4", 0.5), ("a5", 0.6)]


@in_virtual_time
async def test_a_client_that_is_alone_does_not_wait() -> None:
    with desk_of() as desk:
        for name in ("a1", "a2"):
            desk.ask(A)
            desk.post(name, A)
        desk.ask(B)
        await virtual_time.until(2)  # since when B has been away
        for name in ("a3", "a4"):
            desk.ask(A)
            desk.post(name, A)
        assert desk.begun == [("a1", 0), ("a2", 0), ("a3", 2), ("a4", 2)]


@in_virtual_time
async def test_the_next_step_of_a_request_goes_before_the_clients_other_requests() -> None:
    with desk_of() as desk:
        desk.ask(A, B)
        desk.post("inflated", A, lambda *_: desk.post("read", A))
        desk.post("other", A)
        await virtual_time.until(0.5)
        assert [name for name, _ in desk.begun] == ["inflated", "read", "other"]


@in_virtual_time
async def test_what_is_withdrawn_is_let_go_and_not_read() -> None:
    class Body(bytearray):
        pass

    ended = list[str]()
    with desk_of() as desk:
        desk.ask(A, B)
        desk.post("first", A)
        body = Body()
        left = desk.reader.post(partial(len, body), lambda *_: ended.append("left"), A)
        desk.post("last", A, lambda *_: ended.append("last"))
        assert left is not None
        kept = weakref.ref(body)
        gc.disable()
        try:
            left.withdraw()
            del body
            assert kept() is None
        finally:
            gc.enable()
        await virtual_time.until(0.5)
        assert desk.begun == [("first", 0), ("last", 0.1)]
        assert ended == ["last"]


@in_virtual_time
async def test_one_that_fails_holds_up_no_other() -> None:
    errors = list[Exception | None]()
    with desk_of() as desk:

        def fail() -> None:
            raise ValueError

        assert desk.reader.post(fail, lambda _, error: errors.append(error), A) is None
        desk.post("next", A)
        assert isinstance(errors[0], ValueError)
        assert desk.begun == [("next", 0)]
        assert not desk.reader._lines
