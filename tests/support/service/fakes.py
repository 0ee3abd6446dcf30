"""Provides a fake engine and a fake decoder without a model. An image is a digit, and its class is
this digit."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np

from kernels.image.place import DeferredImage
from models import (
    Batch,
    Engine,
    EngineError,
    Flag,
    Images,
    Inner,
    Kind,
    OutputKind,
    Pixels,
    Precision,
    Reason,
    Results,
    Scores,
    kind_of,
)
from service.engine.lane import Cost
from service.engine.watchdog import Bounds
from service.errors import ImageError
from service.hosting.model_info import ModelInfo
from service.hosting.repository import Repository
from service.images.decode_pool import Decoding, NotForDeviceError
from tests.support import PATIENCE_S

LONG_S = 10.0 * PATIENCE_S  # a limit that no work of a test exceeds, unless it hangs

CLASSES = 10
LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class FakeEngine:
    """An engine whose likeliest class is the image's own digit. A batch takes `delay_s`, and waits
    until `gate` opens."""

    ranked = None

    def __init__(
        self,
        *,
        delay_s: float = 0.0,
        gate: threading.Event | None = None,
        max_batch: int = 8,
        warm_up: Callable[[], object] = lambda: None,
        scores: Callable[[Images], Scores] | None = None,
    ) -> None:
        self.max_batch = max_batch
        self.classes = CLASSES
        self.device = "fake"
        self.precision = Precision.FP32
        self.fallback_reason = ""
        self.layers = ""
        self.takes = Kind.TENSOR
        self.on_cpu = True
        self._delay_s = delay_s
        self._gate = gate
        self.batches: list[int] = []
        self.asked: list[tuple[str, ...]] = []  # the inner values of each batch
        self.threads: set[int] = set()
        self.closed = False
        self.failing = False
        self._warm_up = warm_up
        self._scores = scores or one_hot

    def warm_up(self) -> Engine:
        """Run the function that the test gave."""
        self._warm_up()
        return self

    def run(self, images: Batch, inner: Collection[str] = ()) -> Results:
        """Return the logits of N×1×1×1 images. Each inner value of an image is (digit, 2)."""
        self.batches.append(len(images))
        self.threads.add(threading.get_ident())
        time.sleep(self._delay_s)
        if self._gate is not None:
            self._gate.wait(PATIENCE_S)
        if self.failing:
            raise EngineError("the device fell off the bus")
        stacked = np.stack(list(images))
        self.asked.append(tuple(inner))
        digits = np.stack([stacked[:, 0, 0, 0], np.full(len(images), 2)], axis=1)
        return Results(self._scores(stacked), inner=dict.fromkeys(inner, digits.astype(np.float32)))

    def close(self) -> None:
        """Record that the engine was closed."""
        self.closed = True


class FakeFile(DeferredImage):
    """A file that contains a digit, such as `b"7"`, and that a device decodes. The device flags a
    file that contains an f."""

    kind = Kind.JPEG
    shape = (1, 1, 1)

    def __init__(self, data: bytes) -> None:
        """Take a file. If the file contains an h, raise NotForDeviceError, as for a file whose
        header a device does not support."""
        if b"h" in data:
            raise NotForDeviceError(Reason.PROGRESSIVE.value)
        self.data = data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Pixels:
        """Return the pixels that the device decodes, which are 0 for a flagged file."""
        digit = 0 if b"f" in self.data else int(self.data[:1])
        return np.full(self.shape, digit, np.uint8)


class FakeDecoder(FakeEngine):
    """An engine that decodes files, and flags some of them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.takes = Kind.JPEG
        self.kinds: list[list[Kind]] = []  # of each batch

    def run(self, images: Batch, inner: Collection[str] = ()) -> Results:
        """Return the logits. They are NaN for flagged files."""
        self.kinds.append([kind_of(image) for image in images])
        results = super().run(images, inner)
        flagged = [isinstance(image, FakeFile) and b"f" in image.data for image in images]
        flags = np.where(flagged, int(Flag.MARKER | Flag.BAD_CODE), 0).astype(np.int32)
        scores = np.where(np.array(flagged)[:, None], np.float32(np.nan), results.scores)
        return Results(scores, inner=results.inner, flags=flags)


