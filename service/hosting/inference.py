"""One request's images on their way to scores: admitted, decoded, scored. Callbacks, no task.

wanted ── admit ─┬─ files ── headers ── decode pool ─┬─ batcher ── scores
                 └─ pixels ──────────────────────────┘
"""

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from models import Pixels
from service.batching.policy import NO_HURRY, Urgency
from service.batching.waiting import Answered
from service.engine.ranking import ScoreRow
from service.errors import ServiceError
from service.hosting.admission import Reservation
from service.images.pool import Decoding

if TYPE_CHECKING:
    from service.hosting.pipeline import Pipeline

# Bytes of files whose headers take longer to read than to hand to a thread.
_LONG_FILES = 2**18

Scored = Answered[ScoreRow]
Outcome = Scored | Exception


class Wanted(NamedTuple):
    """What a request asks for, once its body is read."""

    files: Sequence[bytes]  # encoded images; none where there are pixels
    pixels: Sequence[Pixels] | None  # H×W×C as `ModelInfo.image_shape` says; may be views
    urgency: Urgency = NO_HURRY
    form: Any = None  # of the answer; for the endpoint that makes it


class Withdrawable(Protocol):
    """Something under way that can be called off."""

    def withdraw(self) -> None:
        """Its result is no longer wanted."""


class Inference:
    """The work in flight for one request."""

    __slots__ = ("_decoded", "_pipeline", "_reservation", "_then", "_undecoded", "_under_way",
                 "_urgency", "decoded_at", "started")  # fmt: skip

    def __init__(
        self, pipeline: "Pipeline", reservation: Reservation, then: Callable[[Outcome], None]
    ) -> None:
        """`then` is called once with the outcome, unless it is withdrawn."""
        self._pipeline = pipeline
        self._reservation = reservation
        self._then: Callable[[Outcome], None] | None = then
        self._under_way: Sequence[Withdrawable] = ()
        self._urgency = NO_HURRY
        self.started = perf_counter()
        self.decoded_at = self.started  # perf_counter seconds

    def start(self, wanted: Wanted) -> None:
        """Have the images decoded, where they are files, and scored.

        Raised or told: QueueFullError, TooManyImagesError: not admitted. ImageError,
        PayloadTooLargeError, UnsupportedMediaTypeError: one cannot be decoded. DecodersBusyError:
        large ones would wait too long. DeadlineError: they cannot be done in time, which is asked
        before they are decoded and after. EngineFailedError, ShuttingDownError.
        """
        self._urgency = wanted.urgency
        if wanted.pixels is not None:
            self._reservation.admit(len(wanted.pixels))
            self._score(wanted.pixels)
            return
        files = wanted.files
        self._reservation.admit(len(files))
        if wanted.urgency is not NO_HURRY:
            self._pipeline.runner.batcher.check_deadline(len(files), wanted.urgency)
        if sum(map(len, files)) <= _LONG_FILES:
            self._decode(_prepare(files, self._pipeline.prepare))
            return
        prepare = partial(_prepare, prepare=self._pipeline.prepare)
        job = self._pipeline.reader.post(prepare, files, self._prepared)
        if job is not None:
            self._under_way = (job,)

    def withdraw(self) -> None:
        """Its outcome is no longer wanted: what of it has not begun never does."""
        self._then = None
        for each in self._under_way:
            each.withdraw()

    def _prepared(self, decodings: list[Decoding], error: Exception | None) -> None:
        """The headers were read in a thread."""
        if error is not None:
            self._end(error)
            return
        try:
            self._decode(decodings)
        except Exception as failure:  # noqa: BLE001  told to the request
            self._end(failure)

    def _decode(self, decodings: list[Decoding]) -> None:
        """Have the images decoded, all or none."""
        decoders = self._pipeline.decoders
        decoders.admit(*decodings)
        self._decoded: list[Pixels | Exception] = [_NO_PIXELS] * len(decodings)
        self._undecoded = len(decodings)
        posted = [
            decoders.post(decoding, partial(self._one_decoded, place))
            for place, decoding in enumerate(decodings)
        ]
        if self._undecoded:
            self._under_way = [job for job in posted if job is not None]

    def _one_decoded(self, place: int, pixels: Pixels, error: Exception | None) -> None:
        self._decoded[place] = pixels if error is None else error
        self._undecoded -= 1
        if self._undecoded:
            return
        # All have ended, so that it is always the first bad image that is named.
        failure = _first_failure(self._decoded)
        if failure is not None:
            self._end(failure)
            return
        images = [each for each in self._decoded if not isinstance(each, Exception)]
        self._reservation.release_bytes()
        try:
            self._score(images)
        except Exception as refused:  # noqa: BLE001  told to the request
            self._end(refused)

    def _score(self, pixels: Sequence[Pixels]) -> None:
        self.decoded_at = perf_counter()
        then = self._then
        if then is not None:
            self._under_way = (self._pipeline.runner.post(pixels, then, self._urgency),)
            self._then = None  # which may hold this

    def _end(self, failure: Exception) -> None:
        then, self._then = self._then, None
        self._under_way = ()
        if then is not None:
            then(failure)


_NO_PIXELS: Pixels = np.zeros((0, 0, 0), np.uint8)


def _prepare(files: Sequence[bytes], prepare: Callable[[bytes], Decoding]) -> list[Decoding]:
    """What decoding each takes; raises what is wrong with the first that is, naming it."""
    decodings = []
    for place, file in enumerate(files):
        try:
            decodings.append(prepare(file))
        except ServiceError as error:
            raise _named(error, place, len(files)) from error
    return decodings


def _first_failure(outcomes: Sequence[Pixels | Exception]) -> Exception | None:
    """The first error there is, of several images naming which."""
    for place, outcome in enumerate(outcomes):
        if isinstance(outcome, ServiceError):
            return _named(outcome, place, len(outcomes))
        if isinstance(outcome, Exception):
            return outcome
    return None


def _named(error: ServiceError, place: int, images: int) -> ServiceError:
    """An error of one image of so many, which is said where there are several."""
    if images == 1:
        return error
    named = type(error)(f"image {place + 1} of {images}: {error}")
    named.__cause__ = error
    return named
