"""One request to a model and its answer: admitted, timed, counted, answered whatever happens.

arrival ── check ── body ── what is asked ── pipeline ── scores ── answer ── response
             └────────┴────────────────────────┴─────── failed ──────────────┘
"""

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from service.errors import ServiceError
from service.hosting.admission import Visit
from service.hosting.pipeline import Outcome, Pipeline, Scored, Scoring
from service.http.body import Body, Headers, content_coding
from service.http.compression import inflate
from service.http.connection import Departure
from service.http.protocol import CLIENT_CLOSED_REQUEST
from service.http.responses import error_response, refusal
from service.telemetry.record import Entry, entry_of
from service.telemetry.statistics import Phases

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]

CRASHED = "the server made a mistake; its log says which"

_log = logging.getLogger("convoy")


class Arrival(Scoring):
    """A request over HTTP, from its head to its scores."""

    __slots__ = ("entry", "headers", "query", "started")

    def __init__(
        self,
        headers: Headers,
        query: bytes,
        pipeline: Pipeline,
        visit: Visit,
        started: float,
        entry: Entry | None,
    ) -> None:
        super().__init__(pipeline, visit)
        self.headers = headers
        self.query = query
        self.started = started  # perf_counter seconds
        self.entry = entry  # for whoever logs it; None where it came over no connection of ours

    def answered(self, scored: Scored) -> Phases:
        """Count the request, whose answer is ready but for being written; where its time went."""
        rows, batch, queue_s, compute_s = scored
        started = self.started
        total_s, receive_s = perf_counter() - started, self.received - started
        phases = Phases.of(total_s, receive_s, self.decode_s, queue_s, compute_s)
        pipeline, entry, images = self.pipeline, self.entry, len(rows)
        pipeline.metrics.answered(images, phases)
        if entry is not None:
            entry.model = pipeline.info.name
            entry.images = images
            entry.batch = batch
            entry.phases = phases
        return phases


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a path does with requests to one model.

    `check` raises what can be known before the body comes; `read` sets what is wanted, or raises
    that too; `at_once` says of which bodies, by headers and length, that takes no longer than to
    hand them to a thread; `answer` makes the answer of the scores, and counts it. Called with a
    request this is an ASGI endpoint; `service/http/lane.py` has a shorter way, for what is read at
    once.
    """

    pipeline: Pipeline
    max_body_bytes: int
    check: Callable[[Arrival], object]
    read: Callable[[Arrival, bytes], None]
    at_once: Callable[[Headers, int], bool]
    answer: Callable[[Arrival, Scored], Response]

    async def __call__(self, request: Request) -> Response:
        """The answer to a request, whatever happens."""
        started = perf_counter()
        pipeline, headers = self.pipeline, dict(request.scope["headers"])
        visit = Visit(pipeline.admission)
        query, entry = request.scope["query_string"], entry_of(request.scope)
        arrival = Arrival(headers, query, pipeline, visit, started, entry)
        body = Body(headers, request.receive, self.max_body_bytes)
        try:
            with visit:
                pipeline.check_ready()
                visit.expect_room()
                self.check(arrival)
                data = await body.collect(visit.hold_bytes)
                arrival.received = perf_counter()
                with Departure(request.receive):
                    if coding := content_coding(headers):
                        inflating = partial(inflate, coding=coding, most=self.max_body_bytes)
                        data = await pipeline.aside(inflating, data)
                        visit.hold_bytes(len(data))
                    if self.at_once(headers, len(data)):
                        self.read(arrival, data)
                    else:
                        await pipeline.aside(partial(self.read, arrival), data)
                    del data
                    scored = await arrival.scored()
                return self.answer(arrival, scored)
        except Exception as error:  # noqa: BLE001  answered, counted and logged
            return self._failed(arrival, error, last=not body.skippable)

    def score(self, arrival: Arrival, data: bytes, then: Callable[[Response], None]) -> None:
        """As when it is called, with a body that is there, and was counted, and is read at once.

        `then` is told the answer, perhaps before this returns; never, if it is withdrawn.
        """
        try:
            self.pipeline.check_ready()
            arrival.visit.expect_room()
            arrival.received = perf_counter()
            self.read(arrival, data)
            arrival.score(partial(self._end, arrival, then))
        except Exception as error:  # noqa: BLE001  answered, counted and logged
            arrival.withdraw()  # or it would hold who holds it
            arrival.visit.leave()
            then(self._failed(arrival, error, last=False))

    def abandoned(self, started: float, status: int) -> None:
        """Count a request whose client left, or was sent away with a status."""
        self.pipeline.metrics.refused(status or CLIENT_CLOSED_REQUEST, perf_counter() - started)

    def _end(self, arrival: Arrival, then: Callable[[Response], None], outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            response = self._failed(arrival, outcome, last=False)
        else:
            try:
                response = self.answer(arrival, outcome)
            except Exception as error:  # noqa: BLE001  answered, counted and logged
                response = self._failed(arrival, error, last=False)
        arrival.visit.leave()
        then(response)

    def _failed(self, arrival: Arrival, error: Exception, *, last: bool) -> Response:
        """Count a request that has no answer but this; `last`: of its connection."""
        if isinstance(error, ServiceError):
            self._refused(arrival, error.status)
            return refusal(error, last=last)
        if isinstance(error, ClientDisconnect):
            # It left, or the edge sent it away.
            status = arrival.entry.status if arrival.entry is not None else 0
            self.abandoned(arrival.started, status)
            return Response(status_code=status or CLIENT_CLOSED_REQUEST)
        name = arrival.entry.id.decode() if arrival.entry is not None else "without an id"
        _log.error(
            "request %s failed in a way that was not foreseen",
            name,
            exc_info=error,
            extra={"request_id": name},
        )
        self._refused(arrival, 500)
        return error_response(500, CRASHED, last=last)

    def _refused(self, arrival: Arrival, status: int) -> None:
        self.pipeline.metrics.refused(status, perf_counter() - arrival.started)