def prepare_file(data: bytes) -> Decoding:
    """Prepare a file for `decode_digit` and, unless the file contains an n, for a device."""
    file = None if b"n" in data else partial(FakeFile, data)
    return Decoding(Cost(), partial(decode_digit, data), file=file)


def one_hot(images: Images) -> Scores:
    """Return the scores of each image. The score is 9 for the last digit of the image's pixel, and
    0 for all other digits."""
    return 9 * np.eye(CLASSES, dtype=np.float32)[images[:, 0, 0, 0] % CLASSES]


def decode_digit(data: bytes) -> Pixels:
    """Decode a file such as `b"7"` to an image of this digit. Further bytes are ignored. Raises
    ImageError if the first byte is not a digit."""
    if not data[:1].isdigit():
        raise ImageError("the picture is no digit; send a digit")
    return np.full((1, 1, 1), int(data[:1]), np.uint8)


def free(decode: Callable[[bytes], Pixels]) -> Callable[[bytes], Decoding]:
    """Return a function that prepares images whose decoding costs nothing."""
    return partial(_free, decode)  # unlike a lambda, it can be sent to another process


def _free(decode: Callable[[bytes], Pixels], data: bytes) -> Decoding:
    return Decoding(Cost(), partial(decode, data))


USUAL_FILE = b"0, the usual file"
"""A sample file that takes long to decode. With it, warm-up decides that the jobs that run images
also decode them."""


def _slowly_the_usual(prepare: Callable[[bytes], Decoding], data: bytes) -> Decoding:
    return Decoding(Cost(), partial(_slow_digit, data)) if data == USUAL_FILE else prepare(data)


def _slow_digit(data: bytes) -> Pixels:
    time.sleep(0.02)
    return decode_digit(data)


def make_repository(
    engine: FakeEngine | None = None,
    decode: Callable[[bytes], Pixels] = decode_digit,
    *,
    prepare: Callable[[bytes], Decoding] | None = None,
    decode_bytes: int = 2**30,
    output: OutputKind = OutputKind.LOGITS,
    max_queue: int = 32,
    max_body_bytes: int = 100_000,
    decode_threads: int = 2,
    measure_s: float = 0,
    bounds: Bounds | None = None,
    decode_s: float = LONG_S,
    reopen: Callable[[], Engine] | None = None,
    others: Sequence[FakeEngine] = (),
    swaps: bool = False,
    decodes: bool = False,
) -> Repository:
    """Return a repository of one model with fakes. The model is not warm yet.

    By default, images are decoded with `decode`, at no estimated cost. `prepare` replaces this.
    `others` are additional engines. With `decodes`, the jobs that run images also decode them. Time
    limits are too long to have an effect, except the limits that `bounds` and `decode_s` set.
    """
    engine = engine or FakeEngine()
    repository = Repository(
        max_batch=engine.max_batch,
        max_queue=max_queue,
        max_body_bytes=max_body_bytes,
        decode_threads=decode_threads,
        measure_s=measure_s,
        bounds=bounds or Bounds(batch_s=LONG_S),
        decode_s=decode_s,
        decode_bytes=decode_bytes,
        swaps=swaps,
        sample=USUAL_FILE if decodes else None,
    )

    def again(_: int) -> Engine:
        assert reopen is not None
        return reopen()

    repository.add(
        fake_info(output=output),
        [engine, *others],
        partial(_slowly_the_usual, prepare or free(decode)),
        again if reopen else None,
    )
    return repository


def fake_info(
    name: str = "fake", output: OutputKind = OutputKind.LOGITS, version: str = "1"
) -> ModelInfo:
    """Return the description of a fake model."""
    return ModelInfo(
        name,
        version=version,
        image_shape=(1, 1, 1),
        scores="scores",
        output=output,
        labels=LABELS,
        embedding=Inner("features", (2,)),
        inner=[Inner("features", (2,))],
    )
