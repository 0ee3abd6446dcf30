"""One request to a model and its answer: admitted, timed, counted, answered whatever happens."""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from service.admission import Visit
from service.body import Body
from service.errors import ServiceError
from service.pipeline import Pipeline, Scored
from service.responses import error_response, refusal
from service.statistics import Phases

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]

# As nginx counts a request whose client did not wait for the answer.
_CLIENT_CLOSED_REQUEST = 499

CRASHED = "the server made a mistake; its log says which"

_log = logging.getLogger("convoy")


@dataclass(slots=True)
class Arrival:
    """A request that was let in, its body yet to be read."""

    request: Request
    pipeline: Pipeline
    body: Body
    visit: Visit
    started: float  # perf_counter seconds
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
        return phases


async def exchange(
    request: Request,
    pipeline: Pipeline,
    max_body_bytes: int,
    answer: Callable[[Arrival], Awaitable[Response]],
) -> Response:
    """What `answer` makes of the request, or the error that it or the admission raised."""
    started = perf_counter()
    metrics, admission = pipeline.metrics, pipeline.admission
    body = Body(
        request.scope["headers"],
        request.receive,
        max_bytes=max_body_bytes,
        max_images=admission.max_images_a_request,
    )
    try:
        with Visit(admission) as visit:
            pipeline.check_ready()
            visit.expect_room()
            return await answer(Arrival(request, pipeline, body, visit, started))
    except ServiceError as error:
        metrics.refused(error.status, perf_counter() - started)
        return refusal(error, last=not body.skippable)
    except ClientDisconnect:
        metrics.refused(_CLIENT_CLOSED_REQUEST, perf_counter() - started)
        return Response(status_code=_CLIENT_CLOSED_REQUEST)  # nobody is there to read it
    except Exception:  # noqa: BLE001  answered, counted and logged
        _log.exception("a request failed in a way that was not foreseen")
        metrics.refused(500, perf_counter() - started)
        return error_response(500, CRASHED, last=not body.skippable)
