"""One request to a model and its answer: admitted, timed, counted, answered whatever happens."""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from service.access import Entry, entry_of
from service.admission import Visit
from service.body import Body
from service.connection import Departure
from service.errors import ServiceError
from service.pipeline import Pipeline, Scored
from service.protocol import CLIENT_CLOSED_REQUEST
from service.responses import error_response, refusal
from service.statistics import Phases

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]

CRASHED = "the server made a mistake; its log says which"

_log = logging.getLogger("convoy")


@dataclass(slots=True)
class Arrival:
    """A request that came, its body yet to be read."""

    headers: Mapping[bytes, bytes]  # names in lower case; of several of one name the last
    query: bytes
    body: Body
    departure: AbstractContextManager[object]  # raises ClientDisconnect when the client leaves
    pipeline: Pipeline
    visit: Visit
    started: float  # perf_counter seconds
    entry: Entry | None  # for whoever logs it; None where it did not come over a connection of ours
    receive_s: float = 0.0

    def received(self) -> float:
        """The body is there; the time, in perf_counter's seconds."""
        now = perf_counter()
        self.receive_s = now - self.started
        return now

    def answered(self, done: Scored) -> Phases:
        """Count the request, whose answer is ready but for being written; where its time went."""
        total_s = perf_counter() - self.started
        phases = Phases.of(
            total_s,
            receive=self.receive_s,
            decode=done.decode_s,
            queue=done.queue_s,
            compute=done.compute_s,
        )
        self.pipeline.metrics.answered(len(done.rows), phases)
        entry = self.entry
        if entry is not None:
            entry.model = self.pipeline.info.name
            entry.images = len(done.rows)
            entry.batch = done.batch
            entry.phases = phases
        return phases


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a path does with requests to one model: `answer` makes the answer, or raises.

    Called with a request it is an ASGI endpoint; `service/lane.py` has a shorter way to it.
    """

    pipeline: Pipeline
    max_body_bytes: int
    answer: Callable[[Arrival], Awaitable[Response]]

    async def __call__(self, request: Request) -> Response:
        """The answer to a request, whatever happens."""
        started = perf_counter()
        headers = dict(request.scope["headers"])
        admission = self.pipeline.admission
        body = Body(
            headers,
            request.receive,
            max_bytes=self.max_body_bytes,
            max_images=admission.max_images_a_request,
        )
        return await self.respond(
            Arrival(
                headers,
                request.scope["query_string"],
                body,
                Departure(request.receive),
                self.pipeline,
                Visit(admission),
                started,
                entry_of(request.scope),
            )
        )

    async def respond(self, arrival: Arrival) -> Response:
        """What `answer` makes of it, or the error that it or the admission raised."""
        body = arrival.body
        try:
            with arrival.visit as visit:
                self.pipeline.check_ready()
                visit.expect_room()
                return await self.answer(arrival)
        except ServiceError as error:
            self._refused(arrival, error.status)
            return refusal(error, last=not body.skippable)
        except ClientDisconnect:
            # It left, or the edge sent it away.
            status = arrival.entry.status if arrival.entry is not None else 0
            return self.abandoned(arrival.started, status or CLIENT_CLOSED_REQUEST)
        except Exception:  # noqa: BLE001  answered, counted and logged
            name = arrival.entry.id.decode() if arrival.entry is not None else "without an id"
            _log.exception(
                "request %s failed in a way that was not foreseen", name, extra={"request_id": name}
            )
            self._refused(arrival, 500)
            return error_response(500, CRASHED, last=not body.skippable)

    def abandoned(self, started: float, status: int = CLIENT_CLOSED_REQUEST) -> Response:
        """Count a request whose client left or was sent away; the answer is for nobody."""
        self.pipeline.metrics.refused(status, perf_counter() - started)
        return Response(status_code=status)

    def _refused(self, arrival: Arrival, status: int) -> None:
        self.pipeline.metrics.refused(status, perf_counter() - arrival.started)
