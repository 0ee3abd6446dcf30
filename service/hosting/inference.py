"""Takes one request's images to their scores by callbacks, without an asyncio task.

wanted ── admit ─┬─ files ─┬─ headers ─┬─ decode pool ─┬─ batcher ─┬─ scores
                 │         │           └───────────────│───────────┘ files that an engine has left
                 │         └─ whose jobs decode ───────┤
                 └─ images ────────────────────────────┘
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, Protocol, TypeVar

from models import Array, Image, Kind, kind_of
from service.batching.policy import NO_HURRY, Urgency
from service.batching.queue import BatchResult
from service.engine.ranking import ScoreRow
from service.engine.undecoded import NotHereError
from service.errors import ServiceError
from service.hosting.admission import Reservation
from service.hosting.pipeline import Pipeline
from service.images.clip import Frames
from service.images.coded import Coded
from service.images.decode_pool import Decoding, NotForDeviceError
from service.images.view import View, view_of
from service.telemetry.counts import BESIDE_BROKEN, BY_DEVICE, NO_FILE, why_left

# Above this many bytes, reading the headers takes longer than handing them to a thread. Of clips it
# may anyway: an archive is inflated.
_LONG_FILES = 2**18

T = TypeVar("T")

Scored = BatchResult[ScoreRow]
Outcome = Scored | Exception


class ImageRequest(NamedTuple):
    """Holds the images and urgency of a request."""

    files: Sequence[bytes | Frames]  # encoded images; none where there are decoded ones
    images: Sequence[Array] | None  # decoded: pixels or tensors as `ModelInfo` says; may be views
    urgency: Urgency = NO_HURRY
    form: Any = None  # of the answer, for the endpoint
    copied: int = 0  # bytes of the images that are not from the body
    pixels_only: bool = False  # the results are the decoded images, which are not scored
    inner: Collection[str] = ()  # values inside the network that are wanted beside the scores
    views: list[View] | None = None  # gets what the model sees of each file, if that is wanted

    @property
    def size(self) -> int:
        """Return the number of images."""
        return len(self.files if self.images is None else self.images)


class Withdrawable(Protocol):
    """Work that can be withdrawn."""

    def withdraw(self) -> None:
        """Discard the result, and do not begin if that is still possible."""


@dataclass(eq=False, slots=True)
class Inference:
    """Holds one request's work in progress; `then` gets its outcome unless it is withdrawn."""

    _pipeline: Pipeline
    _reservation: Reservation
    _then: Callable[[Outcome], None] | None
    _under_way: list[Withdrawable] = field(default_factory=list)
    _urgency: Urgency = NO_HURRY
    _pixels_only: bool = False
    _inner: Collection[str] = ()
    _views: list[View] | None = None
    _decoded: list[Any] = field(default_factory=list)  # images, or an exception
    _undecoded: int = 0
    # Where the engine decodes files: the scores so far, and of a device how to decode them here.
    _rows: list[ScoreRow | None] = field(default_factory=list)
    _decodings: Sequence[Decoding] = ()
    decoded_at: float = field(default_factory=perf_counter)
    decoding_s: float = 0.0  # of the seconds that its last batch ran

    def start(self, wanted: ImageRequest) -> None:
        """Decode the images if they are files, and score them.

        Errors are raised here or passed to `then`: those of `Reservation.admit`, `prepare_image`,
        `DecodePool.admit` and `EngineRunner.post`; deadlines are checked before decoding, too.
        """
        client = self._reservation.client
        self._urgency, self._pixels_only = wanted.urgency, wanted.pixels_only
        self._inner, self._views = wanted.inner, wanted.views
        if wanted.images is not None:
            self._reservation.admit(len(wanted.images))
            self._score(wanted.images)
            return
        files = wanted.files
        self._reservation.admit(len(files))
        if wanted.urgency is not NO_HURRY:
            self._pipeline.runner.batcher.check_deadline(len(files), wanted.urgency, client)
        pipeline = self._pipeline
        if sum(map(len, files)) <= _LONG_FILES and not pipeline.info.of_clips:
            if pipeline.runner.decodes and not self._pixels_only and self._views is None:
                self._decoded = _prepare(files, pipeline.coded)
                self._rows = [None] * len(files)
                self._score_rest()
            else:
                self._decode(_prepare(files, pipeline.prepare))
            return
        prepare = partial(_prepare, prepare=self._pipeline.prepare)
        job = self._pipeline.reader.post(prepare, files, self._prepared)
        if job is not None:
            self._under_way = [job]

    def withdraw(self) -> None:
        """Cancel all work that has not begun, and never call `then`."""
        self._then = None
        for work in self._under_way:
            work.withdraw()

    def _prepared(self, decodings: list[Decoding], error: Exception | None) -> None:
        """Continue after a thread has read the headers."""
        if error is not None:
            self._end(error)
            return
        try:
            self._decode(decodings)
        except Exception as failure:  # noqa: BLE001  passed on to the request
            self._end(failure)

    def _decode(self, decodings: list[Decoding]) -> None:
        """Decode all images, or none if one is refused."""
        decoders = self._pipeline.decoders
        client = self._reservation.client
        decoders.admit(*decodings, client=client)
        if self._views is not None:
            self._views += map(view_of, decodings)
        left = () if self._pixels_only else self._pipeline.left
        if Kind.JPEG in left:
            self._decodings = decodings
            self._rows = [None] * len(decodings)
        self._decoded = [None] * len(decodings)
        self._undecoded = len(decodings)
        for index, decoding in enumerate(decodings):
            if self._decodings and decoding.file is None:
                self._pipeline.metrics.counts.decoded(NO_FILE)
            self._post(index, decoding, left)

    def _post(self, index: int, decoding: Decoding, left: Collection[Kind]) -> None:
        """Have the pool decode an image."""
        then, client = partial(self._one_decoded, index), self._reservation.client
        job = self._pipeline.decoders.post(decoding, then, client, left)
        if job is not None:
            self._under_way.append(job)

    def _decode_here(self, index: int, reason: str) -> None:
        """Have the pool decode a file that a device, or a job, did not decode."""
        coded = self._decoded[index]
        if isinstance(coded, Coded):
            try:
                decoding = coded.decoding
            except Exception as error:  # noqa: BLE001  the image's own
                self._one_decoded(index, coded, error)
                return
            self._pipeline.decoders.admit(decoding, client=self._reservation.client)
            self._post(index, decoding, ())
            return
        self._pipeline.metrics.counts.decoded(reason)
        left = [kind for kind in self._pipeline.left if kind is not Kind.JPEG]
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
            self._end(refused)

    def _refuses(self) -> bool:
        """End with the error of the first bad image, if there is one; no image is being decoded.

        It is not raised: its traceback would keep this object, and so itself.
        """
        for number, outcome in enumerate(self._decoded):
            if isinstance(outcome, Exception):
                self._refuse(number, outcome)
                return True
        return False

    def _refuse(self, index: int, error: Exception) -> None:
        """End with an image's error, after decoding earlier files that no decoder has seen and that
        may be wrong too."""
        unseen = [
            before
            for before in range(index)
            if self._rows and self._rows[before] is None and self._is_file(before)
        ]
        if not unseen:
            self._end(_named(error, index, len(self._decoded)))
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
        self.decoded_at = perf_counter()
        then = self._then
        if then is not None and self._pixels_only:
            self._then = None
            results: list[Any] = list(images)
            then(BatchResult(results, 0, 0.0, 0.0))
        elif then is not None:
            runner, client = self._pipeline.runner, self._reservation.client
            self._under_way = [runner.post(images, then, self._urgency, client, self._inner)]
            self._then = None  # breaks a reference cycle

    def _score_rest(self) -> None:
        """Score the images that have no scores yet; the engine may return none for some files."""
        self.decoded_at = perf_counter()
        indices = [index for index, row in enumerate(self._rows) if row is None]
        images = [self._decoded[index] for index in indices]
        if not any(map(self._is_file, indices)):
            self._reservation.release_bytes()
        if self._then is not None:
            runner, client = self._pipeline.runner, self._reservation.client
            then = partial(self._scored, indices)
            self._under_way = [runner.post(images, then, self._urgency, client, self._inner)]

    def _scored(self, indices: Sequence[int], outcome: Scored | ServiceError) -> None:
        """Keep a batch's rows, and have the pool decode the files that the engine left."""
        self._under_way = []
        if isinstance(outcome, ServiceError):
            self._end(outcome)
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
                    self._pipeline.metrics.counts.decoded(BY_DEVICE)
                self._rows[index] = row
        self._undecoded = len(undone)
        try:
            for index, reason in undone.items():
                self._decode_here(index, reason)
        except Exception as refused:  # noqa: BLE001  passed on to the request
            self._end(refused)
            return
        then = self._then
        if not undone and not self._refuses() and then is not None:
            self._then = None
            self.decoding_s = outcome.results[-1].decode_s
            then(outcome._replace(results=[row for row in self._rows if row is not None]))

    def _end(self, failure: Exception) -> None:
        then = self._then
        self.withdraw()
        self._under_way = []
        if then is not None:
            then(failure)


def _prepare(files: Sequence[bytes | Frames], prepare: Callable[[Any], T]) -> list[T]:
    """Return what `prepare` makes of each file.

    Raises the first error, with the image's number.
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
    """Return the error with the image's number added if there are several images."""
    if images == 1 or not isinstance(error, ServiceError):
        return error
    named = type(error)(f"image {index + 1} of {images}: {error}")
    named.__cause__ = error
    return named
