"""Handles one request to a model, whatever its protocol, from admission to its single outcome.

    open ── hold ──── aside ────── infer ── then(scored) ── hold_answer ── count ── end
      └───────┴─────────┴────────────┴───── then(error) ────────┘

A protocol gives it what arrives, and makes an answer of what `then` gets.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from typing import TypeVar

from models import Array, Serving
from service.batching.policy import Urgency
from service.errors import Code, ForbiddenError, PayloadTooLargeError, ServiceError
from service.hosting.admission import Reservation
from service.hosting.inference import ImageRequest, Inference, Outcome, Scored
from service.hosting.pipeline import Pipeline
from service.images.clip import Frames
from service.telemetry.counts import Phases
from service.telemetry.record import RequestRecord

B = TypeVar("B")
T = TypeVar("T")

_log = logging.getLogger("convoy")


@dataclass(eq=False, slots=True)
class Call:
    """Handles one request; `then` gets its scores or error once, unless the call is abandoned."""

    pipeline: Pipeline
    record: RequestRecord
    _then: Callable[[Outcome], None] | None
    ended: bool = False  # or abandoned
    _reservation: Reservation = field(init=False)  # since `open`
    _inference: Inference | None = None
    _held: int = 0  # bytes reserved
    _example: bytes | Frames | Array | None = None  # to remember with its scores
    _received: float = 0.0  # perf_counter seconds at the end of the body

    def open(self) -> None:
        """Begin the call, or raise ServiceError where it cannot be accepted now."""
        self._reservation = Reservation(self.pipeline.admission, self.record.caller, self._give_way)
        self.pipeline.runner.state.check_ready()
        self._reservation.expect_room()

    def hold(self, length: int, what: str) -> None:
        """Reserve memory for a body of this length, which may grow from call to call.

        Raises QueueFullError, MemoryShortError, and PayloadTooLargeError, which says `what` is too
        long.
        """
        if length <= self._held:
            return
        self.pipeline.admission.room.check_memory()
        max_body_bytes = self.pipeline.admission.max_body_bytes
        if length > max_body_bytes:
            raise PayloadTooLargeError(
                f"at most {max_body_bytes} bytes are allowed in a body, and {what}; "
                "send a smaller image, or fewer at once"
            )
        self._reservation.hold_bytes(length - self._held)
        self._held = length

    def hold_more(self, count: int) -> None:
        """Reserve memory for bytes besides the body. Raises QueueFullError."""
        self._reservation.hold_bytes(count)

    def hold_answer(self, count: int) -> None:
        """Reserve memory for the answer, in place of the body's.

        Raises QueueFullError, and PayloadTooLargeError where no answer may be so long.
        """
        most = self.pipeline.admission.room.max_answer
        if count > most:
            raise PayloadTooLargeError(
                f"the answer would have up to {count} bytes, and at most {most} are allowed; ask"
                " for fewer classes (top_k, classification), or send fewer images at once"
            )
        self._reservation.release_bytes()
        self._reservation.hold_bytes(count)

    def receive(self) -> None:
        """Note that the body is complete."""
        self._received = perf_counter()

    def aside(self, work: Callable[[B], T], body: B, then: Callable[[T], None]) -> None:
        """Call `work` with the body in a thread, and then `then` with its result."""

        def done(result: T, error: Exception | None) -> None:
            if self.ended:
                return
            if error is not None:
                self.fail(error)  # not raised: this frame, in its traceback, has it: a cycle
                return
            try:
                then(result)
            except Exception as failure:  # noqa: BLE001  passed on
                self.fail(failure)

        self.pipeline.reader.post(work, body, done)

    def infer(self, wanted: ImageRequest) -> None:
        """Score the images, and count them against their client's rate.

        The model's own deadline and priority apply. Raises the errors of `Inference.start` and of
        the charge, and ForbiddenError where the client may not use the priority.
        """
        client = self._reservation.client
        if wanted.urgency.priority and wanted.urgency.level < client.highest_priority:
            raise ForbiddenError(
                f"priority {wanted.urgency.level} is above the default and not yours to use; "
                "ask for an API key with priority=1, or leave the priority out"
            )
        serving = self.pipeline.info.serving
        if serving.timeout_ms or serving.priority:
            started = self.record.started
            wanted = wanted._replace(urgency=_urgency(wanted.urgency, serving, started))
        if self.record.charge is not None:
            self.record.charge(self.record, wanted.size)
        if wanted.copied:
            self._reservation.hold_bytes(wanted.copied)
        if self.pipeline.recent is not None and not wanted.pixels_only:
            images = wanted.files if wanted.images is None else wanted.images
            self._example = self.pipeline.recent.chosen(images, perf_counter())
        self._inference = Inference(self.pipeline, self._reservation, self._scored)
        self._inference.start(wanted)

    def phases(self, scored: Scored) -> Phases:
        """Return how long each phase of the request took until now; any thread may call this."""
        started = self.record.started
        total_s, receive_s = perf_counter() - started, self._received - started
        decode_s = inside_s = 0.0
        if self._inference is not None:
            inside_s = self._inference.decoding_s  # in the batch's job
            decode_s = self._inference.decoded_at - self._received + inside_s
        compute_s = scored.compute_s - inside_s
        return Phases.of(total_s, receive_s, decode_s, scored.queue_s, compute_s)

    def count(self, scored: Scored, phases: Phases) -> None:
        """Count and record the request as answered."""
        images = len(scored.results) if scored.batch_size else 0  # others are not scored
        self.pipeline.metrics.counts.answered(images, phases)
        self.record.score(self.pipeline.info.name, images, scored.batch_size, phases)

    def end(self) -> None:
        """Release everything after the answer was made."""
        self._inference = None  # it has ended: there is nothing to withdraw
        self._let_go()

    def fail(self, error: Exception) -> None:
        """End the call with an error and count it; an unexpected error is logged too."""
        if self.ended:  # already failed, or abandoned
            return
        code = error.code if isinstance(error, ServiceError) else Code.FAILED
        if not isinstance(error, ServiceError):
            about = {"request_id": self.record.id.decode()}
            _log.error(
                "request %(request_id)s failed unexpectedly", about, exc_info=error, extra=about
            )
        self.pipeline.metrics.counts.refused(code, perf_counter() - self.record.started)
        then = self._then
        self._let_go()
        if then is not None:
            then(error)

    def abandon(self, code: Code) -> None:
        """Stop because no one waits for the answer, and count the request under `code`."""
        if self.ended:
            return
        self._let_go()
        self.pipeline.metrics.counts.refused(code, perf_counter() - self.record.started)

    def _scored(self, outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            self.fail(outcome)
        elif self._then is not None:
            if self._example is not None and self.pipeline.recent is not None:
                self.pipeline.recent.add(self._example, outcome.results[0].scores)
            self._then(outcome)

    def _give_way(self, error: ServiceError) -> None:
        """Stop in favour of another client; answer later, as an answer may begin this client's next
        request."""
        self._withdraw()
        asyncio.get_running_loop().call_soon(self.fail, error)

    def _let_go(self) -> None:
        """Release everything and withdraw all work in progress."""
        self.ended = True
        self._then = None  # breaks a reference cycle
        self._withdraw()
        self._reservation.release()

    def _withdraw(self) -> None:
        if self._inference is not None:
            self._inference.withdraw()
            self._inference = None


def _urgency(asked: Urgency, serving: Serving, started: float) -> Urgency:
    """Return a request's urgency, no later than its model's deadline."""
    latest = inf if serving.timeout_ms is None else started + serving.timeout_ms / 1e3
    return Urgency(min(asked.deadline, latest), asked.priority or serving.priority)
