"""Handles one request to a model, in any protocol, from admission to its single outcome.

    open ── body ── read ─┬─ files ─┬─ headers ─┬─ decode pool ─┬─ queued ─┬─ scored ── answered
      │       │       │   │         │           └───────────────│──────────┘ files not decoded
      │       │       │   │         └─ a job decodes them ──────┤
      │       │       │   └─ images ────────────────────────────┘
      └───────┴───────┴──────────────────────── failed, or abandoned

The code for HTTP or gRPC calls `open`, then `hold` for the body, `aside` if reading the body takes
long, and `infer`. The callback `then` gets the scores. The answer is created between the calls of
`hold_answer` and `finish`. A request consists of callbacks, without an asyncio task.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from models import Array, Image, Kind, Serving, kind_of
from service.batching.policy import NO_HURRY, Urgency
from service.batching.queue import BatchResult, OnOutcome
from service.engine.ranking import ScoreRow
from service.engine.threads import OnDone, Withdrawable
from service.engine.undecoded import NotHereError
from service.errors import Code, ForbiddenError, PayloadTooLargeError, ServiceError
from service.hosting.admission import Reservation
from service.hosting.pipeline import READ, Pipeline
from service.images.clip import Frames
from service.images.decode_pool import Coded, Decoding, NotForDeviceError
from service.images.view import View, view_of
from service.telemetry.counts import BESIDE_BROKEN, BY_DEVICE, NO_FILE, Phases, phases_of, why_left
from service.telemetry.record import RequestRecord

B = TypeVar("B")
T = TypeVar("T")

_log = logging.getLogger("convoy")

# Above this many bytes, reading the headers takes longer than handing them to a thread. Of clips it
# may anyway: an archive is inflated.
_LONG_FILES = 2**18

Files = list[bytes] | list[bytes | Frames]
Scored = BatchResult[ScoreRow]
Outcome = Scored | Exception


class ImageRequest(NamedTuple):
    """Holds the images and urgency of a request. `Request` empties the list `files`, so that each
    file's memory is freed as soon as the file is decoded."""

    files: Files  # encoded images; none where there are decoded ones
    images: Sequence[Array] | None  # decoded: pixels or tensors as `ModelInfo` says; may be views
    urgency: Urgency = NO_HURRY
    copied: int = 0  # bytes of the images that are not from the body
    pixels_only: bool = False  # the results are the decoded images, which are not scored
    inner: Collection[str] = ()  # values inside the network that are wanted beside the scores
    averaged: bool = False  # of these, averages over all positions are wanted instead
    views: list[View] | None = None  # gets what the model sees of each file, if that is wanted

    @property
    def size(self) -> int:
        """Return the number of images."""
        return len(self.files if self.images is None else self.images)


_NOTHING = ImageRequest([], None)


@dataclass(eq=False, slots=True)
class Request:
    """Handles one request. `then` is called once, with the scores or an error. It is not called if
    the request is abandoned."""

    pipeline: Pipeline
    record: RequestRecord
    _then: Callable[[Outcome], None] | None
    ended: bool = False  # or abandoned
    _reservation: Reservation = field(init=False)  # since `open`
    _held: int = 0  # bytes reserved
    _wanted: ImageRequest = _NOTHING  # since `infer`
    _awaits_scores: bool = False  # from then until they are there, or work is withdrawn
    _under_way: list[Withdrawable] = field(default_factory=list)
    _example: bytes | Frames | Array | None = None  # to remember with its scores
    _decoded: list[Any] = field(default_factory=list)  # images, or an exception
    _undecoded: int = 0
    # If the engine decodes files: the scores so far; for a device, also how to decode them here.
    _rows: list[ScoreRow | None] = field(default_factory=list)
    _decodings: Sequence[Decoding] = ()
    _decoded_at: float = 0.0
    _decoding_s: float = 0.0  # of the seconds that its last batch ran
    _phases: Phases | None = None  # since an answer is made

    def open(self) -> None:
        """Begin the request. Raises ServiceError if the request cannot be accepted now."""
        self._reservation = Reservation(self.pipeline.admission, self.record.caller, self._give_way)
        self.pipeline.runner.check_ready()
        self._reservation.expect_room()

    def hold(self, length: int, what: str) -> None:
        """Reserve memory for a body of `length` bytes. Later calls may give a larger length.

        Raises QueueFullError, MemoryShortError, or PayloadTooLargeError. The last one's message
        contains `what`, a phrase about the body's length.
        """
        if length <= self._held:
            return
        self.pipeline.admission.room.check_memory()
        max_body_bytes = self.pipeline.admission.max_body_bytes
        if length > max_body_bytes:
            raise PayloadTooLargeError(
                f"at most {max_body_bytes} bytes are allowed in a body (--max-body-mb), but"
                f" {what}; send a smaller image, or fewer images at once"
            )
        self._reservation.hold_bytes(length - self._held)
        self._held = length

    def hold_more(self, count: int) -> None:
        """Reserve memory for `count` bytes in addition to the body. Raises QueueFullError."""
        self._reservation.hold_bytes(count)

    def hold_answer(self, count: int) -> None:
        """Free the memory of the body, and reserve `count` bytes for the answer.

        Raises QueueFullError, and PayloadTooLargeError if the answer is too long.
        """
        reservation = self._reservation
        most = self.pipeline.admission.room.max_answer
        if count > most:
            raise PayloadTooLargeError(
                f"the answer would have up to {count} bytes; at most {most} are allowed; ask"
                " for fewer classes (top_k, classification), or send fewer images at once"
            )
        reservation.hold_bytes(count - reservation.bytes)

    def aside(self, work: Callable[[B], T], body: B, then: Callable[[T], None]) -> None:
        """Call `work` with the body in a thread. Clients take turns to use the threads. Afterwards,
        call `then` with the result, unless the request has ended."""

        def done(result: T, error: Exception | None) -> None:
            self._under_way = []
            if self.ended:
                return
            if error is not None:
                self.fail(error)  # not raised: this frame, in its traceback, has it: a cycle
                return
            try:
                then(result)
            except Exception as failure:  # noqa: BLE001  passed on
                self.fail(failure)

        self._read_aside(partial(work, body), done)

    def infer(self, wanted: ImageRequest) -> None:
        """Score the images, and count them against the client's rate limit.

        The model may also set a deadline and a priority. Raises ForbiddenError if the client may
        not use the priority. The errors of the rate limit, `Reservation.admit`, `prepare_image`,
        `DecodePool.admit` and `EngineRunner.post` are raised or passed to `then`.
        """
        client = self._reservation.client
        if wanted.urgency.priority and wanted.urgency.level < client.highest_priority:
            raise ForbiddenError(
                f"priority {wanted.urgency.level} is above the default priority; use an API key"
                " that allows it (with priority=1 in --api-key-file), or omit the priority"
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
        self._start(wanted)

    def phases(self, scored: Scored) -> Phases:
        """Return how long each phase of the request has taken until now. `finish` adds the times of
        the last call to the metrics. Any thread may call this method."""
        started, received = self.record.started, self.record.received
        total_s, receive_s = perf_counter() - started, received - started
        inside_s = self._decoding_s  # in the batch's job
        decode_s = max(0.0, self._decoded_at - received) + inside_s
        compute_s = scored.compute_s - inside_s
        self._phases = phases_of(total_s, receive_s, decode_s, scored.queue_s, compute_s)
        return self._phases

    def finish(self, scored: Scored) -> None:
        """Record the request as answered in the metrics and in its record, and free its
        reservations."""
        phases = self._phases or self.phases(scored)
        images = len(scored.results) if scored.batch_size else 0  # others are not scored
        self.pipeline.metrics.counts.answered(images, phases)
        record = self.record
        record.model, record.images = self.pipeline.info.name, images
        record.batch, record.phases = scored.batch_size, phases
        self._let_go()

    def fail(self, error: Exception) -> None:
        """End the request with an error, and count the error. An unexpected error is logged too."""
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
        """Stop the request because no client waits for its answer any more. Count it under
        `code`."""
        if self.ended:
            return
        self._let_go()
        self.pipeline.metrics.counts.refused(code, perf_counter() - self.record.started)

    def _start(self, wanted: ImageRequest) -> None:
        """Decode the images if they are files, and score them. A request whose deadline cannot be
        met is refused before decoding."""
        client = self._reservation.client
        self._wanted, self._awaits_scores = wanted, True
        if wanted.images is not None:
            # Numbers that have two bytes each in JSON or FP16 take four bytes from now on.
            more = sum(image.nbytes for image in wanted.images) - self._reservation.bytes
            if more > 0:
                self._reservation.hold_bytes(more)
            self._reservation.admit(len(wanted.images))
            self._score(wanted.images)
            return
        files = wanted.files
        self._reservation.admit(len(files))
        if wanted.urgency is not NO_HURRY:
            self.pipeline.runner.batcher.check_deadline(len(files), wanted.urgency, client)
        pipeline, quick = self.pipeline, sum(map(len, files)) <= _LONG_FILES
        in_jobs = pipeline.runner.decodes and not wanted.pixels_only and wanted.views is None
        if quick and in_jobs:  # jobs decode no clips
            try:
                self._decoded = _prepare(files, pipeline.coded)
            except ServiceError:
                _prepare(files, pipeline.prepare)  # an earlier file may be wrong, too
                raise
            self._rows = [None] * len(files)
            files.clear()
            self._score_rest()
        elif quick and not pipeline.info.of_clips:
            self._decode(_prepare(files, pipeline.prepare))
        else:
            self._read_aside(partial(_prepare, files, pipeline.prepare), self._prepared)

    def _read_aside(self, read: Callable[[], T], then: OnDone[T]) -> None:
        """Call `read`, which may take long, in a thread. Call `then` afterwards."""
        work = self.pipeline.reader.post(READ, read, then, self._reservation.client)
        if work is not None:
            self._under_way = [work]

    def _prepared(self, decodings: list[Decoding], error: Exception | None) -> None:
        """Decode the images, after a thread has read the headers of their files."""
        if error is not None:
            self.fail(error)
            return
        try:
            self._decode(decodings)
        except Exception as failure:  # noqa: BLE001  passed on to the request
            self.fail(failure)

    def _decode(self, decodings: list[Decoding]) -> None:
        """Pass all images to the decode pool, or none of them if the pool refuses one."""
        self._wanted.files.clear()
        decoders = self.pipeline.decoders
        client = self._reservation.client
        if copied := sum([decoding.copied for decoding in decodings]):
            self._reservation.hold_bytes(copied)
        decoders.admit(*decodings, client=client)
        if self._wanted.views is not None:
            self._wanted.views.extend(map(view_of, decodings))
        left = () if self._wanted.pixels_only else self.pipeline.left
        if Kind.JPEG in left:
            self._decodings = decodings
            self._rows = [None] * len(decodings)
        self._decoded = [None] * len(decodings)
        self._undecoded = len(decodings)
        for index, decoding in enumerate(decodings):
            if self._decodings and decoding.file is None:
                self.pipeline.metrics.counts.decoded(NO_FILE)
            self._post(index, decoding, left)

    def _post(self, index: int, decoding: Decoding, left: Collection[Kind]) -> None:
        """Queue an image in the decode pool. If its kind is in `left`, the engine does the
        remaining decoding or resizing."""
        then, client = partial(self._one_decoded, index), self._reservation.client
        job = self.pipeline.decoders.post(decoding, then, client, left)
        if job is not None:
            self._under_way.append(job)

    def _decode_here(self, index: int, reason: str) -> None:
        """Let the decode pool decode a file that was meant for a GPU's decoder or for a job."""
        coded = self._decoded[index]
        if isinstance(coded, Coded):
            try:
                decoding = coded.decoding
            except Exception as error:  # noqa: BLE001  the image's own
                self._one_decoded(index, coded, error)
                return
            self.pipeline.decoders.admit(decoding, client=self._reservation.client)
            self._post(index, decoding, ())
            return
        self.pipeline.metrics.counts.decoded(reason)
        left = [kind for kind in self.pipeline.left if kind is not Kind.JPEG]
        self._post(index, self._decodings[index], left)

    def _one_decoded(self, index: int, image: Image | Coded, error: Exception | None) -> None:
        if isinstance(error, NotForDeviceError):
            self._decode_here(index, error.reason)
            return
        self._decoded[index] = image if error is None else error
        self._undecoded -= 1
        if self._undecoded:
            return
        self._under_way = []
        if self._refuses():
            return
        try:
            if self._rows:
                self._score_rest()
            else:
                self._reservation.release_bytes()
                self._score(self._decoded)
        except Exception as refused:  # noqa: BLE001  passed on to the request
            self.fail(refused)

    def _refuses(self) -> bool:
        """If an image has an error, fail the request with the error of the first such image. Return
        whether the request failed. Called when no image is being decoded.

        The error is not raised, because its traceback would refer to this object: a reference
        cycle.
        """
        for number, outcome in enumerate(self._decoded):
            if isinstance(outcome, Exception):
                self._refuse(number, outcome)
                return True
        return False

    def _refuse(self, index: int, error: Exception) -> None:
        """Fail the request with the error of image `index` or of an earlier image. To find the
        earliest error, decode earlier files first if they were not decoded yet."""
        unseen = [
            before
            for before in range(index)
            if self._rows and self._rows[before] is None and self._is_file(before)
        ]
        if not unseen:
            self.fail(_named(error, index, len(self._decoded)))
            return
        self._undecoded = len(unseen)
        for before in unseen:
            self._decode_here(before, BESIDE_BROKEN)

    def _is_file(self, index: int) -> bool:
        image = self._decoded[index]
        if isinstance(image, Exception | Coded):
            return isinstance(image, Coded)
        return kind_of(image) is Kind.JPEG

    def _score(self, images: Sequence[Image]) -> None:
        if self._awaits_scores and self._wanted.pixels_only:
            self._decoded_at = perf_counter()
            results: list[Any] = list(images)
            self._answer(BatchResult(results, 0, 0.0, 0.0))
        else:
            self._post_images(images, self._all_scored)

    def _post_images(self, images: Sequence[Any], then: OnOutcome[ScoreRow]) -> None:
        """Queue the images for a batch, unless their scores are no longer needed."""
        self._decoded_at = perf_counter()
        if self._awaits_scores:
            runner, client = self.pipeline.runner, self._reservation.client
            wanted = self._wanted
            inner, averaged = wanted.inner, wanted.averaged
            posted = runner.post(images, then, wanted.urgency, client, inner, averaged=averaged)
            self._under_way = [posted]

    def _score_rest(self) -> None:
        """Queue the images that have no scores yet. The engine may return some of the files
        undecoded. The decode pool then decodes these files."""
        indices = [index for index, row in enumerate(self._rows) if row is None]
        images = [self._decoded[index] for index in indices]
        if not any(map(self._is_file, indices)):
            self._reservation.release_bytes()
        self._post_images(images, partial(self._scored, indices))

    def _all_scored(self, outcome: Scored | ServiceError) -> None:
        if isinstance(outcome, ServiceError):
            self.fail(outcome)
        else:
            self._answer(outcome)

    def _scored(self, indices: Sequence[int], outcome: Scored | ServiceError) -> None:
        """Store the scores from a batch. Let the decode pool decode the files that the engine did
        not decode."""
        self._under_way = []
        if isinstance(outcome, ServiceError):
            self.fail(outcome)
            return
        undone = {}
        for index, row in zip(indices, outcome.results, strict=True):
            by_device = self._is_file(index) and not isinstance(self._decoded[index], Coded)
            if isinstance(row.error, NotHereError):
                undone[index] = ""
            elif row.error is not None:
                self._decoded[index] = row.error
            elif by_device and row.flags:
                undone[index] = why_left(row.flags)
            else:
                if by_device:
                    self.pipeline.metrics.counts.decoded(BY_DEVICE)
                self._rows[index] = row
        self._undecoded = len(undone)
        try:
            for index, reason in undone.items():
                self._decode_here(index, reason)
        except Exception as refused:  # noqa: BLE001  passed on to the request
            self.fail(refused)
            return
        if not undone and not self._refuses():
            self._decoding_s = outcome.results[-1].decode_s
            rows = [row for row in self._rows if row is not None]
            _, size, queue_s, compute_s = outcome
            self._answer(BatchResult(rows, size, queue_s, compute_s))

    def _answer(self, scored: Scored) -> None:
        """Pass the scores to the code for HTTP or gRPC, which creates the answer."""
        if not self._awaits_scores or self._then is None:
            return
        self._awaits_scores, self._under_way = False, []
        if self._example is not None and self.pipeline.recent is not None:
            self.pipeline.recent.add(self._example, scored.results[0].scores)
        self._then(scored)

    def _give_way(self, error: ServiceError) -> None:
        """Cancel the request because another client needs its capacity. The error is sent in a
        later iteration of the event loop, because sending it may begin the client's next
        request."""
        self._withdraw()
        asyncio.get_running_loop().call_soon(self.fail, error)

    def _let_go(self) -> None:
        """End the request: cancel its work in progress, and free its data and reservations."""
        self.ended = True
        self._withdraw()
        # These assignments break reference cycles, such as those of an error's traceback.
        self._then = None
        self._wanted, self._decoded, self._rows, self._decodings = _NOTHING, [], [], ()
        self._reservation.release()

    def _withdraw(self) -> None:
        """Cancel all work that has not begun, and stop waiting for scores."""
        self._awaits_scores = False
        under_way, self._under_way = self._under_way, []
        for work in under_way:
            work.withdraw()


def _prepare(files: Sequence[bytes | Frames], prepare: Callable[[Any], T]) -> list[T]:
    """Return the results of `prepare` for the files.

    Raises the first error, with the number of the image in its message.
    """
    decodings = []
    for index, file in enumerate(files):
        try:
            decodings.append(prepare(file))
        except ServiceError as error:
            if len(files) == 1:
                raise  # an error that is its own cause is a cycle, with the file in its traceback
            raise _named(error, index, len(files)) from error
    return decodings


def _named(error: Exception, index: int, images: int) -> Exception:
    """Return the error, with the image's number in its message if there are several images."""
    if images == 1 or not isinstance(error, ServiceError):
        return error
    named = error.within(f"image {index + 1} of {images}")
    named.__cause__ = error
    return named


def _urgency(asked: Urgency, serving: Serving, started: float) -> Urgency:
    """Return the urgency of a request. Its deadline is the earlier one of the client's and the
    model's deadlines. Its priority is the client's, or the model's if the client asks for none."""
    latest = inf if serving.timeout_ms is None else started + serving.timeout_ms / 1e3
    return Urgency(min(asked.deadline, latest), asked.priority or serving.priority)
